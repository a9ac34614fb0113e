"""Rules about a job as a whole: its ranks are spread over nodes, and what one rank does means little alone.

What they need of every rank are a few numbers, so that thousands of ranks can be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mltop.probes.judge.health.job.ranks import FULL_CORE, HISTORY_S, IDLE_BUSY
from mltop.probes.judge.health.names import about, rank_name
from mltop.probes.judge.health.relations import RANK_ENDED, RANK_SLOWED, RANK_STALLED
from mltop.probes.judge.health.rule import HOLD, Hit, rank_rule, rule
from mltop.probes.judge.values import known, median_of, sum_of
from mltop.probes.model import GpuSample, JobKey, RankSample, Sample
from mltop.probes.model.gpu import SPINNING_BUSY, SPINNING_TENSOR
from mltop.probes.model.news.judged import RankPast
from mltop.probes.model.units import duration_words, percent_words, rate_words, watts_words
from mltop.probes.model.verdict import gpu_name
from mltop.probes.model.vocabulary import Severity

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
_FABRIC_KINDS = ("infiniband", "roce", "efa")


NO_PAST = RankPast(0)


class RankFacts(NamedTuple):
    """One rank at its node's newest sample, and of several GPUs the first. None: not known.

    ``traffic_bytes_per_s``: NVLink of its GPU and its share of the node's fabric ports. ``io_wait``: share of the time
    in which some task of its node waited for disks; ``disk_bytes_per_s``: what these read and write. ``visible_gpus``:
    how many GPUs CUDA lets it see.
    """

    node: str
    rank: RankSample
    gpu: GpuSample | None
    past: RankPast = NO_PAST
    traffic_bytes_per_s: float | None = None
    io_wait: float | None = None
    disk_bytes_per_s: float | None = None
    visible_gpus: int | None = None

    @property
    def spins(self) -> bool:
        return self.gpu is not None and spins(self.gpu)

    @property
    def is_odd(self) -> bool:
        gpu = self.gpu
        return self.rank.state in ("D", "Z") or gpu is None or (gpu.busy is not None and gpu.busy < IDLE_BUSY)

    def hit(self, subject: str, text: str, evidence: tuple[str, ...] = (), severity: Severity | None = None) -> Hit:
        """What is said of this one."""
        gpus = tuple(map(gpu_name, self.rank.gpus))
        return about(self.rank, Hit(subject, text, evidence, severity, about=gpus, node=self.node))

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

    def watched(self) -> list[RankFacts]:
        """Ranks with GPUs; none before all of them have been watched for long enough."""
        ranks = [facts for facts in self.ranks if facts.gpu is not None]
        return ranks if all(facts.past.is_watched for facts in ranks) else []


@rule("job.hang", "critical", hold_s=120.0, clear_s=30.0)(
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
    if len(ranks) < max([2, *(facts.rank.world_size or 0 for facts in moment.ranks)]):
        return
    traffic = [facts.traffic_bytes_per_s for facts in ranks]
    if any(sent is not None and sent > QUIET_BYTES_PER_S for sent in traffic):
        return
    power_w = median_of(facts.gpu.power_w for facts in ranks if facts.gpu is not None)
    at = f" at {watts_words(power_w)}" if power_w is not None else ""
    silent = "" if None in traffic else ", no traffic"
    text = f'{moment.name}: {len(ranks)} GPUs 100 % "busy"{at}{silent}: they wait in a collective'
    yield Hit(moment.name, text, node=ranks[0].node, job=moment.key)


@rank_rule("job.odd_rank", "critical", hold_s=30.0, clear_s=20.0)(
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
        if facts.past.moves and facts.rank.state != "Z":
            doing = "reads or writes" if facts.past.moves == "io" else "takes a core"
            text = f"{subject} {doing} while {spinning} others wait: a checkpoint, or data only it prepares?"
            yield facts.hit(subject, text, facts.disk_evidence, "info" if facts.past.moves == "io" else "warning")
            continue
        idle = "leaves its GPU idle" if facts.gpu is not None else "holds no GPU"
        why = "is in state D" if facts.rank.state == "D" else idle
        text = f"{subject} {why} while {spinning} others wait; it never reached the collective"
        yield facts.hit(subject, text)


@rank_rule("job.straggler", "warning", hold_s=SLOW_FOR_S)(
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
    usual = median_of(clock for clock, _ in clocks) or 0.0
    slow = [(clock, facts) for clock, facts in clocks if clock < SLOW_CLOCK * usual]
    if not 0 < len(slow) <= max(1, MOST_ODD * len(clocks)):
        yield from _level_rank([facts for _, facts in clocks], moment.owner)
        return
    for clock, facts in slow:
        subject = rank_name(facts.rank) + moment.owner
        why = f"its GPU runs at {clock} MHz, the others at {usual:.0f}"
        yield facts.hit(subject, f"{subject} keeps {len(clocks) - len(slow)} waiting: {why}")


def _level_rank(ranks: Sequence[RankFacts], owner: str) -> Iterator[Hit]:
    spreads = [(facts.past.power_spread, facts) for facts in ranks if facts.past.power_spread is not None]
    if len(spreads) < max(4, len(ranks)) or not all(facts.past.is_watched for facts in ranks):
        return
    (least, facts), *others = sorted(spreads, key=lambda pair: pair[0])
    if others[0][0] > SPREAD_OF_OTHERS and least < 0.5 * others[0][0]:
        subject = rank_name(facts.rank) + owner
        text = f"{subject} works steadily while the power of {len(others)} others dips: they seem to wait for it"
        yield facts.hit(subject, text)


@rule("job.starved", "warning", hold_s=60.0)(
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
    if not ranks or min(facts.past.dips for facts in ranks) < LEAST_DIPS:
        return
    share = min(facts.past.idle_share for facts in ranks)
    if share <= STARVED_SHARE:
        return
    children = [(facts.rank.children_cpu_fraction or 0.0, facts.rank.children_blocked or 0) for facts in ranks]
    loading = sum(cpu > FULL_CORE or waiting > 0 for cpu, waiting in children)
    blocked = sum(waiting for _, waiting in children)
    waiting = {facts.node: facts for facts in ranks if (facts.io_wait or 0.0) > WAITING_FOR_DISKS}
    if loading > len(ranks) / 2:
        how = f"{blocked} workers wait for storage" if blocked else "the workers take all the CPU they get"
    elif sum(facts.node in waiting for facts in ranks) > len(ranks) / 2:
        waits = median_of(facts.io_wait or 0.0 for facts in ranks if facts.node in waiting) or 0.0
        how = f"tasks wait for disks {percent_words(waits)} of the time"
    else:
        return
    evidence: list[str] = []
    for facts in list(waiting.values())[:MOST_NODES]:
        waited = percent_words(facts.io_wait or 0.0)
        evidence += [f"some task of {facts.node} waited for disks {waited} of the time", *facts.disk_evidence]
    text = f"{moment.name}: GPUs wait for data {percent_words(share)} of the time: {how}"
    yield Hit(moment.name, text, tuple(evidence), node=ranks[0].node, job=moment.key)


@rule("job.gc", "info", hold_s=60.0)(
    meaning="Python's garbage collector stops single ranks",
    threshold="two ranks pause by themselves with a core at 100 %*",
    source="Imbue, ml-engineering",
    action="gc.disable(), and gc.collect() on all ranks at the same step",
    needs=("ranks", "gpu.*.busy", "ranks.cpu_fraction"),
    explains_ranks=(RANK_SLOWED, "job.straggler"),
)
def garbage_collection(moment: JobMoment) -> Iterator[Hit]:
    ranks = moment.watched()
    pausing = [facts for facts in ranks if facts.past.pauses >= LEAST_PAUSES]
    together = min((facts.past.idle_share for facts in ranks), default=0.0) > STARVED_SHARE
    if len(ranks) >= 4 and len(pausing) >= PAUSING_RANKS and not together:
        names = ", ".join(rank_name(facts.rank) for facts in pausing[:3])
        how = f"pause in turn with a core at 100 % ({names}): looks like Python's garbage collector"
        text = f"{moment.name}: single ranks {how}"
        numbers = known(facts.rank.rank for facts in pausing)
        yield Hit(moment.name, text, node=ranks[0].node, job=moment.key, ranks=tuple(numbers))


def facts_of_ranks(sample: Sample, pasts: Iterable[RankPast]) -> tuple[RankFacts, ...]:
    by_pid = {past.pid: past for past in pasts}
    gpus = {gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"}
    ports = (link for link in sample.links if link.kind in _FABRIC_KINDS)
    fabric = sum_of(*(rate for link in ports for rate in (link.rx_bytes_per_s, link.tx_bytes_per_s)))
    share = fabric / len(sample.ranks) if fabric is not None and sample.ranks else None
    waits, host = sample.host.pressure.io_some, sample.host
    disk = sum_of(host.disk_read_bytes_per_s, host.disk_write_bytes_per_s)
    # A MIG instance is a device of its own; without NVML nobody knows how many there are.
    of_node = None if not sample.gpus or any(gpu.mig_enabled for gpu in sample.gpus) else len(sample.gpus)
    every = []
    for rank in sample.ranks:
        if not rank.job:
            continue
        gpu = next((gpus[index] for index in rank.gpus if index in gpus), None)
        traffic = None if gpu is None else sum_of(gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s, share)
        visible = visible_gpus(rank.settings.get("CUDA_VISIBLE_DEVICES"), of_node)
        past = by_pid.get(rank.pid, NO_PAST)
        every.append(RankFacts(sample.node, rank, gpu, past, traffic, waits, disk, visible))
    return tuple(every)


@lru_cache(maxsize=4096)
def visible_gpus(setting: str | None, of_node: int | None) -> int | None:
    """How many GPUs a process sees: of CUDA_VISIBLE_DEVICES those before the first that there is not."""
    if setting is None or of_node is None:
        return of_node
    names = [name.strip() for name in setting.split(",")]
    absent = (at for at, name in enumerate(names) if not name or name.startswith("-") or name == "NoDevFiles")
    return min(next(absent, len(names)), of_node)
