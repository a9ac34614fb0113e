"""A live session with the machines: what the screen and the commands talk to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mltop.probes.investigate.capture import default_directory, write_capture
from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.investigate.stacks import StackRequest, StackRun
from mltop.probes.model import JobReport
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.view import FleetView

RECENT_DUMP_S = 60.0  # a capture uses the last dump when it is not older

Describe = Callable[[list[JobReport]], str]


class CaptureRun:
    """A running capture; ``cancel`` ends its dump, what is known is still written."""

    def __init__(self) -> None:
        self._stacks: StackRun | None = None
        self._cancelled = threading.Event()

    def follow(self, stacks: StackRun) -> None:
        """This capture waits for ``stacks``: cancelling the one cancels the other, also when that came first."""
        self._stacks = stacks
        if self._cancelled.is_set():
            stacks.cancel()

    def cancel(self) -> None:
        self._cancelled.set()
        if self._stacks is not None:
            self._stacks.cancel()


class LiveSession:
    """Owns the hub. ``describe`` makes the text of a capture's verdict.txt; ``job`` keeps dumps to one job."""

    def __init__(
        self,
        title: str,
        channels: Sequence[Channel],
        interval_s: float,
        describe: Describe,
        job: str | None = None,
    ) -> None:
        self.title = title
        self._job = job
        self.hub = Hub(channels, interval_s)
        self._describe = describe
        self._last: StackRun | None = None
        self._last_at = 0.0
        self.hub.start()

    def view(self) -> FleetView:
        return self.hub.view()

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self.hub.subscribe(on_change)

    def dump_stacks(
        self,
        nodes: Sequence[str] | None,
        on_progress: Callable[[StackProgress], None],
        request: StackRequest | None = None,
    ) -> StackRun:
        wanted = request or StackRequest(nodes=tuple(nodes or ()), job=self._job, raw=True)
        return StackRun(self.hub, wanted, on_progress, self._keep).start()

    def capture(self, on_done: Callable[[CaptureResult], None], directory: Path | None = None) -> CaptureRun:
        run = CaptureRun()
        threading.Thread(
            target=self._capture, args=(run, on_done, directory), name="mltop-capture", daemon=True
        ).start()
        return run

    def close(self) -> None:
        self.hub.close()

    def _keep(self, run: StackRun) -> None:
        """A finished dump is what the next capture saves."""
        self._last, self._last_at = run, time.monotonic()

    def _capture(
        self,
        run: CaptureRun,
        on_done: Callable[[CaptureResult], None],
        directory: Path | None,
    ) -> None:
        target = directory or default_directory(time.time())
        try:
            stacks = self._recent_dump()
            if stacks is None:
                stacks = StackRun(self.hub, StackRequest(job=self._job, raw=True), lambda _: None, self._keep)
                run.follow(stacks)
                stacks.start().wait()
            problems = write_capture(target, stacks.material, stacks.reports, self._describe(stacks.reports))
        except OSError as error:
            on_done(CaptureResult(target, error=f"cannot write {error.filename or target}: {error.strerror}"))
        except Exception as error:  # noqa: BLE001 - a thread of its own: the caller must hear of it
            on_done(CaptureResult(target, error=f"the capture failed: {type(error).__name__}: {error}"))
        else:
            on_done(CaptureResult(target, tuple(problems)))

    def _recent_dump(self) -> StackRun | None:
        return self._last if self._last and time.monotonic() - self._last_at < RECENT_DUMP_S else None
