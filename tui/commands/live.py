"""What the commands share: opening a session on the targets, waiting for samples, printing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mltop.probes.investigate.session import LiveSession
from mltop.probes.investigate.stacks import first_samples
from mltop.probes.model import JobReport, NodeState, to_json
from mltop.probes.reach.targets import TargetOptions, Targets, channels

EXIT_UNREACHABLE = 3
RATE_SAMPLES = 2  # rates (CPU share, network) need two


@contextmanager
def session(targets: Targets, options: TargetOptions) -> Iterator[LiveSession]:
    """A session on live machines; its agents are ended on the way out."""
    opened = LiveSession(
        targets.title, channels(targets, options), options.interval_s, verdict_text, targets.job or None
    )
    try:
        yield opened
    finally:
        opened.close()


def await_samples(opened: LiveSession, targets: Targets, timeout_s: float) -> list[NodeState]:
    """Wait for a first sample of every node; says on stderr which have none and returns them."""
    missing = first_samples(opened.hub, targets.nodes, timeout_s)
    for state in missing:
        note(f"{state.node}: {state.reason or state.state}")
    return missing


def await_complete(opened: LiveSession, targets: Targets, deadline: float) -> None:
    """Wait for rates and for NVML, which may take seconds to load, but never past the deadline."""
    changed = threading.Event()
    opened.subscribe(changed.set)
    while not all(is_complete(opened, node) for node in targets.nodes) and time.monotonic() < deadline:
        changed.wait(0.2)
        changed.clear()


def is_complete(opened: LiveSession, node: str) -> bool:
    view = opened.hub.node(node)
    if view.sample is None:
        return view.state.state in ("lost", "refused")
    starting = any(gap.what == "nvml.starting" for gap in view.sample.gaps)
    return not starting and len(opened.hub.history(node)) >= RATE_SAMPLES


def verdict_text(reports: list[JobReport]) -> str:
    """The reports as plain text, as `mltop stacks` prints them."""
    from io import StringIO

    from rich.console import Console

    from mltop.tui.report import print_reports

    text = StringIO()
    print_reports(reports, [], Console(file=text, width=110, color_system=None, force_terminal=False))
    return text.getvalue()


def print_json(value: object) -> None:
    sys.stdout.write(to_json(value) + "\n")


def note(sentence: str) -> None:
    """One line beside the data."""
    print(f"mltop: {sentence}", file=sys.stderr)  # noqa: T201 - data is on stdout, everything else here
