"""`mltop doctor`: what works here, what does not, and the command that fixes it."""

from __future__ import annotations

import locale
import os
import shutil
import sys
import time

from mltop.probes.model import SCHEMA, Gap
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets import TargetOptions, resolve
from mltop.tui.commands.live import EXIT_UNREACHABLE, await_complete, await_samples, print_json, session

Check = dict[str, str]
ANSWER_S = 10.0
NVML_START_S = 20.0  # nvmlInit takes seconds on machines without persistence mode


def run(options: TargetOptions, as_json: bool) -> int:
    """Exit 0: nothing is missing; 1: something is; 3: a node did not answer."""
    targets = resolve(options)
    if targets.recording is not None:
        raise UsageProblem("--recording", "doctor looks at machines, not at recordings")
    checks = [{"node": "(this terminal)", **check} for check in terminal_checks()]
    with session(targets, options) as opened:
        missing = await_samples(opened, targets, options.timeout_s)
        await_complete(opened, targets, time.monotonic() + min(options.timeout_s, NVML_START_S))
        pending = opened.hub.request("doctor")
        for answer in pending.answers(ANSWER_S):
            checks += [{"node": answer.node, **check} for check in answer.message.data.get("checks", [])]
        for view in opened.view().nodes:
            if view.sample is not None:
                checks += [nvml_check(view.node, view.sample.gaps, len(view.sample.gpus))]
        nodes = [view.state for view in opened.view().nodes]
    if as_json:
        print_json({"schema": SCHEMA, "nodes": nodes, "checks": checks})
    else:
        from rich.console import Console

        from mltop.tui.report import print_doctor

        print_doctor(checks, Console())
    if missing:
        return EXIT_UNREACHABLE
    return 1 if any(check["state"] == "missing" for check in checks) else 0


def nvml_check(node: str, gaps: list[Gap], gpus: int) -> Check:
    """What NVML itself answered, from the node's first sample."""
    for gap in gaps:
        if gap.what.partition(".")[0] == "nvml":
            state = "warning" if gap.what == "nvml.starting" else "missing"
            return {"node": node, "name": "nvml", "state": state, "why": gap.why, "fix": gap.fix}
    return {"node": node, "name": "nvml", "state": "ok", "why": f"answers for {gpus} GPUs", "fix": ""}


def terminal_checks() -> list[Check]:
    """Of the machine mltop is shown on: terminal, colours, glyphs."""
    size = shutil.get_terminal_size()
    term = os.environ.get("TERM", "")
    encoding = (getattr(sys.__stderr__, "encoding", "") or locale.getpreferredencoding(False)).lower()
    checks: list[Check] = []
    if not sys.stdout.isatty():
        checks.append(check("terminal", "ok", "output is not a terminal: text and --json only"))
    elif term in ("", "dumb", "unknown"):
        checks.append(check("terminal", "warning", f"TERM={term} cannot show the screen", "export TERM=xterm-256color"))
    elif size.columns < 80 or size.lines < 24:
        checks.append(
            check(
                "terminal",
                "warning",
                f"{size.columns}x{size.lines} is small (80x24 holds 8 GPUs)",
                "enlarge it",
            )
        )
    else:
        checks.append(check("terminal", "ok", f"{term}, {size.columns}x{size.lines}"))
    if "utf" in encoding:
        checks.append(check("glyphs", "ok", encoding))
    else:
        checks.append(check("glyphs", "warning", f"{encoding}: ASCII is drawn instead", "export LC_ALL=C.UTF-8"))
    return checks


def check(name: str, state: str, why: str, fix: str = "") -> Check:
    return {"name": name, "state": state, "why": why, "fix": fix}
