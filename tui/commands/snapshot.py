"""`mltop snapshot`: one sample of everything, with what the health rules say."""

from __future__ import annotations

import time
from dataclasses import replace

from mltop.probes.investigate.capture import load
from mltop.probes.judge.health import evaluate
from mltop.probes.model import SCHEMA, NodeState, Sample
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, Targets, resolve
from mltop.probes.record import BadRecording
from mltop.tui.commands.live import (
    EXIT_UNREACHABLE,
    Beside,
    Complete,
    await_nodes,
    in_time,
    note,
    print_json,
    session,
    unreached,
)

FIRST_LOOK_S = 0.5  # between the two samples that rates are made of


def run(options: TargetOptions, as_json: bool) -> int:
    """Exit 0: every node answered; 3: some did not."""
    targets = resolve(options)
    if targets.recording is not None:
        nodes, samples = recorded(targets)
    else:
        nodes, samples = live(targets, options)
    findings = evaluate(samples)
    if as_json:
        print_json({"schema": SCHEMA, "nodes": nodes, "samples": samples, "findings": findings})
    else:
        from rich.console import Console

        from mltop.tui.report import print_snapshot

        print_snapshot(samples, findings, nodes, Console())
    return 0 if samples and len(samples) == len(nodes) else EXIT_UNREACHABLE


def live(targets: Targets, options: TargetOptions) -> tuple[list[NodeState], list[Sample]]:
    began = time.monotonic()
    deadline = began + options.timeout_s
    quick = replace(options, interval_s=min(options.interval_s, FIRST_LOOK_S))
    with session(targets, quick) as opened, Beside() as beside:
        views = await_nodes(opened, Complete(deadline), deadline, beside, "samples")
        views = tuple(in_time(view, time.monotonic() - began) for view in views)
        beside.last_failures(unreached(views))
    return [view.state for view in views], [view.sample for view in views if view.sample is not None]


def recorded(targets: Targets) -> tuple[list[NodeState], list[Sample]]:
    """The last sample of every node of a capture or recording."""
    assert targets.recording is not None
    try:
        saved = load(targets.recording)
    except BadRecording as error:
        raise UsageProblem("--recording", str(error)) from None
    for gap in saved.gaps:
        note(f"{gap.what}: {gap.why}")
    if not saved.samples:
        note(f"{targets.recording}: no samples in it")
    return saved.nodes, saved.newest
