"""`mltop kernel`: lines in the kernel logs that were never seen before, on these machines or on their peers."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from mltop.probes.agent.protocol import Message
from mltop.probes.judge.kernel_lines import merge
from mltop.probes.judge.nodes import folded
from mltop.probes.judge.values import grouped
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app.output import say
from mltop.tui.commands.live import Machines, Reached, live_targets, put_answer, refuse_read_only, say_gap, unreached
from mltop.tui.exits import EXIT_UNREACHABLE
from mltop.tui.state import NoHome, NotOurs, state_file, usage_problems
from mltop.tui.state.lists import KERNEL_LINES, learn, read_known

OP = "kernel_lines"
ANSWER_S = 30.0  # of a node that was reached: a long log, or an old journal on a slow disk
MOST_SHOWN = 60


def run(options: TargetOptions, as_json: bool, do_learn: bool = False, everything: bool = False) -> int:
    """Exit 0: all was read; 3: a node could not be reached, or its log could not (or not all of it) be read.

    ``do_learn``: from now on the lines found are known; ``everything``: also those that are known or common.
    """
    if do_learn:
        refuse_read_only(options, "kernel --learn")
    targets = live_targets(options, "has no kernel logs in it (mltop kernel looks at machines)")
    known = _learned(do_learn)
    with Machines(targets, options, "kernel") as machines:
        reached = [view.node for view in machines.await_nodes(Reached()) if view.sample is not None]
        answers = machines.ask(OP, reached, ANSWER_S)
        views = machines.views()
        machines.stderr.last_failures(unreached(views))
    gaps = [gap for node, message in answers.items() if (gap := _gap(node, message))]
    for (why, fix), alike in grouped(gaps, lambda gap: (gap["why"], gap["fix"])).items():
        say_gap(folded([gap["node"] for gap in alike]), why, fix)
    by_node = {node: said for node, message in answers.items() if (said := _lines(message)) is not None}
    lines = merge(by_node, known)
    shown = [line for line in lines if everything or line.is_new]
    if do_learn:  # also what most of the nodes have: alone, a machine has no peers that say so
        with usage_problems("kernel lines"):
            learn((line.pattern for line in lines), time.time(), known)
        say(f"learned {sum(not line.known for line in lines)} kinds of lines (in {state_file(KERNEL_LINES)})")
    from mltop.tui.report.check import print_kernel

    most = len(shown) if everything or do_learn else MOST_SHOWN
    answer = {
        "nodes": [view.state for view in views],
        "lines": [asdict(line) for line in shown],
        "gaps": gaps,
        "learned": len(lines) if do_learn else 0,
    }
    put_answer(
        as_json,
        answer,
        lambda console: print_kernel(lines, shown, console, most=most, nodes=len(by_node), now=time.time()),
    )
    if not as_json and not known and not do_learn and shown:
        say("nothing is learned yet: run `mltop kernel --learn` while the machines are well")
    return EXIT_UNREACHABLE if unreached(views) or gaps else 0


def _gap(node: str, message: Message | None) -> dict[str, str]:
    """{node, what, why, fix} of what could not be read; {} where all was."""
    if message is None:
        gap: object = {"what": OP, "why": f"did not answer within {ANSWER_S:g} s"}
    elif message.kind == "error" and message.error:
        gap = {"what": OP, "why": message.error, "fix": message.fix}
    else:
        gap = message.data.get("gap")
    if not isinstance(gap, dict):
        return {}
    return {"node": node, **{name: str(gap.get(name, "")) for name in ("what", "why", "fix")}}


def _lines(message: Message | None) -> list[dict[str, Any]] | None:
    """What a node's agent answered; None where it could read nothing."""
    lines = message.data.get("lines") if message is not None else None
    if message is None or not isinstance(lines, list) or not (lines or not message.data.get("gap")):
        return None
    return [line for line in lines if isinstance(line, dict)]


def _learned(needed: bool) -> dict[str, float]:
    """The lines that were learned. ``needed``: they will be written."""
    with usage_problems("kernel lines"):
        try:
            return read_known()
        except NotOurs as problem:
            if needed:
                raise
            if not isinstance(problem, NoHome):
                say(f"no line is known: {problem}")
            return {}
