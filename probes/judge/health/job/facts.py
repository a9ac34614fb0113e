"""What the rules about jobs need of every rank: a few numbers, so that thousands of ranks can be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from mltop.probes.judge.health.rule import Moment
from mltop.probes.judge.health.trails import Series
from mltop.probes.model import GpuSample, RankSample, Sample

HISTORY_S = 300.0
IDLE_BUSY, SPINNING_BUSY = 0.20, 0.95
WORKING_CALLS_PER_S = 20.0  # reads and writes: a heartbeat makes a few
SPINNING_POWER = 0.40  # of the limit: a collective's kernel that waits draws less
SPINNING_TENSOR = 0.02  # of the time
_FABRIC_KINDS = ("infiniband", "roce", "efa")


@dataclass(frozen=True)
class History:
    """Of one rank and its GPU, over the last five minutes at most (``watched_s``).

    ``idle_share`` (GPU busy < 20 %), ``dips`` (how often that began), ``power_spread`` (standard deviation over mean),
    ``pauses``: dips while the rank's own thread took a whole core and no worker ran.
    """

    watched_s: float = 0.0
    idle_share: float = 0.0
    dips: int = 0
    power_spread: float | None = None
    pauses: int = 0


NO_HISTORY = History()


class RankFacts(NamedTuple):
    """One rank at its node's newest sample; of several GPUs the first. None: not known.

    ``moves``: since the sample before it read or wrote ("io") or took a core ("cpu"); "" neither. ``power_share``: of
    the limit. ``traffic_bytes_per_s``: NVLink of its GPU and its share of the node's fabric ports. ``io_wait``: share
    of the time in which some task of its node waited for disks; ``disk_bytes_per_s``: what these read and write.
    """

    node: str
    at: float
    uid: int | None
    user: str
    job: str
    rank: int | None
    world_size: int | None
    pid: int
    state: str = ""
    moves: str = ""
    has_gpu: bool = False
    busy: float | None = None
    tensor_active: float | None = None
    power_w: float | None = None
    power_share: float | None = None
    clock_mhz: int | None = None
    clock_share: float | None = None
    traffic_bytes_per_s: float | None = None
    workers_cpu: float | None = None
    workers_blocked: int | None = None
    io_wait: float | None = None
    disk_bytes_per_s: float | None = None
    history: History = NO_HISTORY

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"pid {self.pid}"

    @property
    def spins(self) -> bool:
        """Busy by NVML's word, and yet no work is done: it waits in a collective."""
        if self.busy is None or self.busy < SPINNING_BUSY:
            return False
        if self.power_share is not None and self.power_share >= SPINNING_POWER:
            return False  # work without tensor cores: FP32, or memory
        return self.power_share is not None if self.tensor_active is None else self.tensor_active < SPINNING_TENSOR


def facts_of_ranks(moment: Moment, histories: dict[int, History] | None = None) -> tuple[RankFacts, ...]:
    """``histories``: by pid, those made a moment ago; None: make them anew, which takes a while."""
    sample = moment.now
    if not sample.ranks:
        return ()
    gpus = {gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"}
    before = {rank.pid: rank for rank in moment.before.ranks} if moment.before is not None else {}
    fabric, host = _fabric_traffic(sample), sample.host
    share = fabric / len(sample.ranks) if fabric is not None else None
    disk = _sum(host.disk_read_bytes_per_s, host.disk_write_bytes_per_s)
    of_gpus: dict[int, History] = {}
    found = []
    for rank in sample.ranks:
        if not rank.job:
            continue
        gpu = next((gpus[index] for index in rank.gpus if index in gpus), None)
        facts = _facts(sample, rank, _moves(rank, before.get(rank.pid), moment.passed_s or 1.0), share, gpu)
        facts = facts._replace(io_wait=host.pressure.io_some, disk_bytes_per_s=disk)
        if gpu is not None and histories is not None:
            facts = facts._replace(history=histories.get(rank.pid, NO_HISTORY))
        elif gpu is not None:
            if gpu.index not in of_gpus:
                of_gpus[gpu.index] = _history(moment, gpu)
            pauses = moment.series(f"pid {rank.pid}", "pause")
            pause_count = _begins(pauses, bool) if pauses else 0
            facts = facts._replace(history=replace(of_gpus[gpu.index], pauses=pause_count))
        found.append(facts)
    return tuple(found)


def _facts(sample: Sample, rank: RankSample, moves: str, share: float | None, gpu: GpuSample | None) -> RankFacts:
    who = (rank.uid, rank.user, rank.job, rank.rank, rank.world_size, rank.pid)
    common = (sample.node, sample.sampled_at, *who, rank.state, moves)
    if gpu is None:
        return RankFacts(*common)
    return RankFacts(
        *common,
        has_gpu=True,
        busy=gpu.busy,
        tensor_active=gpu.tensor_active,
        power_w=gpu.power_w,
        power_share=_ratio(gpu.power_w, gpu.power_limit_w),
        clock_mhz=gpu.sm_clock_mhz,
        clock_share=_ratio(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz),
        traffic_bytes_per_s=_sum(gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s, share),
        workers_cpu=rank.children_cpu_fraction,
        workers_blocked=rank.children_blocked,
    )


def _moves(rank: RankSample, before: RankSample | None, passed_s: float) -> str:
    if before is None:
        return ""
    read = (rank.read_syscalls or 0) - (before.read_syscalls or 0)
    written = (rank.write_syscalls or 0) - (before.write_syscalls or 0)
    ran_s = (rank.main_cpu_s or 0.0) - (before.main_cpu_s or 0.0)
    if read + written > WORKING_CALLS_PER_S * passed_s:
        return "io"
    return "cpu" if ran_s > 0.5 * passed_s else ""


def _history(moment: Moment, gpu: GpuSample) -> History:
    """All of it that is the GPU's."""
    busy = moment.series(f"GPU {gpu.index}", "busy")
    power = moment.series(f"GPU {gpu.index}", "power_w")
    return History(
        watched_s=busy.span_s if busy else 0.0,
        idle_share=busy.share(_is_idle) if busy else 0.0,
        dips=_begins(busy, _is_idle) if busy else 0,
        power_spread=_spread(power) if power else None,
    )


def _is_idle(busy: float) -> bool:
    return busy < IDLE_BUSY


def _fabric_traffic(sample: Sample) -> float | None:
    rates = [_sum(link.rx_bytes_per_s, link.tx_bytes_per_s) for link in sample.links if link.kind in _FABRIC_KINDS]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _begins(series: Series, holds: Callable[[float], bool]) -> int:
    """How often it began to hold."""
    return sum(now and not before for before, now in pairwise(map(holds, series.values)))


def _spread(series: Series) -> float | None:
    count = len(series.values)
    mean = sum(series.values) / count if count else 0.0
    if count < 30 or mean <= 0:
        return None
    variance = sum((value - mean) ** 2 for value in series.values) / count
    return float(variance**0.5 / mean)


def gauges(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
    if not sample.ranks:
        return
    busy = {}
    for gpu in sample.gpus:
        if gpu.busy is not None:
            busy[gpu.index] = gpu.busy
            yield f"GPU {gpu.index}", "busy", gpu.busy, HISTORY_S
        if gpu.power_w is not None:
            yield f"GPU {gpu.index}", "power_w", gpu.power_w, HISTORY_S
    for rank in sample.ranks:
        if rank.gpus and rank.cpu_fraction is not None:
            idle = busy.get(rank.gpus[0], 1.0) < IDLE_BUSY
            alone = rank.cpu_fraction > 0.9 and (rank.children_cpu_fraction or 0.0) < 0.2
            yield f"pid {rank.pid}", "pause", float(idle and alone), HISTORY_S


GAUGES = (gauges,)
RULES = ()
