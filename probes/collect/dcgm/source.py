"""What the agent calls: activity of GPUs that NVML had none of, from a DCGM that a thread of ours asks."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mltop.probes.collect.dcgm.readers import (
    DEFAULT_URL,
    FIELDS,
    MAIN_FIELDS,
    Dcgmi,
    DcgmiError,
    Exporter,
    NoDcgmi,
    Row,
    Snapshot,
)
from mltop.probes.collect.host.machine import in_container
from mltop.probes.collect.sysfile import read_text
from mltop.probes.model import Gap, GapKind, GpuSample, MigInstance
from mltop.probes.system import paths

URL_VARIABLE = "MLTOP_DCGM_EXPORTER"
CLOSE_WAIT_S = 0.5
START_DCGM = (
    "sudo systemctl start nvidia-dcgm; or start dcgm-exporter with DCGM_FI_PROF_SM_ACTIVE, "
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE and DCGM_FI_PROF_DRAM_ACTIVE in its metrics file (-f)"
)
# SM_ACTIVE and the pipes are commented out in etc/dcp-metrics-included.csv, which it reads by default.
EXPORT_PROFILING = (
    "uncomment DCGM_FI_PROF_SM_ACTIVE (and the others) in dcgm-exporter's metrics file, by default "
    "/etc/dcgm-exporter/default-counters.csv or dcp-metrics-included.csv, and restart it as root or with SYS_ADMIN"
)
FROM_HOST = "start dcgm-exporter on the host, and here: export MLTOP_DCGM_EXPORTER=http://HOST:9400/metrics"
# Boards that DCGM does not profile: consumers' (NVIDIA/dcgm-exporter#152), virtual ones ("GRID A100-40C", "A40-48Q").
_NOT_PROFILED = re.compile(r"GeForce|TITAN|GRID|-\d+[ABCQ]$")
SWITCH_ON = "unset MLTOP_DCGM_EXPORTER"
INSTANCE_FIELDS = ("sm_active", "sm_occupancy", "tensor_active", "dram_active")


class Lack(NamedTuple):
    """Why fields of a GPU are not known."""

    why: str
    fix: str = ""
    kind: GapKind = "unknown"


def needs_dcgm(reason: str, fix: str) -> Lack:
    """The lack of a DCGM; ``reason``: e.g. "nothing listens on 127.0.0.1:9400"."""
    return Lack(f"needs GPM (Hopper) or a running DCGM: {reason}", fix)


def lacking(gpu: GpuSample) -> bool:
    """Whether a GPU could use DCGM's values: it is readable and has none of its own."""
    is_measured = any(
        instance.sm_active is not None or instance.dram_active is not None for instance in gpu.mig_instances
    )
    is_profiled = not gpu.unified_memory and _NOT_PROFILED.search(gpu.name or "") is None
    return gpu.state == "ok" and gpu.activity_source is None and not is_measured and is_profiled


def fill_gpu(gpu: GpuSample, snapshot: Snapshot, now_s: float, stale_after_s: float) -> Iterator[tuple[str, Lack]]:
    """Put a snapshot into a GPU; of MAIN_FIELDS those that stay unknown, and why. ``now_s``: monotonic."""
    rows, where = snapshot.of(gpu), snapshot.where
    fresh = [row for row in rows if now_s - row.taken_s <= stale_after_s]
    whole = [row for row in fresh if row.gpu_instance is None]
    parts: dict[int | None, Row] = {row.gpu_instance: row for row in fresh if row.gpu_instance is not None}
    # NVML's source gives the same objects sample after sample, so that they are replaced, not changed.
    gpu.mig_instances = [
        replace(mig, **fractions(row, INSTANCE_FIELDS)) if (row := parts.get(mig.gpu_instance)) else mig
        for mig in gpu.mig_instances
    ]
    for row in whole[-1:]:
        for name, value in fractions(row, FIELDS).items():
            setattr(gpu, name, value)
            gpu.activity_source = "dcgm"
        for name in MAIN_FIELDS:
            if name in row.garbage:
                yield name, Lack(f"{where} says {row.garbage[name]:g}, which is not a value")
            elif name not in row.values:
                yield name, Lack(f"{where} does not export it", EXPORT_PROFILING)
            elif row.values[name] is None:
                why = "the profiling counters are not to be had, or in use by a profiler"
                yield name, Lack(f"{where} has no value of it: {why}")
        return
    lack = Lack(f"{where} says nothing of this GPU")
    if parts:
        lack = Lack(f"{where} measures the instances of a GPU in MIG mode, not the GPU", kind="unsupported")
    elif rows:
        age_s = min(now_s - row.taken_s for row in rows)
        lack = Lack(f"the newest values from {where} are {age_s:.0f} s old")
    yield from ((name, lack) for name in MAIN_FIELDS)


def fractions(row: Row, names: tuple[str, ...]) -> dict[str, Any]:
    """The fractions that there are, by field name."""
    return {name: value for name in names if (value := row.values.get(name)) is not None}


def gaps_of(fields_of: dict[int, list[str]], gpus: list[GpuSample], lack: Lack) -> list[Gap]:
    """One reason's gaps: one where all readable GPUs lack the same fields, otherwise one for each that lacks some."""
    everyone = {gpu.index for gpu in gpus if gpu.state == "ok"}
    if fields_of and fields_of.keys() == everyone and len({tuple(fields) for fields in fields_of.values()}) == 1:
        by_item = {"*": next(iter(fields_of.values()))}
    else:
        by_item = {str(index): fields for index, fields in sorted(fields_of.items())}
    return [Gap.about("gpu", *fields, item=item, **lack._asdict()) for item, fields in by_item.items()]


def whole_gaps(gpus: list[GpuSample], wanting: list[GpuSample], lack: Lack) -> list[Gap]:
    return gaps_of({gpu.index: list(MAIN_FIELDS) for gpu in wanting}, gpus, lack)


def without_filled(gaps: list[Gap], gpus: list[GpuSample]) -> list[Gap]:
    """NVML's gaps, less the activity that is known by now: "gpu.*.{sm_active,tensor_active}" may become
    "gpu.*.sm_active", or nothing. All other gaps stay as they are.
    """
    left = []
    for gap in gaps:
        names = {field.rpartition(".")[2] for field in gap.fields}
        if gap.source != "gpu" or not names or not names <= set(FIELDS):
            left.append(gap)
            continue
        unknown = [field for field in gap.fields if any(_is_unknown(gpu, gap.item, field) for gpu in gpus)]
        if unknown:
            left.append(
                Gap.about("gpu", *unknown, item=gap.item, why=gap.why, fix=gap.fix, kind=gap.kind, code=gap.code)
            )
    return left


def _is_unknown(gpu: GpuSample, item: str, field: str) -> bool:
    """Whether a field of the GPU, or of one of its instances ("mig_instances.*.sm_active"), has no value."""
    if gpu.state != "ok" or item not in ("*", str(gpu.index)):
        return False
    path, _, name = field.rpartition(".")
    instance_index = path.rpartition(".")[2]
    targets: list[GpuSample | MigInstance] = [gpu]
    if path:
        targets = [mig for mig in gpu.mig_instances if instance_index in ("*", str(mig.index))]
    return any(getattr(target, name, None) is None for target in targets)


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
        self._is_wsl = "microsoft" in (read_text(paths.proc("sys/kernel/osrelease")) or "")  # there is no DCGM for it
        self._patience = patience or Patience()
        self._exporter = Exporter(self._url, self._patience.timeout_s)
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._dcgmi = Dcgmi(self._stop)
        self._thread: threading.Thread | None = None
        self._snapshot: Snapshot | None = None
        self._lack: Lack | None = None  # why there is no snapshot; None: not known yet
        self._wanted_s = 0.0
        self._is_lacking = False  # some GPU, at the newest sample
        self._is_lasting = False  # for longer than the grace
        self._lacking_since_s: dict[str, float] = {}

    def fill(self, gpus: list[GpuSample], now: float) -> list[Gap]:  # noqa: ARG002 (as every source's)
        """Put activity into readable GPUs that have no ``activity_source``; gaps for what stays unknown of them.

        ``now``: unix s; not used, ages are taken from the monotonic clock.
        """
        now_s = time.monotonic()
        wanting = [] if self._is_wsl else [gpu for gpu in gpus if lacking(gpu)]
        # Those that have wanted for longer than the grace.
        keys, since = {gpu.index: gpu.uuid or str(gpu.index) for gpu in wanting}, self._lacking_since_s
        self._lacking_since_s = {key: since.get(key, now_s) for key in keys.values()}
        earliest_s = now_s - self._patience.grace_s
        lasting = [gpu for gpu in wanting if self._lacking_since_s[keys[gpu.index]] <= earliest_s]
        self._is_lacking = bool(wanting)
        if not wanting:
            return []
        if not self._url:
            lack = needs_dcgm(f"{URL_VARIABLE} is empty, so that no DCGM is asked", SWITCH_ON)
            return whole_gaps(gpus, lasting, lack)
        self._is_lasting = bool(lasting)
        self._wanted_s = now_s
        self._wanted.set()
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="mltop-dcgm", daemon=True)
            self._thread.start()
        snapshot = self._snapshot
        if snapshot is None:
            return whole_gaps(gpus, lasting, self._lack or Lack("DCGM is being asked", kind="starting"))
        unknown: dict[Lack, dict[int, list[str]]] = {}  # by GPU's index the fields
        indexes = {gpu.index for gpu in lasting}
        for gpu in wanting:
            for name, lack in fill_gpu(gpu, snapshot, now_s, self._patience.stale_after_s):
                if gpu.index in indexes:
                    unknown.setdefault(lack, {}).setdefault(gpu.index, []).append(name)
        return [gap for lack, fields_of in unknown.items() for gap in gaps_of(fields_of, gpus, lack)]

    def close(self) -> None:
        """End the thread and dcgmi. Waits at most half a second for each."""
        self._stop.set()
        self._wanted.set()
        self._dcgmi.close()
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT_S)

    def _is_wanted(self) -> bool:
        return time.monotonic() - self._wanted_s < self._patience.unwanted_after_s

    def _run(self) -> None:
        pause_s = self._patience.retry_first_s
        while not self._stop.is_set():
            if not self._is_lacking or not self._is_wanted():
                self._wanted.clear()
                self._wanted.wait()
                continue
            is_of_use = False
            try:
                is_of_use = self._ask()
            except Exception as error:  # noqa: BLE001 - the gap tells it, and the thread goes on
                self._lack = needs_dcgm(f"asking DCGM failed: {type(error).__name__}: {error}", "please report this")
            if is_of_use:
                pause_s = self._patience.retry_first_s
                self._stop.wait(self._patience.scrape_every_s)
            elif not self._is_lasting:
                self._stop.wait(min(1.0, self._patience.grace_s))
            else:
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, self._patience.retry_longest_s)

    def _ask(self) -> bool:
        """One round: the exporter, or dcgmi for as long as it lasts. False when neither is of use."""
        answer = self._exporter.scrape()
        if isinstance(answer, Snapshot):
            self._use(answer)
            return True
        if not self._is_lasting:
            return False
        started_s = time.monotonic()
        try:
            self._dcgmi.watch(self._use, self._is_wanted)
        except DcgmiError as error:
            why = answer.why if isinstance(error, NoDcgmi) else f"{answer.why}, and {error}"
            start = FROM_HOST if in_container(paths.SYSROOT) else START_DCGM
            self._lack = needs_dcgm(why, EXPORT_PROFILING if answer.lacks_profiling else start)
            # Values that were there stay, with their age, until they are too old.
            newest_s = max((row.taken_s for row in self._snapshot.rows), default=0.0) if self._snapshot else 0.0
            if time.monotonic() - newest_s > self._patience.stale_after_s:
                self._snapshot = None
        return time.monotonic() - started_s > self._patience.retry_longest_s

    def _use(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._lack = None
