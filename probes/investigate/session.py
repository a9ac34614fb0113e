"""A live session with the machines: what the screen and the commands talk to."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.investigate.stacks import StackRequest, StackRun
from mltop.probes.model import Sample
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.view import FleetView

if TYPE_CHECKING:  # a capture's and a probe's modules are imported when they begin: they would delay the first paint
    from mltop.probes.investigate.capture import Describe
    from mltop.probes.investigate.probing.run import ProbeMemory, ProbeRun
    from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
    from mltop.probes.model.probe import PastResult
    from mltop.probes.record import CaptureWriter

RECENT_DUMP_S = 60.0  # a capture uses the last dump when it is not older
CLOSE_CAPTURE_S = 0.7  # at exit: for a running capture to write what it has
WRITE_SHARE = 0.1  # of a dump's time at most goes into writing rounds to disk: the next round waits for it
# Samples and dumps hold no cycles. Looking for some after every 700 new objects, as is the default, doubles the CPU
# time of a dump of 4,096 ranks.
COLLECT_AFTER = (100_000, 50, 100)


class CaptureRun:
    """A running capture in a daemon thread; ``cancel`` ends its dump, what is known is still written."""

    def __init__(self) -> None:
        self._stacks: StackRun | None = None
        self._cancelled = threading.Event()
        self.finished = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

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
    """Owns the hub. ``describe`` makes the text of a capture's verdict.txt; ``job`` keeps dumps to one job.

    ``memory``: where results of probes are kept from one session to the next, None: nowhere.
    """

    def __init__(
        self,
        title: str,
        channels: Sequence[Channel],
        interval_s: float,
        describe: Describe,
        job: str | None = None,
        *,
        memory: ProbeMemory | None = None,
    ) -> None:
        self.title = title
        self._memory = memory
        self._job = job
        self.hub = Hub(channels, interval_s)
        self._describe = describe
        gc.set_threshold(*COLLECT_AFTER)
        self._last: StackRun | None = None
        self._last_at = 0.0
        self._capturing: CaptureRun | None = None
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

    def capture(
        self,
        on_done: Callable[[CaptureResult], None],
        directory: Path | None = None,
        deadline_s: float = 30.0,
        on_progress: Callable[[StackProgress], None] = lambda _: None,
    ) -> CaptureRun:
        """``on_progress`` hears of the dump that it begins with."""
        run = self._capturing = CaptureRun()
        threading.Thread(
            target=self._capture,
            args=(run, on_done, directory, deadline_s, on_progress),
            name="mltop-capture",
            daemon=True,
        ).start()
        return run

    def run_probe(self, wanted: ProbeWanted, on_progress: Callable[[ProbeProgress], None]) -> ProbeRun:
        """Put load on the machines and judge what they give; progress is reported until ``finished``."""
        from mltop.probes.investigate.probing.run import ProbeRun

        return ProbeRun(self.hub, wanted, on_progress, self._memory).start()

    def past(self) -> Sequence[PastResult]:
        """Results of earlier probes, () where none are remembered. Reads a file: not for the screen's loop."""
        return self._memory.past() if self._memory is not None else ()

    def retry(self, nodes: Sequence[str] = ()) -> None:
        """Try these lost or refused nodes (none given: all of them) again now."""
        self.hub.retry(nodes)

    def close(self) -> None:
        if self._capturing is not None and not self._capturing.finished.is_set():
            self._capturing.cancel()
            self._capturing.finished.wait(CLOSE_CAPTURE_S)
        self.hub.close()

    def _keep(self, run: StackRun) -> None:
        """The newest dump is what the next capture saves."""
        self._last, self._last_at = run, time.monotonic()

    def _capture(
        self,
        run: CaptureRun,
        on_done: Callable[[CaptureResult], None],
        directory: Path | None,
        deadline_s: float,
        on_progress: Callable[[StackProgress], None],
    ) -> None:
        # Here, not in the caller's thread: looking at a directory on a dead file server may never return.
        try:
            result = self._write(run, directory, deadline_s, on_progress)
        except OSError as error:
            why = f"cannot write {error.filename or 'the capture'}: {error.strerror}"
            result = CaptureResult(directory or Path(), error=why)
        except Exception as error:  # noqa: BLE001 - a thread of its own: the caller must hear of it
            why = f"the capture failed: {type(error).__name__}: {error}"
            result = CaptureResult(directory or Path(), error=why)
        run.finished.set()
        on_done(result)

    def _write(
        self, run: CaptureRun, directory: Path | None, deadline_s: float, on_progress: Callable[[StackProgress], None]
    ) -> CaptureResult:
        """The directory first, so that one that cannot be written is known at once; then round by round."""
        from mltop.probes.investigate.capture import begin, finish_capture

        writer = begin(directory, time.time())
        stacks = self._recent_dump()
        if stacks is None:
            request = StackRequest(job=self._job, raw=True, deadline_s=deadline_s)
            stacks = StackRun(self.hub, request, on_progress, _Rounds(writer).write)
            run.follow(stacks)
            stacks.start()
            for node, samples in self._samples():
                if samples:
                    writer.add_samples(node, samples)
            stacks.wait()
            self._keep(stacks)
            if stacks.error:
                writer.problem(stacks.error)
            if stacks.cancelled:
                writer.problem(f"interrupted in round {stacks.rounds_done} of the dump")
        # What came later than the dump did not go into its verdict.
        whole = self._samples(until=stacks.history_until or math.inf)
        finish_capture(writer, stacks.material, stacks.reports, self._describe, whole)
        return CaptureResult(writer.directory, tuple(writer.problems), cancelled=run.cancelled)

    def _samples(self, until: float = math.inf) -> Iterator[tuple[str, list[Sample]]]:
        for view in self.view().nodes:
            yield view.node, self.hub.history(view.node, until=until)

    def _recent_dump(self) -> StackRun | None:
        last = self._last
        if last is None or last.cancelled or not last.wait(0.0) or time.monotonic() - self._last_at > RECENT_DUMP_S:
            return None
        return last


class _Rounds:
    """Writes a running dump to disk round by round: the first one always, later ones when it costs little."""

    def __init__(self, writer: CaptureWriter) -> None:
        self._writer = writer
        self._wrote_at = self._took_s = 0.0

    def write(self, stacks: StackRun) -> None:
        from mltop.probes.investigate.capture import write_round

        began = time.monotonic()
        if began - self._wrote_at < self._took_s / WRITE_SHARE:
            return
        write_round(self._writer, stacks.material)
        self._wrote_at = time.monotonic()
        self._took_s = self._wrote_at - began
