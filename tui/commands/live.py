"""What a command says on stderr while it works: one line that is written over, and lines that stay.

What the commands share: opening a session on the targets, waiting for its nodes, printing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from mltop.probes.investigate.patience import FAILED, REACHED, Arrivals, Patience, waited
from mltop.probes.investigate.session import LiveSession
from mltop.probes.judge.nodes import sentences
from mltop.probes.model import JobReport, NodeState
from mltop.probes.reach.targets import TargetOptions, Targets, channels
from mltop.probes.reach.view import NodeView
from mltop.tui.app.output import put_json, say, write_over

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.run import ProbeMemory

# Failures of so long are said together, each time of twice as long: sixty nodes behind one dead switch are one line,
# and a thousand that fail one after the other are a few.
GATHER_S = 0.4


class Beside:
    """The rewritten line is only shown on a terminal; lines that stay always are. Use as a context manager."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False
        self._failed: set[str] = set()  # said already, or about to be
        self._unsaid: list[NodeState] = []
        self._unsaid_since = 0.0
        self._gather_s = GATHER_S

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """In place of what stood there."""
        if self._terminal:
            write_over(text, max(1, columns() - 1))
            self._shown = True

    def note(self, sentence: str) -> None:
        self.clear()
        note(sentence)

    def clear(self) -> None:
        if self._shown:
            write_over("", 0)
            self._shown = False

    def failures(self, views: Iterable[NodeView]) -> None:
        """Say once of every node that it cannot be reached, as soon as that is known, those of one reason together."""
        now = time.monotonic()
        for view in views:
            if view.state.state in FAILED and view.node not in self._failed:
                self._failed.add(view.node)
                self._unsaid_since = self._unsaid_since if self._unsaid else now
                self._unsaid.append(view.state)
        if self._unsaid and now - self._unsaid_since > self._gather_s:
            self._gather_s *= 2
            self._say_failures()

    def last_failures(self, states: Iterable[NodeState]) -> None:
        """At the end: of these nodes, those of which nothing was said yet."""
        unsaid = {state.node for state in self._unsaid}
        self._unsaid = [state for state in states if state.node not in self._failed or state.node in unsaid]
        self._failed.update(state.node for state in self._unsaid)
        self._say_failures()

    def _say_failures(self) -> None:
        for sentence in sentences(self._unsaid):
            self.note(sentence)
        self._unsaid = []


def columns() -> int:
    """Of the terminal that stderr is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def note(sentence: str) -> None:
    """One line beside the data."""
    say(sentence)


EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130
LOOK_S = 0.2  # between two looks at all nodes, when nothing changes
SOONEST_S = 0.03  # likewise, when much does
SETTLE_S = 2.0
SOON = ("gpu.", "kernel_log", "host.filesystems", "host.services")  # other rates may need many seconds
FOREVER = float("inf")
# Whoever may still come is waited for; a node that failed gets one more attempt after all others are done.
ALL_NODES = Patience(connecting_s=FOREVER, lost_s=3.0, live_s=FOREVER)


@contextmanager
def session(targets: Targets, options: TargetOptions, memory: ProbeMemory | None = None) -> Iterator[LiveSession]:
    """A session on live machines; its agents are ended on the way out. ``memory``: of probe results."""
    opened = LiveSession(
        targets.title, channels(targets, options), options.interval_s, verdict_text, targets.job or None, memory=memory
    )
    try:
        yield opened
    finally:
        opened.close()


def await_nodes(
    opened: LiveSession, ready: Callable[[NodeView], bool], deadline: float, beside: Beside, what: str
) -> tuple[NodeView, ...]:
    """Wait until every node is ``ready`` or not worth waiting for, at most until ``deadline`` (monotonic s).

    Returns all nodes as they are then. ``what`` is being done with them, for the progress line.
    """
    changed = threading.Event()
    opened.subscribe(changed.set)
    arrivals = Arrivals(time.monotonic())
    done: set[str] = set()
    while True:
        now = time.monotonic()
        views = opened.view().nodes
        arrivals.look(views, now)
        beside.failures(views)
        before = len(done)
        done = {view.node for view in views if ready(view)}
        arrivals.news_at = now if len(done) != before else arrivals.news_at
        waiting = arrivals.awaited(views, done, now, ALL_NODES)
        if not waiting or now >= deadline:
            beside.clear()
            return views
        beside.show(f"{what}: {len(done)} of {len(views)} nodes, {waiting_text(waiting)}")
        changed.wait(min(LOOK_S, deadline - now))
        time.sleep(SOONEST_S)
        changed.clear()


def in_time(view: NodeView, waited_s: float) -> NodeView:
    """At the end of the command: one that still connects was not reached, and what it waits for is the reason."""
    state = view.state
    if state.state != "connecting":
        return view
    step = f" ({state.reason})" if state.reason else ""
    return replace(view, state=replace(state, reason=f"not reached within {waited(waited_s)}{step}"))


def waiting_text(views: list[NodeView]) -> str:
    """ "waiting for h03 (connecting) and 2 more"."""
    more = f" and {len(views) - 1} more" if len(views) > 1 else ""
    return f"waiting for {views[0].node} ({views[0].state.state}){more}"


class Complete:
    """Whether a node has said all that a single look needs: NVML is up, and a second sample, for rates.

    What else comes with a later sample (activity, a long kernel log) is waited for two seconds.
    """

    def __init__(self, nvml_deadline: float) -> None:
        self._nvml_deadline = nvml_deadline  # monotonic s: from here on it counts as never starting
        self._first_at: dict[str, float] = {}
        self._settled_by: dict[str, float] = {}

    def __call__(self, view: NodeView) -> bool:
        sample = view.sample
        if sample is None or view.state.state not in REACHED:
            return False
        now = time.monotonic()
        first_at = self._first_at.setdefault(view.node, sample.sampled_at)
        starting = any(gap.kind == "starting" and gap.what.startswith(SOON) for gap in sample.gaps)
        if any(gap.what == "nvml.starting" for gap in sample.gaps):
            return now > self._nvml_deadline and sample.sampled_at > first_at
        settled_by = self._settled_by.setdefault(view.node, now + SETTLE_S)
        return sample.sampled_at > first_at and (not starting or now > settled_by)


def unreached(views: tuple[NodeView, ...]) -> list[NodeState]:
    """The nodes that have not said anything yet."""
    return [view.state for view in views if view.sample is None]


def verdict_text(reports: list[JobReport]) -> str:
    """The reports as plain text, as `mltop stacks` prints them."""
    from io import StringIO

    from rich.console import Console

    from mltop.tui.report import print_reports

    text = StringIO()
    print_reports(reports, [], Console(file=text, width=110, color_system=None, force_terminal=False))
    return text.getvalue()


def print_json(value: object) -> None:
    put_json(value)
