"""A live session with the machines: what the screen and the commands talk to."""

from __future__ import annotations

import errno
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mltop.probes.investigate.history import Histories
from mltop.probes.investigate.progress import CaptureResult, End, Run, StackProgress
from mltop.probes.judge.values import call_between_slices
from mltop.probes.model import Sample
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.pacing import Limits

if TYPE_CHECKING:  # modules of dumps, captures and probes delay the first paint: imported when they begin
    from mltop.probes.investigate.acting import Facts, RankProcess, Results
    from mltop.probes.investigate.capture import Describe
    from mltop.probes.investigate.probing.run import ProbeMemory, ProbeRun
    from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
    from mltop.probes.investigate.ras import RasDesk, RasPlan, RasTold
    from mltop.probes.investigate.stacks import StackRequest, StackRun
    from mltop.probes.model import JobKey, JobMotion, JobReport, RankStacks
    from mltop.probes.model.acts import DiagResult, LogTail, SignalName
    from mltop.probes.model.incident import Incident
    from mltop.probes.model.probe import PastResult
    from mltop.probes.record import CaptureWriter

AFTER_LOGIN_S = 8.0  # of the time that the user gives: for the agent's first samples, or to say what is wrong
RECENT_DUMP_S = 60.0  # a capture uses the last dump when it is not older
LEAVING_S = 0.1  # at exit: for agents to end by themselves, before they are killed
CLOSE_CAPTURE_S = 3.0  # likewise: for a running capture to write what it has
HISTORIES_S = 8.0  # for what nodes have kept of the last minutes
PAUSE_S = 0.001  # between two slices of what is judged: for the one that draws
WRITE_SHARE = 0.1  # of a dump's time at most goes into writing rounds to disk: the next round waits for it
# Samples and dumps hold no cycles, but Textual's strips do, and they live for seconds: what is new is looked at twice.
# Looking among all objects, as is the default, doubles the CPU time of a dump of 4,096 ranks and halts every thread for
# seconds; who watches for hours does it now and then (``Feed``).
COLLECT_AFTER = (2_000, 80, 1_000_000_000)


class LiveSession:
    """Owns the hub. ``describe`` makes the text of a capture's verdict.txt; ``job`` keeps dumps to one job.

    ``memory``: where results of probes are kept from one session to the next, None: nowhere; ``timeout_s``: that the
    user has: a login may take nearly as long.
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
        timeout_s: float = 0.0,
    ) -> None:
        self.title = title
        self.hub = Hub(channels, interval_s, Limits(hello_s=max(Limits.hello_s, timeout_s - AFTER_LOGIN_S)))
        self.view, self.subscribe = self.hub.view, self.hub.subscribe
        self.retry, self.watch = self.hub.retry, self.hub.watch
        self.describe, self.job = describe, job
        self._memory = memory
        # What who watches for longer makes of stacks, and how the jobs get on; from any thread.
        self.joined_with: Callable[[Sequence[JobReport]], Sequence[Incident]] = lambda _: ()
        self.motions: Callable[[], Sequence[JobMotion]] = lambda: ()
        gc.set_threshold(*COLLECT_AFTER)
        call_between_slices(partial(time.sleep, PAUSE_S))
        self._ras: RasDesk | None = None  # once somebody has looked there
        self._newest_dump: StackRun | None = None
        self._dumped_at = 0.0
        self._capture: CaptureRun | None = None
        self.captured_at_close: CaptureResult | None = None  # of a capture that ran when the session was closed
        self._closing = False
        self.hub.start()

    def dump_stacks(
        self,
        nodes: Sequence[str] | None,
        on_progress: Callable[[StackProgress], None],
        request: StackRequest | None = None,
    ) -> StackRun:
        """Dump all ranks of these nodes (none given: all) and judge them; progress is reported until ``finished``."""
        from mltop.probes.investigate.stacks import StackRequest, StackRun

        request = request or StackRequest(nodes=tuple(nodes or ()), job=self.job, raw=True, rhythms=self.rhythms())

        def tell(progress: StackProgress) -> None:
            on_progress(replace(progress, reports=tuple(self.with_ras(progress.reports))))

        return StackRun(self.hub, request, tell, self.keep_dump).start()

    def rhythms(self) -> dict[JobKey, float]:
        """How long a step of each job takes, in seconds, where that is known."""
        motions = ((motion.job_key, motion.rhythm) for motion in self.motions())
        return {key: rhythm.step_s for key, rhythm in motions if rhythm is not None}

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
        *,
        parent: Path | None = None,
        packed: bool = False,
        least_free_bytes: int = 0,
    ) -> CaptureRun:
        """Write a capture; ``on_progress`` hears of the dump that it begins with.

        ``directory``: a new folder, or a .tar.gz; None: a name that is free, in ``parent``. ``packed``: as one file.
        ``least_free_bytes``: with less room in ``parent`` none begins.
        """
        place = Place(directory, parent, packed, least_free_bytes)
        self._capture = CaptureRun(self, on_done, place, deadline_s, on_progress)
        return self._capture.start()

    def run_probe(self, wanted: ProbeWanted, on_progress: Callable[[ProbeProgress], None]) -> ProbeRun:
        """Put load on the machines and judge what they give; progress is reported until ``finished``."""
        from mltop.probes.investigate.probing.run import ProbeRun

        return ProbeRun(self.hub, wanted, on_progress, self._memory).start()

    def signal_facts(self, processes: Sequence[RankProcess], on_done: Callable[[Facts], None]) -> Run:
        """Ask what these ranks would do with signals."""
        from mltop.probes.investigate import acting

        return acting.signal_facts(self.hub, processes, on_done).start()

    def send_signal(
        self, signal: SignalName, processes: Sequence[RankProcess], on_done: Callable[[Results], None]
    ) -> Run:
        """Send one to these ranks; ``on_done`` gets a result for each of them."""
        from mltop.probes.investigate import acting

        return acting.send_signal(self.hub, signal, processes, on_done).start()

    def dump_native(self, process: RankProcess, on_done: Callable[[RankStacks | None, str], None]) -> Run:
        """One dump of this rank with the frames of C."""
        from mltop.probes.investigate import acting

        return acting.dump_native(self.hub, process, on_done).start()

    def log_tail(self, process: RankProcess, lines: int, on_done: Callable[[list[LogTail], str], None]) -> Run:
        """The last lines that this rank has written."""
        from mltop.probes.investigate import acting

        return acting.log_tail(self.hub, process, lines, on_done).start()

    def diagnose(self, node: str, on_done: Callable[[list[DiagResult], str], None]) -> Run:
        """Run `dcgmi diag -r 1` there."""
        from mltop.probes.investigate import acting

        return acting.diagnose(self.hub, node, on_done).start()

    def look_at_ras(self, report: JobReport, on_done: Callable[[RasPlan], None]) -> Run:
        """Whether NCCL's RAS may be asked about this job, and what that would be; nothing is asked."""
        from mltop.probes.investigate import ras

        return ras.look(self._desk(), report, on_done).start()

    def ask_ras(self, report: JobReport, on_done: Callable[[RasTold], None]) -> Run:
        """Ask it once, on one node of the job. What it says is part of what later dumps say of the job."""
        from mltop.probes.investigate import ras

        return ras.question(self._desk(), report, on_done).start()

    def with_ras(self, reports: Sequence[JobReport]) -> Sequence[JobReport]:
        """These, with what NCCL's RAS has told of their jobs."""
        return self._ras.joined(reports) if self._ras is not None else reports

    def _desk(self) -> RasDesk:
        from mltop.probes.investigate.ras import RasDesk

        if self._ras is None:
            self._ras = RasDesk(self.hub, self.motions)
        return self._ras

    def past(self) -> Sequence[PastResult]:
        """Results of earlier probes, () where none are remembered. Reads a file: not for the screen's loop."""
        return self._memory.past() if self._memory is not None else ()

    def close(self) -> None:
        """End every agent and connection at once; a capture that runs still writes what it has, within seconds."""
        if self._closing:
            return
        self._closing = True
        capture = self._capture
        writing = capture is not None and not capture.wait(0.0)
        if writing and capture is not None:
            capture.cancel()
            capture.wait(LEAVING_S)
        self.hub.close(LEAVING_S)
        if writing and capture is not None:
            self.captured_at_close = capture.finish_or_give_up(CLOSE_CAPTURE_S)


@dataclass(frozen=True)
class Place:
    """Where a capture goes, as ``LiveSession.capture`` has it."""

    path: Path | None = None
    parent: Path | None = None
    packed: bool = False
    least_free_bytes: int = 0

    def check_room(self) -> None:
        """Raises OSError where ``parent``, or what is there of it, has too little."""
        if self.parent is None or not self.least_free_bytes:
            return
        there = next(path for path in (self.parent, *self.parent.parents) if path.exists())
        space = os.statvfs(there)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < self.least_free_bytes:
            from mltop.probes.model.units import size_words

            room = f"{size_words(free_bytes)} are free, it begins with {size_words(self.least_free_bytes)}"
            raise OSError(errno.ENOSPC, room, str(self.parent))

    @property
    def is_archive(self) -> bool:
        from mltop.probes.record.archives import is_archive_name

        return self.packed or (self.path is not None and is_archive_name(self.path.name))


class CaptureRun(Run):
    """A running capture; ``cancel`` ends its dump, what is known is still written."""

    name = "capture"

    def __init__(
        self,
        session: LiveSession,
        on_done: Callable[[CaptureResult], None],
        place: Place,
        deadline_s: float,
        on_progress: Callable[[StackProgress], None],
    ) -> None:
        super().__init__(deadline_s)
        self._session, self._place = session, place
        self._on_done, self._on_progress = on_done, on_progress
        self._dump: StackRun | None = None
        self._writer: CaptureWriter | None = None
        self._result: CaptureResult | None = None
        self._wrote_at = self._took_s = 0.0

    def cancel(self) -> None:
        super().cancel()
        if self._dump is not None:
            self._dump.cancel()

    def finish_or_give_up(self, timeout_s: float) -> CaptureResult | None:
        """What has come of it, after ``timeout_s`` at most: what it writes then it ends, and begins nothing more, so
        that no file is half there. None where nothing was written.
        """
        if self.wait(timeout_s) or self._writer is None:
            return self._result
        self._writer.give_up()
        return CaptureResult(self._writer.directory, ("it was cut off before all was written",), cancelled=True)

    def _work(self) -> None:
        # Here, not in the caller's thread: looking at a directory on a dead file server may never return.
        try:
            self._result = self._write()
        except OSError as error:
            self.error = f"cannot write {error.filename or 'the capture'}: {error.strerror}"

    def _tell_end(self, end: End) -> None:  # noqa: ARG002 - the result says it
        self._on_done(self._result or CaptureResult(self._place.path or Path(), error=self.error))

    def _write(self) -> CaptureResult:
        """The directory first, so that one that cannot be written is known at once; then round by round."""
        from mltop.probes.investigate.capture import begin, finish_capture, pack
        from mltop.probes.system.files import BadFile

        place = self._place
        place.check_room()
        writer = self._writer = begin(place.path, time.time(), place.parent)
        dump = self._session.recent_dump()
        if dump is None:
            dump = self._dumped(writer)
        samples = dump.material.as_judged(self._samples())
        reports = [*self._session.with_ras(dump.reports)]
        incidents = self._session.joined_with(reports)
        describe = self._session.describe
        finish_capture(writer, dump.material, reports, describe, samples=samples, incidents=incidents)
        if place.is_archive:
            try:
                pack(writer, place.path)
            except (OSError, BadFile) as error:
                why = getattr(error, "strerror", None) or error
                writer.problem(f"it could not be packed into one file: {why}; it is a folder")
        return CaptureResult(writer.directory, tuple(writer.problems), cancelled=self.cancelled)

    def _dumped(self, writer: CaptureWriter) -> StackRun:
        """A dump, with the samples written while it runs."""
        from mltop.probes.investigate.stacks import StackRequest, StackRun

        session = self._session
        request = StackRequest(job=session.job, raw=True, deadline_s=self._stop.deadline_s, rhythms=session.rhythms())
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

    def _samples(self) -> Iterator[tuple[str, list[Sample]]]:
        """What the nodes have kept of the last minutes, and their newest samples."""
        views = self._session.view().nodes
        live = [view.node for view in views if view.state.state == "live"]
        histories = Histories(self._session.hub, live)
        histories.collect(live, HISTORIES_S)
        histories.close()
        for view in views:
            samples = histories.of(view.node)
            newest = view.sample
            if newest is not None and (not samples or samples[-1].sampled_at < newest.sampled_at):
                samples.append(newest)
            yield view.node, samples
