"""What the screen needs of the machines: fulfilled by probes.investigate.session, and by fakes in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.reach.view import FleetView

if TYPE_CHECKING:  # not before the first paint
    from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
    from mltop.probes.model.probe import PastResult


class Cancellable(Protocol):
    def cancel(self) -> None:
        """Stop as soon as possible; the callback still gets a last, finished report. Safe to call twice."""


class Session(Protocol):
    """All callbacks come from another thread; no method blocks."""

    title: str  # "this machine", "job 4711", "demo"

    def view(self) -> FleetView:
        """The newest state of every node."""

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """``on_change`` is called after any node changed; call ``view()`` then."""

    def dump_stacks(self, nodes: Sequence[str] | None, on_progress: Callable[[StackProgress], None]) -> Cancellable:
        """Dump all ranks of these nodes (None: all), judge them, report progress until ``finished``."""

    def capture(self, on_done: Callable[[CaptureResult], None]) -> Cancellable:
        """Write a capture directory of everything known, dumping stacks first when there is no recent dump."""

    def close(self) -> None:
        """End every agent and connection; returns within a second."""


@runtime_checkable
class Retries(Protocol):
    """A session that can be told to try nodes again; one without this tries by itself."""

    def retry(self, nodes: Sequence[str] = ()) -> None:
        """Try these lost or refused nodes (none given: all of them) now. May be called from any thread."""


@runtime_checkable
class Probes(Protocol):
    """A session that can put load on its machines; a recording cannot."""

    def run_probe(self, wanted: ProbeWanted, on_progress: Callable[[ProbeProgress], None]) -> Cancellable:
        """Measure, report progress at least once a second until ``finished``. Devices in use are refused."""


@runtime_checkable
class RemembersProbes(Protocol):
    """A session that keeps the results of probes."""

    def past(self) -> Sequence[PastResult]:
        """All of them. May read files: it is called from a thread of its own."""
