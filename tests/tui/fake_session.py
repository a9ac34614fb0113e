"""A LiveSession with scripted views and dumps, for the screen's tests: nothing of the screen itself is faked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mltop.probes.investigate.acting import RankProcess
from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.model.acts import LogTail
from mltop.probes.model.probe import PastResult
from mltop.probes.reach.view import FleetView, NodeView, Received
from tests.tui.fake_reports import dump_script
from tests.tui.fake_views import one_node

GPU_NODE_SCRIPT = tuple(one_node(tick) for tick in range(30))


def received(view: FleetView) -> FleetView:
    """As the hub hands it out."""
    return replace(view, nodes=tuple(map(_received, view.nodes)))


def _received(node: NodeView) -> NodeView:
    sample = node.sample
    if sample is None:
        return node
    return replace(node, newest=Received(sample))


class FakeDump:
    """One running dump: ``advance()`` reports the next scripted progress from another thread."""

    def __init__(self, script: Sequence[StackProgress], on_progress: Callable[[StackProgress], None]) -> None:
        self.cancelled = False
        self._script = list(script)
        self._on_progress = on_progress
        self._last = StackProgress(phase="dumping")

    def advance(self) -> None:
        self._last = self._script.pop(0)
        _in_thread(lambda: self._on_progress(self._last))

    def finish(self) -> None:
        while self._script:
            self.advance()

    def cancel(self) -> None:
        if self.cancelled or self._last.finished:
            return
        self.cancelled = True
        self._script.clear()
        last = StackProgress(phase="cancelled", elapsed_s=self._last.elapsed_s, reports=self._last.reports)
        threading.Thread(target=self._on_progress, args=(last,), daemon=True).start()


class FakeCapture:
    def __init__(self, on_done: Callable[[CaptureResult], None]) -> None:
        self.cancelled = False
        self._on_done = on_done

    def finish(self, result: CaptureResult) -> None:
        _in_thread(lambda: self._on_done(result))

    def cancel(self) -> None:
        self.cancelled = True


class FakeSession:
    """``step()`` goes to the next scripted view; ``dumps`` and ``captures``: what the screen started."""

    job: str | None = None

    def __init__(
        self,
        views: Sequence[FleetView] = GPU_NODE_SCRIPT,
        script: Sequence[StackProgress] | None = None,
        title: str = "this machine",
        close_blocks: threading.Event | None = None,
    ) -> None:
        self.title = title
        self.dumps: list[FakeDump] = []
        self.dumped_nodes: list[Sequence[str] | None] = []
        self.captures: list[FakeCapture] = []
        self.captured_to: list[tuple[Path | None, int]] = []
        self.closed = threading.Event()
        self._views = list(views)
        self._received: dict[int, FleetView] = {}
        self._at = 0
        self._script = list(dump_script() if script is None else script)
        self._on_change: list[Callable[[], None]] = []
        self._close_blocks = close_blocks

    def view(self) -> FleetView:
        if self._at not in self._received:
            self._received[self._at] = received(self._views[self._at])
        return self._received[self._at]

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._on_change.append(on_change)

    def step(self, count: int = 1) -> FleetView:
        for _ in range(count):
            self._at = min(self._at + 1, len(self._views) - 1)
            for on_change in self._on_change:
                _in_thread(on_change)
        return self.view()

    def dump_stacks(self, nodes: Sequence[str] | None, on_progress: Callable[[StackProgress], None]) -> FakeDump:
        self.dumped_nodes.append(nodes)
        self.dumps.append(FakeDump(self._script, on_progress))
        return self.dumps[-1]

    def capture(
        self, on_done: Callable[[CaptureResult], None], *, parent: Path | None = None, least_free_bytes: int = 0
    ) -> FakeCapture:
        self.captured_to.append((parent, least_free_bytes))
        self.captures.append(FakeCapture(on_done))
        return self.captures[-1]

    def watch(self, nodes: Sequence[str]) -> None:
        """All samples are whole."""

    def log_tail(self, process: RankProcess, lines: int, on_done: Callable[[list[LogTail], str], None]) -> None:
        """No answer comes."""

    def past(self) -> Sequence[PastResult]:
        return ()

    def close(self) -> None:
        if self._close_blocks is not None:
            self._close_blocks.wait(30)
        self.closed.set()


def captured(path: str = "/home/ada/.local/share/mltop/captures/2025-11-20T12-00-00") -> CaptureResult:
    return CaptureResult(directory=Path(path))


def _in_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(5)
