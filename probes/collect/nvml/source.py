"""What the agent calls: GPU samples from NVML, whatever state NVML is in. Nothing here calls NVML itself."""

from __future__ import annotations

import time
from collections import deque

from mltop.probes.collect.nvml import faults
from mltop.probes.collect.nvml.registry import Registry
from mltop.probes.collect.nvml.worker import Pauses, Skips, What, Worker
from mltop.probes.model import MAX_KERNEL_EVENTS, Fault, Gap, GpuSample, KernelEvent
from mltop.probes.system.limits import limit_words

LATE_S = 2.0
# Calls that may get stuck while all others work (by the beginning of their name) → the part of a poll that does
# without them.
OPTIONAL = {"nvmlEvent": "events", "nvmlGpm": "activity"}
KILL_WAIT_S = 0.5  # from SIGTERM to SIGKILL
ABANDON_WAIT_S = 1.0  # from SIGKILL to giving up: only a process in state D survives that long
INIT_PATIENCE = 6  # nvmlInit of eight GPUs takes many seconds without persistence mode: times kill_after_s
CLOSE_TERM_S = 0.3
CLOSE_KILL_S = 0.1


class NvmlSource:
    """GPUs by NVML in a child process. All methods are for one thread and none waits for the driver.

    ``stuck_after_s``: an answer that takes longer is reported with the call and the GPU that it hangs in.
    ``kill_after_s``: a call that takes longer ends the child; a new one leaves that GPU out for some minutes.
    """

    def __init__(self, stuck_after_s: float = 5.0, kill_after_s: float = 10.0, pauses: Pauses | None = None) -> None:
        self._stuck_after_s = stuck_after_s
        self._kill_after_s = kill_after_s
        pauses = pauses or Pauses()
        self._registry = Registry()
        self._restarts = pauses.restarts()
        self._retries = pauses.retries()
        self._skips = Skips(pauses)
        self._worker: Worker | None = None
        self._abandoned: list[Worker] = []
        self._asked_at = 0.0  # the caller's clock, of the newest poll
        self._asked_without: frozenset[What] = frozenset()
        self._events: deque[KernelEvent] = deque(maxlen=MAX_KERNEL_EVENTS)
        self._look_before: object = None
        self._has_forgotten = False  # values that the child would not tell again
        self._silent_since_s: float | None = None
        self._down: Gap | None = None
        self._has_answered = False
        self._trouble = ""  # why the last child ended, until the next answer
        self._trouble_code: Fault = "crashed"
        self._is_closed = False

    def request(self, now: float) -> None:
        """Start the next poll unless one is under way. ``now`` is unix time: it becomes ``last_seen_at``."""
        at_s = time.monotonic()
        self._take_answer(0.0, at_s)  # it may have come since the sample before
        self._watch(at_s)
        if self._is_closed or at_s < max(self._retries.next_s, self._restarts.next_s):
            return
        try:
            worker = self._worker = self._worker or Worker()
        except OSError as error:
            limit = limit_words(error)
            self._trouble = f"NVML's reader process cannot be started: {limit or error}"
            self._trouble_code = "limit" if limit else "crashed"
            self._restarts.failed(at_s)
            return
        if worker.asked_s is not None or worker.terminated_s is not None:
            return
        self._asked_at = now
        without = self._asked_without = self._skips.now(at_s)
        if self._silent_since_s is None:
            self._silent_since_s = at_s
        worker.ask(
            {
                "at_s": at_s,
                "skip": sorted(what for what in without if isinstance(what, int)),
                "without": sorted(what for what in without if isinstance(what, str)),
                "again": self._has_forgotten,
                "resumes": bool(self._registry.gpus),
            }
        )
        self._has_forgotten = False

    def collect(self, now: float, wait_s: float) -> tuple[list[GpuSample], list[Gap]]:
        """All GPUs ever seen with their newest values, and why values are missing.

        Waits at most ``wait_s`` for the poll under way, and not at all for one that is already late.
        """
        late = self._silent_s(time.monotonic()) > LATE_S
        self._take_answer(0.0 if late else wait_s, time.monotonic())
        at_s = time.monotonic()
        self._watch(at_s)
        return self._samples(at_s), self._gaps(now, at_s)

    def _take_answer(self, wait_s: float, at_s: float) -> None:
        worker = self._worker
        answer = worker.answer(wait_s) if worker is not None and worker.terminated_s is None else None
        if answer is None:
            return
        self._silent_since_s = None
        self._trouble = ""
        self._has_answered = True
        if "down" not in answer:
            self._down = None
            self._retries.worked()
            skipped = frozenset(what for what in self._asked_without if isinstance(what, int))
            self._registry.merge(answer["gpus"], self._asked_at, skipped)
            self._events.extend(self._registry.event(xid, self._asked_at) for xid in answer["xids"])
            read = {entry["index"] for entry in answer["gpus"] if "read" in entry}
            self._skips.answered({*read, *OPTIONAL.values()} - self._asked_without)
            return
        # A library that answered before is tried at once.
        self._retries.failed(at_s, free=int(bool(self._registry.gpus)))
        self._down = faults.down_gap(answer["down"])
        for gpu in self._registry.gpus:
            if gpu.state != "lost":
                error = f"{self._down.why}, {faults.last_seen(gpu.last_seen_at)}"
                gpu.fail("error", error, faults.down_fault(answer["down"]))

    def events(self) -> list[KernelEvent]:
        """Xids that NVML reported since mltop started, the newest last, at most MAX_KERNEL_EVENTS."""
        return list(self._events)

    def close(self) -> None:
        """End the child: SIGTERM, SIGKILL after 0.3 s, then leave it to the kernel."""
        self._is_closed = True
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.terminate()
        if not worker.has_ended(CLOSE_TERM_S):
            worker.kill()
            worker.has_ended(CLOSE_KILL_S)
        worker.close()

    def _watch(self, at_s: float) -> None:
        """One step of ending a child that does not answer, or of noticing that it is gone."""
        self._abandoned = [worker for worker in self._abandoned if worker.exit_code() is None]
        worker = self._worker
        if worker is None:
            return
        code = worker.exit_code()
        if code is not None:
            self._ended(worker, code, at_s)
        elif worker.killed_s is not None:
            if at_s - worker.killed_s > ABANDON_WAIT_S:
                self._abandoned.append(worker)
                self._ended(worker, None, at_s)
        elif worker.terminated_s is not None:
            if at_s - worker.terminated_s >= KILL_WAIT_S:
                worker.kill()
        elif self._is_hopeless(worker, at_s):
            self._trouble = faults.OVERLONG if worker.is_overlong else self._silence(worker, at_s)[0]
            self._trouble_code = "stuck"
            # A killed NVML client can leave the GPU unusable (NVIDIA/dcgm-exporter#84), so SIGTERM comes first.
            worker.terminate()

    def _is_hopeless(self, worker: Worker, at_s: float) -> bool:
        """Slow calls that do return are waited for, up to the patience for an initialisation; and so is the rest of an
        answer that is coming.
        """
        if worker.asked_s is None:
            return False
        if worker.is_overlong:
            return True
        waited_s = at_s - worker.asked_s
        note = worker.note()
        look = (worker.asked_s, note, worker.received_s)
        if look != self._look_before:  # one look is not enough: we may have been stopped ourselves meanwhile
            self._look_before = look
            return False
        if worker.received_s is not None:
            return at_s - worker.received_s > self._kill_after_s
        if note is not None:
            in_call_s = at_s - note.started_s
            if note.call == "nvmlInit" or in_call_s < self._kill_after_s:
                return waited_s > INIT_PATIENCE * self._kill_after_s
        return waited_s > self._kill_after_s

    def _ended(self, worker: Worker, code: int | None, at_s: float) -> None:
        """Plan the next child. The GPU of the call it ended in is left out from now on."""
        note = worker.note()
        if worker.terminated_s is None and code is not None:
            self._trouble = faults.death(code, self._where(worker), worker.last_words())
            self._trouble_code = "crashed"
        what: What | None = None if note is None else note.gpu
        if note is not None:
            what = next((part for begins, part in OPTIONAL.items() if note.call.startswith(begins)), what)
        if what is not None:
            self._skips.add(what, self._trouble, at_s, self._trouble_code)
        if isinstance(what, int):
            gpu = self._registry.at_nvml_index(what)
            error = f"{self._trouble}; it is left out for now, {faults.last_seen(gpu.last_seen_at)}"
            gpu.fail("error", error, self._trouble_code)
        self._restarts.failed(at_s)
        self._worker = None
        worker.close()

    def _silent_s(self, at_s: float) -> float:
        return 0.0 if self._silent_since_s is None else at_s - self._silent_since_s

    def _where(self, worker: Worker) -> str:
        """The call that the child is in, with the GPU's number as users see it."""
        note = worker.note()
        if note is None or note.gpu is None:
            return note.call if note else ""
        return f"{note.call} on {self._named(note.gpu)}"

    def _named(self, nvml_index: int) -> str:
        """As users know the GPU that NVML lists there."""
        shown = (gpu.index for gpu in self._registry.gpus if gpu.nvml_index == nvml_index)
        return f"GPU {next(shown, nvml_index)}"

    def _silence(self, worker: Worker, at_s: float) -> tuple[str, int | None]:
        """Why the child does not answer, and the NVML index of the GPU that it is stuck on."""
        since_s = worker.asked_s if worker.received_s is None else worker.received_s
        waited_s = at_s - since_s if worker.asked_s is not None and since_s is not None else 0.0
        note = worker.note()
        call_s = at_s - note.started_s if note else None
        state = "" if note else worker.kernel_state()
        sentence = faults.silence(waited_s, self._where(worker), call_s, state)
        return sentence, note.gpu if note and call_s is not None and call_s >= waited_s / 2 else None

    def _samples(self, at_s: float) -> list[GpuSample]:
        stuck, stuck_gpu = self._stuck(at_s)
        if self._silent_s(at_s) > 1.5 * self._kill_after_s:
            for gpu in self._registry.gpus:
                if gpu.state == "ok":
                    gpu.fail("error", f"NVML does not answer, {faults.last_seen(gpu.last_seen_at)}", "stuck")
                    self._has_forgotten = True
        if stuck_gpu is None:
            return self._registry.samples()
        gpu = self._registry.at_nvml_index(stuck_gpu)
        if gpu.last_seen_at is None:
            gpu.fail("error", stuck, "stuck")
        samples = self._registry.samples()
        for sample in samples:
            if sample.index == gpu.index and sample.state == "ok":
                sample.state, sample.error, sample.error_code = "error", stuck, "stuck"
        return samples

    def _stuck(self, at_s: float) -> tuple[str, int | None]:
        """The sentence for a child that is late ("" when it is not) and the GPU to blame."""
        worker = self._worker
        if worker is None or worker.asked_s is None or at_s - worker.asked_s < self._stuck_after_s:
            return "", None
        return self._silence(worker, at_s)

    def _gaps(self, now: float, at_s: float) -> list[Gap]:
        gaps = [self._down] if self._down else []
        stuck, _ = self._stuck(at_s)
        if stuck or self._trouble:
            code = "stuck" if stuck else self._trouble_code
            fix = "" if code == "limit" else faults.KERNEL_LOG
            gaps.append(Gap.about("nvml", why=stuck or self._trouble, fix=fix, code=code))
        # Until the first poll is answered, or until children have ended so often that none may ever be.
        if not self._has_answered and not self._restarts.exhausted:
            call = self._where(self._worker) if self._worker else ""
            now_in = f", now in {call}" if call else ""
            waited_s = self._silent_s(at_s)
            since = f": no answer from NVML since {waited_s:.1f} s" if waited_s else ""  # it has not been asked
            why = f"GPUs not read yet{since}{now_in}"
            gaps.append(Gap.about("nvml", "starting", why=why, kind="starting"))
        # Values that are shown although newer ones should be there.
        seen_at = [
            gpu.last_seen_at for gpu in self._registry.gpus if gpu.state == "ok" and gpu.last_seen_at is not None
        ]
        if seen_at and self._silent_s(at_s) > LATE_S:
            why = f"the values of all GPUs are {now - min(seen_at):.0f} s old: the newest poll is not answered"
            gaps.append(Gap.about("nvml_age", why=why, code="stale"))
        for what, skip in self._skips.items():
            parts, why = ((what,), "not read") if isinstance(what, str) else ((), self._named(what) + " is left out")
            why = f"{why} for now: {skip.reason}"
            gaps.append(Gap.about("nvml", *parts, why=why, fix=faults.KERNEL_LOG, code=skip.code))
        for worker in self._abandoned:
            state = worker.kernel_state() or "state unknown"
            why = f"NVML's reader process {worker.pid} cannot be ended ({state}) and was abandoned"
            gaps.append(Gap.about("nvml", why=why, fix=f"sudo cat /proc/{worker.pid}/stack", code="stuck"))
        if self._down is None:
            gaps += self._registry.denied_gaps()
        return gaps + self._registry.gaps()
