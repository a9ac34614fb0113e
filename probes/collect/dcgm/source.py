"""What the agent calls: activity of GPUs that NVML had none of, from a DCGM that a thread of ours asks."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from mltop.probes.collect.dcgm import words
from mltop.probes.collect.dcgm.dcgmi import Dcgmi, DcgmiError
from mltop.probes.collect.dcgm.exporter import DEFAULT_URL, Exporter, Silence
from mltop.probes.collect.dcgm.filling import Filling, fold, lacking
from mltop.probes.collect.dcgm.rows import MAIN_FIELDS, Snapshot
from mltop.probes.model import Gap, GpuSample

URL_VARIABLE = "MLTOP_DCGM_EXPORTER"
CLOSE_WAIT_S = 0.5


@dataclass(frozen=True)
class Patience:
    """Seconds. An exporter reads DCGM every 30 s unless told otherwise (--collect-interval)."""

    grace_s: float = 3.0  # GPM has its first values with the second sample: no gap and no dcgmi before
    scrape_every_s: float = 5.0
    retry_first_s: float = 10.0  # doubled each time …
    retry_longest_s: float = 60.0
    timeout_s: float = 1.0
    stale_after_s: float = 30.0
    unwanted_after_s: float = 60.0  # then the thread asks nothing and dcgmi is ended


class DcgmSource:
    """Activity from dcgm-exporter, else from nv-hostengine by dcgmi. ``fill`` never waits.

    ``url``: None takes MLTOP_DCGM_EXPORTER or the exporter's own port here; "" asks no DCGM at all: watching
    profiling fields, as dcgmi does, keeps profilers such as Nsight Compute from the counters.
    """

    def __init__(self, url: str | None = None, patience: Patience | None = None) -> None:
        self._url = os.environ.get(URL_VARIABLE, DEFAULT_URL) if url is None else url
        self._patience = patience or Patience()
        self._exporter = Exporter(self._url, self._patience.timeout_s)
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._dcgmi = Dcgmi(self._stop)
        self._thread: threading.Thread | None = None
        self._snapshot: Snapshot | None = None
        self._reason: tuple[str, str] | None = None  # why there is no snapshot, and the fix; None: not known yet
        self._wanted_s = 0.0
        self._is_lacking = False  # some GPU, at the newest sample
        self._is_lasting = False  # for longer than the grace
        self._lacking_since_s: dict[str, float] = {}

    def fill(self, gpus: list[GpuSample], now: float) -> list[Gap]:  # noqa: ARG002 (as every source's)
        """Put activity into readable GPUs that have no ``activity_source``; gaps for what stays unknown of them.

        ``now``: unix s; not used, ages are taken from the monotonic clock.
        """
        now_s = time.monotonic()
        wanting = [gpu for gpu in gpus if lacking(gpu)]
        lasting = self._past_grace(wanting, now_s)
        self._is_lacking = bool(wanting)
        if not wanting:
            return []
        if not self._url:
            why = words.needs(f"{URL_VARIABLE} is empty, so that no DCGM is asked")
            return whole_gaps(gpus, lasting, why, words.SWITCH_ON)
        self._is_lasting = bool(lasting)
        self._want(now_s)
        snapshot = self._snapshot
        if snapshot is None:
            return self._silent_gaps(gpus, lasting)
        return Filling(snapshot, now_s, self._patience.stale_after_s).fill(gpus, wanting, lasting)

    def close(self) -> None:
        """End the thread and dcgmi. Waits at most half a second for each."""
        self._stop.set()
        self._wanted.set()
        self._dcgmi.close()
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT_S)

    def _past_grace(self, gpus: list[GpuSample], now_s: float) -> list[GpuSample]:
        keys = {gpu.index: gpu.uuid or str(gpu.index) for gpu in gpus}
        since = self._lacking_since_s
        self._lacking_since_s = {key: since.get(key, now_s) for key in keys.values()}
        earliest_s = now_s - self._patience.grace_s
        return [gpu for gpu in gpus if self._lacking_since_s[keys[gpu.index]] <= earliest_s]

    def _silent_gaps(self, gpus: list[GpuSample], wanting: list[GpuSample]) -> list[Gap]:
        if self._reason is None:
            return whole_gaps(gpus, wanting, "DCGM is being asked", kind="starting")
        why, fix = self._reason
        return whole_gaps(gpus, wanting, words.needs(why), fix)

    def _want(self, now_s: float) -> None:
        self._wanted_s = now_s
        self._wanted.set()
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="mltop-dcgm", daemon=True)
            self._thread.start()

    def _is_wanted(self) -> bool:
        return time.monotonic() - self._wanted_s < self._patience.unwanted_after_s

    def _run(self) -> None:
        pause_s = self._patience.retry_first_s
        while not self._stop.is_set():
            if not self._is_lacking or not self._is_wanted():
                self._wanted.clear()
                self._wanted.wait()
                continue
            if self._ask_safely():
                pause_s = self._patience.retry_first_s
                self._stop.wait(self._patience.scrape_every_s)
            elif not self._is_lasting:
                self._stop.wait(min(1.0, self._patience.grace_s))
            else:
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, self._patience.retry_longest_s)

    def _ask_safely(self) -> bool:
        try:
            return self._ask()
        except Exception as error:  # noqa: BLE001 - the gap tells it, and the thread goes on
            self._reason = (f"asking DCGM failed: {type(error).__name__}: {error}", "please report this")
            return False

    def _ask(self) -> bool:
        """One round: the exporter, or dcgmi for as long as it lasts. False when neither is of use."""
        answer = self._exporter.scrape()
        if isinstance(answer, Snapshot):
            self._found(answer)
            return True
        if not self._is_lasting:
            return False
        started_s = time.monotonic()
        try:
            self._dcgmi.watch(self._found, self._is_wanted)
        except DcgmiError as error:
            self._explain(answer, str(error))
        return time.monotonic() - started_s > self._patience.retry_longest_s

    def _found(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._reason = None

    def _explain(self, silence: Silence, dcgmi: str) -> None:
        """Values that were there stay, with their age, until they are too old."""
        why = silence.why if dcgmi.startswith("no dcgmi") else f"{silence.why}, and {dcgmi}"
        self._reason = (why, words.EXPORT_PROFILING if silence.lacks_profiling else words.START_DCGM)
        newest_s = max((row.taken_s for row in self._snapshot.rows), default=0.0) if self._snapshot else 0.0
        if time.monotonic() - newest_s > self._patience.stale_after_s:
            self._snapshot = None


def whole_gaps(
    gpus: list[GpuSample], wanting: list[GpuSample], why: str, fix: str = "", kind: str = "unknown"
) -> list[Gap]:
    """None where no GPU wants; one gap where all readable GPUs lack it, otherwise one for each."""
    if not wanting:
        return []
    everyone = {gpu.index for gpu in gpus if gpu.state == "ok"}
    return fold({gpu.index: list(MAIN_FIELDS) for gpu in wanting}, everyone, (why, fix, kind))
