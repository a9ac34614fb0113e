"""`mltop kernel`: lines in the kernel logs that were never seen before, on these machines or on their peers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.probes.agent.protocol import Message
from mltop.probes.judge.kernel_lines import KernelLine, merge
from mltop.probes.judge.nodes import folded
from mltop.probes.model import SCHEMA, NodeState
from mltop.probes.reach.targets import TargetOptions, Targets
from mltop.tui.app.output import put_json, say
from mltop.tui.commands.live import (
    EXIT_UNREACHABLE,
    Machines,
    Reached,
    live_targets,
    refuse_read_only,
    say_gap,
    unreached,
)
from mltop.tui.state import NoHome, NotOurs, state_file, usage_problems
from mltop.tui.state.lists import KERNEL_LINES, learn, read_known

OP = "kernel_lines"
ANSWER_S = 30.0  # of a node that was reached: a long log, or an old journal on a slow disk
MOST_SHOWN = 60


@dataclass
class Answers:
    """``by_node``: what each node's agent answered; ``gaps``: {node, what, why, fix} of what could not be read."""

    nodes: list[NodeState] = field(default_factory=list)
    by_node: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    gaps: list[dict[str, str]] = field(default_factory=list)
    unreached: list[NodeState] = field(default_factory=list)


def run(options: TargetOptions, as_json: bool, do_learn: bool = False, everything: bool = False) -> int:
    """Exit 0: all was read; 3: a node could not be reached, or its log could not (or not all of it) be read.

    ``do_learn``: from now on the lines found are known; ``everything``: also those that are known or common.
    """
    if do_learn:
        refuse_read_only(options, "kernel --learn")
    targets = live_targets(options, "has no kernel logs in it (mltop kernel looks at machines)")
    known = _learned(do_learn)
    answers = live(targets, options)
    lines = merge(answers.by_node, known)
    shown = [line for line in lines if everything or line.is_new]
    if do_learn:
        _learn(lines, known)
    if as_json:
        gaps = {"gaps": answers.gaps, "learned": len(lines) if do_learn else 0}
        put_json({"schema": SCHEMA, "nodes": answers.nodes, "lines": [asdict(line) for line in shown], **gaps})
    else:
        _print(lines, shown, answers, MOST_SHOWN if not (everything or do_learn) else len(shown))
        if not known and not do_learn and shown:
            say("nothing is learned yet: run `mltop kernel --learn` while the machines are well")
    return EXIT_UNREACHABLE if answers.unreached or answers.gaps else 0


def live(targets: Targets, options: TargetOptions) -> Answers:
    """Ask every node that can be reached within the timeout."""
    with Machines(targets, options, "kernel") as machines:
        views = machines.await_nodes(Reached())
        reached = [view.node for view in views if view.sample is not None]
        answers = Answers()
        for node, message in machines.ask(OP, reached, ANSWER_S).items():
            _take(answers, node, message)
        views = machines.views()
        answers.nodes, answers.unreached = [view.state for view in views], unreached(views)
        machines.stderr.last_failures(answers.unreached)
    _say_gaps(answers.gaps)
    return answers


def _take(answers: Answers, node: str, message: Message | None) -> None:
    """Note one node's answer, or why there is none."""
    data = message.data if message is not None else {}
    gap = data.get("gap")
    if message is None:
        gap = {"what": OP, "why": f"did not answer within {ANSWER_S:g} s"}
    elif message.kind == "error" and message.error:
        gap = {"what": OP, "why": message.error, "fix": message.fix}
    if isinstance(gap, dict):
        answers.gaps.append({"node": node, **{name: str(gap.get(name, "")) for name in ("what", "why", "fix")}})
    lines = data.get("lines")
    if isinstance(lines, list) and (lines or not gap):
        answers.by_node[node] = [line for line in lines if isinstance(line, dict)]


def _say_gaps(gaps: Sequence[Mapping[str, str]]) -> None:
    """A line for each reason."""
    nodes = defaultdict[tuple[str, str], list[str]](list)
    for gap in gaps:
        nodes[gap["why"], gap["fix"]].append(gap["node"])
    for (why, fix), names in nodes.items():
        say_gap(folded(names), why, fix)


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


def _learn(lines: Sequence[KernelLine], known: Mapping[str, float]) -> None:
    """Learn also what most of the nodes have: alone, a machine has no peers that say so."""
    with usage_problems("kernel lines"):
        learn((line.pattern for line in lines), time.time(), known)
    say(f"learned {sum(not line.known for line in lines)} kinds of lines (in {state_file(KERNEL_LINES)})")


def _print(lines: Sequence[KernelLine], shown: Sequence[KernelLine], answers: Answers, most: int) -> None:
    from rich.console import Console

    from mltop.tui.report.check import print_kernel

    print_kernel(lines, shown, Console(), most=most, nodes=len(answers.by_node), now=time.time())
