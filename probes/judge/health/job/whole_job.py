"""Rules about a job as a whole: its ranks are spread over nodes, and what one rank does means little alone.

What they need of every rank are a few numbers, so that thousands of ranks can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

from mltop.probes.judge.health.names import of_rank, rank_name
from mltop.probes.judge.health.rule import HOLD, RANK_ENDED, RANK_SLOWED, RANK_STALLED, Hit, Moment, rank_rule, rule
from mltop.probes.judge.health.trails import Series
from mltop.probes.judge.values import known
from mltop.probes.model import GpuSample, JobKey, RankSample, Sample
from mltop.probes.model.gpu import SPINNING_BUSY, SPINNING_TENSOR
from mltop.probes.model.units import duration_words, percent_words, rate_words, watts_words
from mltop.probes.model.verdict import gpu_name
from mltop.probes.model.vocabulary import Severity

HISTORY_S = 300.0
WATCHED_SHARE = 0.8  # of HISTORY_S: less tells nothing
IDLE_BUSY = 0.20
WORKING_CALLS_PER_S = 20.0  # reads and writes: a heartbeat makes a few
SPINNING_POWER = 0.40  # of the limit: a collective's kernel that waits draws less
QUIET_BYTES_PER_S = 50e6  # per rank: less than a heartbeat of NCCL, far below any collective
MOST_ODD = 0.05  # of the ranks
SLOW_CLOCK, SLOW_FOR_S = 0.85, 300.0
STARVED_SHARE = 0.15
LEAST_DIPS = 4  # in five minutes: a checkpoint is one
SPREAD_OF_OTHERS = 0.15
WAITING_FOR_DISKS = 0.20  # of the last ten seconds (PSI)
MOST_NODES = 4  # in the evidence
LEAST_PAUSES, PAUSING_RANKS = 2, 2
FULL_CORE, QUIET_WORKERS = 0.9, 0.2  # CPU of a rank that pauses, and of its workers
_FABRIC_KINDS = ("infiniband", "roce", "efa")


@dataclass(frozen=True)
class History:
    """What one rank and its GPU did over the last five minutes at most (``watched_s``).

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
    """One rank at its node's newest sample, and of several GPUs the first. None: not known.

    ``moves``: since the sample before it read or wrote ("io") or took a core ("cpu"); "" neither.
    ``traffic_bytes_per_s``: NVLink of its GPU and its share of the node's fabric ports. ``io_wait``: share of the time
    in which some task of its node waited for disks; ``disk_bytes_per_s``: what these read and write. ``visible_gpus``:
    how many GPUs CUDA lets it see.
    """

    node: str
    rank: RankSample
    gpu: GpuSample | None
    moves: str = ""
    traffic_bytes_per_s: float | None = None
    io_wait: float | None = None
    disk_bytes_per_s: float | None = None
    history: History = NO_HISTORY
    visible_gpus: int | None = None

    @property
    def spins(self) -> bool:
        return self.gpu is not None and spins(self.gpu)

    @property
    def is_odd(self) -> bool:
        if self.rank.state in ("D", "Z") or self.gpu is None:
            return True
        return self.gpu.busy is not None and self.gpu.busy < IDLE_BUSY

    def hit(self, subject: str, text: str, evidence: tuple[str, ...] = (), severity: Severity | None = None) -> Hit:
        """What is said of this one."""
        rank, gpus = self.rank, tuple(map(gpu_name, self.rank.gpus))
        return Hit(subject, text, evidence, severity, about=gpus, node=self.node, **of_rank(rank))

    @property
    def disk_evidence(self) -> tuple[str, ...]:
        """What its node's disks do meanwhile."""
        moved = self.disk_bytes_per_s
        return () if moved is None else (f"the disks of {self.node} move {rate_words(moved)}",)


def spins(gpu: GpuSample) -> bool:
    """Busy by NVML's word, and yet no work is done: it waits in a collective."""
    if gpu.busy is None or gpu.busy < SPINNING_BUSY:
        return False
    power_share = gpu.power_w / gpu.power_limit_w if gpu.power_w is not None and gpu.power_limit_w else None
    if power_share is not None and power_share >= SPINNING_POWER:
        return False  # work without tensor cores: FP32, or memory
    return power_share is not None if gpu.tensor_active is None else gpu.tensor_active < SPINNING_TENSOR


@dataclass(frozen=True)
class JobMoment:
    """All ranks of one job that are known, by rank; ``at`` is the time of the newest sample, unix s.

    ``owner``: " of ada" where another user has a job of the same name.
    """

    job: str
    at: float
    ranks: tuple[RankFacts, ...]
    owner: str = ""

    @property
    def name(self) -> str:
        return f"job {self.job}{self.owner}"

    @property
    def key(self) -> JobKey:
        return self.ranks[0].rank.job_key

    @property
    def world_size(self) -> int:
        return max((facts.rank.world_size or 0 for facts in self.ranks), default=0)

    def watched(self) -> list[RankFacts]:
        """Ranks that are watched for long enough; none when some are not."""
        ranks = [facts for facts in self.ranks if facts.gpu is not None]
        return ranks if all(facts.history.watched_s >= WATCHED_SHARE * HISTORY_S for facts in ranks) else []


@rule(
    "job.hang",
    "critical",
    hold_s=120.0,
    clear_s=30.0,
    meaning="all ranks wait in a collective",
    threshold=f"all busy >= {percent_words(SPINNING_BUSY)}, no tensor work or < {percent_words(SPINNING_POWER)} of the "
    f"power limit, no traffic, for {HOLD}*",
    source="NVML, ports; ml-engineering, ClusterMAX",
    act="stacks",
    action="the rank that differs is the suspect",
    needs=("ranks", "gpu.*.busy", "gpu.*.tensor_active | gpu.*.power_w"),
    follows_ranks=(RANK_ENDED, RANK_STALLED),
)
def hang(moment: JobMoment) -> Iterator[Hit]:
    """All ranks spin and nothing is sent. Stacks tell who is to blame; this only says that it is time to look."""
    if not all(facts.spins for facts in moment.ranks if facts.gpu is not None):
        return
    ranks = [facts for facts in moment.ranks if facts.gpu is not None]
    if len(ranks) < 2 or len(ranks) < moment.world_size:
        return
    traffic = [facts.traffic_bytes_per_s for facts in ranks]
    if any(sent is not None and sent > QUIET_BYTES_PER_S for sent in traffic):
        return
    powers = known(facts.gpu.power_w for facts in ranks if facts.gpu is not None)
    at = f" at {watts_words(median(powers))}" if powers else ""
    silent = "" if None in traffic else ", no traffic"
    text = f'{moment.name}: {len(ranks)} GPUs 100 % "busy"{at}{silent}: they wait in a collective'
    yield Hit(moment.name, text, node=ranks[0].node, job=moment.key)


@rank_rule(
    "job.odd_rank",
    "critical",
    hold_s=30.0,
    clear_s=20.0,
    meaning="one rank never reached the collective in which the others wait",
    threshold=f"idle, without a GPU or in state D while all others spin, for {HOLD}*",
    source="Imbue, ml-engineering",
    act="stacks",
    action="then look at that node",
    needs=("ranks", "gpu.*.busy", "gpu.*.tensor_active | gpu.*.power_w"),
    explains_ranks=(RANK_STALLED, "job.hang"),
    follows_ranks=(RANK_ENDED, RANK_STALLED),
)
def odd_rank(moment: JobMoment) -> Iterator[Hit]:
    ranks = [facts for facts in moment.ranks if facts.gpu is not None or facts.rank.state]
    odd = [facts for facts in ranks if facts.is_odd]
    if len(ranks) < 3 or not 0 < len(odd) <= max(1, MOST_ODD * len(ranks)):
        return
    spinning = sum(facts.spins for facts in ranks)
    if spinning < len(ranks) - len(odd):
        return
    for facts in odd:
        subject = rank_name(facts.rank) + moment.owner
        if facts.moves and facts.rank.state != "Z":
            doing = "reads or writes" if facts.moves == "io" else "takes a core"
            text = f"{subject} {doing} while {spinning} others wait: a checkpoint, or data only it prepares?"
            severity: Severity = "info" if facts.moves == "io" else "warning"
            yield facts.hit(subject, text, facts.disk_evidence, severity)
            continue
        idle = "leaves its GPU idle" if facts.gpu is not None else "holds no GPU"
        why = "is in state D" if facts.rank.state == "D" else idle
        text = f"{subject} {why} while {spinning} others wait: it never reached the collective"
        yield facts.hit(subject, text)


@rank_rule(
    "job.straggler",
    "warning",
    hold_s=SLOW_FOR_S,
    meaning="all wait for one slow rank",
    threshold=f"clock < {SLOW_CLOCK} x median of the job, or steady power while the others' dips, for "
    f"{duration_words(SLOW_FOR_S)}*",
    source="cluster-health-scanner, Imbue",
    action="see what is wrong with that GPU",
    needs=("ranks", "gpu.*.busy", "gpu.*.sm_clock_mhz", "gpu.*.sm_clock_max_mhz"),
    explains_ranks=(RANK_SLOWED,),
)
def straggler(moment: JobMoment) -> Iterator[Hit]:
    """By its clock; without that by its power, which stays level while that of those who wait for it dips."""
    working = [(facts.gpu, facts) for facts in moment.ranks if facts.gpu is not None and (facts.gpu.busy or 0.0) > 0.5]
    rated = ((gpu.sm_clock_mhz, facts) for gpu, facts in working if gpu.sm_clock_max_mhz)
    clocks = [(clock, facts) for clock, facts in rated if clock is not None]
    if len(clocks) < 4:
        return
    usual = median(clock for clock, _ in clocks)
    slow = [(clock, facts) for clock, facts in clocks if clock < SLOW_CLOCK * usual]
    if not 0 < len(slow) <= max(1, MOST_ODD * len(clocks)):
        yield from _level_rank([facts for _, facts in clocks], moment.owner)
        return
    for clock, facts in slow:
        subject = rank_name(facts.rank) + moment.owner
        why = f"its GPU runs at {clock} MHz, the others at {usual:.0f}"
        yield facts.hit(subject, f"{subject} keeps {len(clocks) - len(slow)} waiting: {why}")


def _level_rank(ranks: Sequence[RankFacts], owner: str) -> Iterator[Hit]:
    spreads = [(facts.history.power_spread, facts) for facts in ranks if facts.history.power_spread is not None]
    watched_s = min(facts.history.watched_s for facts in ranks)
    if len(spreads) < max(4, len(ranks)) or watched_s < WATCHED_SHARE * HISTORY_S:
        return
    (least, facts), *others = sorted(spreads, key=lambda pair: pair[0])
    if others[0][0] > SPREAD_OF_OTHERS and least < 0.5 * others[0][0]:
        subject = rank_name(facts.rank) + owner
        text = f"{subject} works steadily while the power of {len(others)} others dips: they seem to wait for it"
        yield facts.hit(subject, text)


@rule(
    "job.starved",
    "warning",
    hold_s=60.0,
    meaning="GPUs wait for data",
    threshold=f"all idle together > {percent_words(STARVED_SHARE)} of {duration_words(HISTORY_S)}, in {LEAST_DIPS} "
    "dips or more, workers at work or in state D, or tasks that wait for disks > "
    f"{percent_words(WAITING_FOR_DISKS)} of the time*",
    source="NVML, the ranks' children, /proc/pressure/io; ml-engineering",
    action="more or faster data loader workers (num_workers), faster storage",
    needs=("ranks", "gpu.*.busy", "ranks.children_blocked | host.pressure.io"),
    explains_ranks=(RANK_SLOWED,),
)
def starved(moment: JobMoment) -> Iterator[Hit]:
    ranks = moment.watched()
    if not ranks or min(facts.history.dips for facts in ranks) < LEAST_DIPS:
        return
    share = min(facts.history.idle_share for facts in ranks)
    if share <= STARVED_SHARE:
        return
    children = [(facts.rank.children_cpu_fraction or 0.0, facts.rank.children_blocked or 0) for facts in ranks]
    loading = sum(cpu > FULL_CORE or waiting > 0 for cpu, waiting in children)
    blocked = sum(waiting for _, waiting in children)
    waiting = {facts.node: facts for facts in ranks if (facts.io_wait or 0.0) > WAITING_FOR_DISKS}
    if loading > len(ranks) / 2:
        how = f"{blocked} workers wait for storage" if blocked else "the workers take all the CPU they get"
    elif sum(facts.node in waiting for facts in ranks) > len(ranks) / 2:
        waits = [facts.io_wait or 0.0 for facts in ranks if facts.node in waiting]
        how = f"tasks wait for disks {percent_words(median(waits))} of the time"
    else:
        return
    evidence: list[str] = []
    for facts in list(waiting.values())[:MOST_NODES]:
        waited = percent_words(facts.io_wait or 0.0)
        evidence += [f"some task of {facts.node} waited for disks {waited} of the time", *facts.disk_evidence]
    text = f"{moment.name}: GPUs wait for data {percent_words(share)} of the time: {how}"
    yield Hit(moment.name, text, tuple(evidence), node=ranks[0].node, job=moment.key)


@rule(
    "job.gc",
    "info",
    hold_s=60.0,
    meaning="Python's garbage collector stops single ranks",
    threshold="two ranks pause by themselves with a core at 100 %*",
    source="Imbue, ml-engineering",
    action="gc.disable(), and gc.collect() on all ranks at the same step",
    needs=("ranks", "gpu.*.busy", "ranks.cpu_fraction"),
    explains_ranks=(RANK_SLOWED, "job.straggler"),
)
def garbage_collection(moment: JobMoment) -> Iterator[Hit]:
    ranks = moment.watched()
    pausing = [facts for facts in ranks if facts.history.pauses >= LEAST_PAUSES]
    together = min((facts.history.idle_share for facts in ranks), default=0.0) > STARVED_SHARE
    if len(ranks) >= 4 and len(pausing) >= PAUSING_RANKS and not together:
        names = ", ".join(rank_name(facts.rank) for facts in pausing[:3])
        text = f"single ranks pause in turn with a core at 100 % ({names}): looks like Python's garbage collector"
        text = f"{moment.name}: {text}"
        numbers = known(facts.rank.rank for facts in pausing)
        yield Hit(moment.name, text, node=ranks[0].node, job=moment.key, ranks=tuple(numbers))


def facts_of_ranks(moment: Moment, histories: dict[int, History] | None = None) -> tuple[RankFacts, ...]:
    """``histories``: by pid, those made a moment ago; None: make them anew, which takes a while."""
    sample = moment.now
    gpus = {gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"}
    before = {rank.pid: rank for rank in moment.before.ranks} if moment.before is not None else {}
    ports = (link for link in sample.links if link.kind in _FABRIC_KINDS)
    fabric = _sum(*(rate for link in ports for rate in (link.rx_bytes_per_s, link.tx_bytes_per_s)))
    share = fabric / len(sample.ranks) if fabric is not None and sample.ranks else None
    disk = _sum(sample.host.disk_read_bytes_per_s, sample.host.disk_write_bytes_per_s)
    of_gpus: dict[int, History] = {}
    # A MIG instance is a device of its own; without NVML nobody knows how many there are.
    of_node = None if not sample.gpus or any(gpu.mig_enabled for gpu in sample.gpus) else len(sample.gpus)
    every = []
    for rank in sample.ranks:
        if not rank.job:
            continue
        gpu = next((gpus[index] for index in rank.gpus if index in gpus), None)
        moves = _moves(rank, before.get(rank.pid), moment.passed_s or 1.0)
        visible = visible_gpus(rank.settings.get("CUDA_VISIBLE_DEVICES"), of_node)
        waits, here = sample.host.pressure.io_some, sample.node
        facts = RankFacts(here, rank, gpu, moves, None, waits, disk, visible_gpus=visible)
        if gpu is not None:
            traffic = _sum(gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s, share)
            if histories is not None:
                history = histories.get(rank.pid, NO_HISTORY)
            else:
                if gpu.index not in of_gpus:
                    of_gpus[gpu.index] = _history(moment, gpu)
                pauses = moment.series(f"pid {rank.pid}", "pause")
                history = replace(of_gpus[gpu.index], pauses=_begins(pauses, bool) if pauses else 0)
            facts = facts._replace(traffic_bytes_per_s=traffic, history=history)
        every.append(facts)
    return tuple(every)


@lru_cache(maxsize=4096)
def visible_gpus(setting: str | None, of_node: int | None) -> int | None:
    """How many GPUs a process sees: of CUDA_VISIBLE_DEVICES those before the first that there is not."""
    if setting is None or of_node is None:
        return of_node
    names = [name.strip() for name in setting.split(",")]
    absent = (at for at, name in enumerate(names) if not name or name.startswith("-") or name == "NoDevFiles")
    return min(next(absent, len(names)), of_node)


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
        power_spread=_spread(power.values) if power else None,
    )


def _is_idle(busy: float) -> bool:
    return busy < IDLE_BUSY


def _sum(*values: float | None) -> float | None:
    numbers = known(values)
    return sum(numbers) if numbers else None


def _begins(series: Series, holds: Callable[[float], bool]) -> int:
    """How often it began to hold."""
    return sum(now and not before for before, now in pairwise(map(holds, series.values)))


def _spread(values: Sequence[float]) -> float | None:
    mean = fmean(values) if values else 0.0
    if len(values) < 30 or mean <= 0:
        return None
    return sqrt(fmean((value - mean) ** 2 for value in values)) / mean


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
            alone = rank.cpu_fraction > FULL_CORE and (rank.children_cpu_fraction or 0.0) < QUIET_WORKERS
            yield f"pid {rank.pid}", "pause", float(idle and alone), HISTORY_S
