"""`mltop doctor`: what works here and on every node, what does not, and the command that fixes it."""

from __future__ import annotations

import time

from mltop.probes.investigate.session import LiveSession
from mltop.probes.model import SCHEMA
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets import TargetOptions, Targets, resolve
from mltop.probes.reach.view import NodeView
from mltop.tui.commands.beside import Beside
from mltop.tui.commands.live import EXIT_UNREACHABLE, Complete, await_nodes, in_time, print_json, session, unreached
from mltop.tui.commands.local_checks import local_checks
from mltop.tui.commands.node_checks import Check, checks_of, node_checks

ANSWER_S = 10.0  # a node that was reached answers at once, unless its disks hang
NVML_START_S = 20.0  # nvmlInit takes seconds on machines without persistence mode
HERE = "(this machine)"


def run(options: TargetOptions, as_json: bool) -> int:
    """Exit 0: nothing is missing; 1: something is; 3: a node did not answer."""
    targets = resolve(options)
    if targets.recording is not None:
        raise UsageProblem("--recording", "doctor looks at machines, not at recordings")
    views, checks = live(targets, options)
    via = {route.via for route in targets.routes}
    checks = [{"node": HERE, **check} for check in local_checks(via)] + checks
    if as_json:
        print_json({"schema": SCHEMA, "nodes": [view.state for view in views], "checks": checks})
    else:
        from rich.console import Console

        from mltop.tui.report import print_doctor

        print_doctor(checks, Console())
    if unreached(views):
        return EXIT_UNREACHABLE
    return 1 if any(check["state"] == "missing" for check in checks) else 0


def live(targets: Targets, options: TargetOptions) -> tuple[tuple[NodeView, ...], list[Check]]:
    began = time.monotonic()
    deadline = began + options.timeout_s
    with session(targets, options) as opened, Beside() as beside:
        nvml_deadline = began + min(options.timeout_s, NVML_START_S)
        views = await_nodes(opened, Complete(nvml_deadline), deadline, beside, "doctor")
        answers = ask(opened, [view.node for view in views if view.sample is not None], beside)
        views = tuple(in_time(view, time.monotonic() - began) for view in opened.view().nodes)
    return views, [{"node": view.node, **check} for view in views for check in node_checks(view, answers)]


def ask(opened: LiveSession, nodes: list[str], beside: Beside) -> dict[str, list[Check] | str]:
    """What each node's agent found itself; a sentence where it did not answer."""
    found: dict[str, list[Check] | str] = dict.fromkeys(nodes, f"did not answer within {ANSWER_S:g} s")
    if not nodes:
        return found
    until = time.monotonic() + ANSWER_S
    pending = opened.hub.request("doctor", nodes=nodes)
    open_nodes = set(nodes)
    while open_nodes and time.monotonic() < until:
        beside.show(f"doctor: {len(nodes) - len(open_nodes)} of {len(nodes)} nodes have answered")
        for answer in pending.answers(min(0.2, max(0.0, until - time.monotonic()))):
            message = answer.message
            if message.kind in ("done", "error"):
                open_nodes.discard(answer.node)
                found[answer.node] = checks_of(message.data) if message.kind == "done" else message.error
    return found
