"""A live session with the machines: what the screen and the commands talk to."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mltop.probes.investigate.progress import CaptureResult, End, Run, StackProgress
from mltop.probes.investigate.stacks import StackRequest, StackRun
from mltop.probes.model import Sample
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub

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
        self.hub = Hub(channels, interval_s)
        self.view, self.subscribe, self.retry = self.hub.view, self.hub.subscribe, self.hub.retry
        self.describe, self.job = describe, job
        self._memory = memory
        gc.set_threshold(*COLLECT_AFTER)
        self._newest_dump: StackRun | None = None
        self._dumped_at = 0.0
        self._capture: CaptureRun | None = None
        self.hub.start()

    def dump_stacks(
        self,
        nodes: Sequence[str] | None,
        on_progress: Callable[[StackProgress], None],
        request: StackRequest | None = None,
    ) -> StackRun:
        """Dump all ranks of these nodes (none given: all) and judge them; progress is reported until ``finished``."""
        request = request or StackRequest(nodes=tuple(nodes or ()), job=self.job, raw=True)
        return StackRun(self.hub, request, on_progress, self.keep_dump).start()

    def keep_dump(self, dump: StackRun) -> None:
        """The newest dump is what the next capture saves."""
        self._newest_dump, self._dumped_at = dump, time.monotonic()

    def recent_dump(self) -> StackRun | None:
        """The newest dump when it is finished, whole and not older than RECENT_DUMP_S."""
        dump = self._newest_dump
        if dump is None or dump.cancelled or not dump.wait(0.0) or time.monotonic() - self._dumped_at > RECENT_DUMP_S:
            return None
        return dump

    def capture(
        self,
        on_done: Callable[[CaptureResult], None],
        directory: Path | None = None,
        deadline_s: float = 30.0,
        on_progress: Callable[[StackProgress], None] = lambda _: None,
    ) -> CaptureRun:
        """Write a capture; ``on_progress`` hears of the dump that it begins with."""
        self._capture = CaptureRun(self, on_done, directory, deadline_s, on_progress)
        return self._capture.start()

    def run_probe(self, wanted: ProbeWanted, on_progress: Callable[[ProbeProgress], None]) -> ProbeRun:
        """Put load on the machines and judge what they give; progress is reported until ``finished``."""
        from mltop.probes.investigate.probing.run import ProbeRun

        return ProbeRun(self.hub, wanted, on_progress, self._memory).start()

    def past(self) -> Sequence[PastResult]:
        """Results of earlier probes, () where none are remembered. Reads a file: not for the screen's loop."""
        return self._memory.past() if self._memory is not None else ()

    def close(self) -> None:
        if self._capture is not None and not self._capture.wait(0.0):
            self._capture.cancel()
            self._capture.wait(CLOSE_CAPTURE_S)
        self.hub.close()


class CaptureRun(Run):
    """A running capture; ``cancel`` ends its dump, what is known is still written."""

    name = "capture"

    def __init__(
        self,
        session: LiveSession,
        on_done: Callable[[CaptureResult], None],
        directory: Path | None,
        deadline_s: float,
        on_progress: Callable[[StackProgress], None],
    ) -> None:
        super().__init__(deadline_s)
        self._session, self._directory = session, directory
        self._on_done, self._on_progress = on_done, on_progress
        self._dump: StackRun | None = None
        self._result: CaptureResult | None = None
        self._wrote_at = self._took_s = 0.0

    def cancel(self) -> None:
        super().cancel()
        if self._dump is not None:
            self._dump.cancel()

    def _work(self) -> None:
        # Here, not in the caller's thread: looking at a directory on a dead file server may never return.
        try:
            self._result = self._write()
        except OSError as error:
            self.error = f"cannot write {error.filename or 'the capture'}: {error.strerror}"

    def _tell_end(self, end: End) -> None:  # noqa: ARG002 - the result says it
        self._on_done(self._result or CaptureResult(self._directory or Path(), error=self.error))

    def _write(self) -> CaptureResult:
        """The directory first, so that one that cannot be written is known at once; then round by round."""
        from mltop.probes.investigate.capture import begin, finish_capture

        writer = begin(self._directory, time.time())
        dump = self._session.recent_dump()
        if dump is None:
            dump = self._dumped(writer)
        # What came later than the dump did not go into its verdict.
        samples = self._samples(until=dump.history_until or math.inf)
        finish_capture(writer, dump.material, dump.reports, self._session.describe, samples)
        return CaptureResult(writer.directory, tuple(writer.problems), cancelled=self.cancelled)

    def _dumped(self, writer: CaptureWriter) -> StackRun:
        """A dump, with the samples written while it runs."""
        session = self._session
        request = StackRequest(job=session.job, raw=True, deadline_s=self._stop.deadline_s)
        dump = self._dump = StackRun(session.hub, request, self._on_progress, partial(self._write_round, writer))
        if self.cancelled:
            dump.cancel()
        dump.start()
        for node, samples in self._samples():
            if samples:
                writer.add_samples(node, samples)
        dump.wait()
        session.keep_dump(dump)
        if dump.error:
            writer.problem(dump.error)
        if dump.cancelled:
            writer.problem(f"interrupted in round {dump.rounds_done} of the dump")
        return dump

    def _write_round(self, writer: CaptureWriter, dump: StackRun) -> None:
        """The first round always, later ones when writing costs little."""
        from mltop.probes.investigate.capture import write_round

        began = time.monotonic()
        if began - self._wrote_at >= self._took_s / WRITE_SHARE:
            write_round(writer, dump.material)
            self._wrote_at = time.monotonic()
            self._took_s = self._wrote_at - began

    def _samples(self, until: float = math.inf) -> Iterator[tuple[str, list[Sample]]]:
        for view in self._session.view().nodes:
            yield view.node, self._session.hub.history(view.node, until=until)
