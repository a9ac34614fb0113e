"""Rules about a job as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from mltop.probes.judge.health.job.facts import HISTORY_S, IDLE_BUSY, RankFacts
from mltop.probes.judge.health.jobs import JobHit, JobMoment, JobRule

QUIET_BYTES_PER_S = 50e6  # per rank: less than a heartbeat of NCCL, far below any collective
MOST_ODD = 0.05  # of the ranks
SLOW_CLOCK = 0.85
STARVED_SHARE = 0.15
LEAST_DIPS = 4  # in five minutes: a checkpoint is one
SPREAD_OF_OTHERS = 0.15
WAITING_FOR_DISKS = 0.20  # of the last ten seconds (PSI)
MOST_NODES = 4  # in the evidence


def hang(moment: JobMoment) -> Iterator[JobHit]:
    """All ranks spin and nothing is sent. Stacks tell who is to blame; this only says that it is time to look."""
    ranks = [one for one in moment.ranks if one.has_gpu]
    if len(ranks) < 2 or len(ranks) < (moment.world_size or 0) or not all(one.spins for one in ranks):
        return
    if any(one.traffic_bytes_per_s is not None and one.traffic_bytes_per_s > QUIET_BYTES_PER_S for one in ranks):
        return
    powers = [one.power_w for one in ranks if one.power_w is not None]
    at = f" at {median(powers):.0f} W" if powers else ""
    sent = "" if any(one.traffic_bytes_per_s is None for one in ranks) else ", no traffic"
    text = f'{len(ranks)} GPUs 100% "busy"{at}{sent}: they wait in a collective'
    yield JobHit(ranks[0].node, moment.name, text)


def odd_rank(moment: JobMoment) -> Iterator[JobHit]:
    ranks = [one for one in moment.ranks if one.has_gpu or one.state]
    odd = [one for one in ranks if _is_odd(one)]
    spinning = sum(one.spins for one in ranks)
    if len(ranks) < 3 or not 0 < len(odd) <= max(1, MOST_ODD * len(ranks)) or spinning < len(ranks) - len(odd):
        return
    for one in odd:
        subject = one.name + moment.owner
        if one.moves and one.state != "Z":
            doing = "reads or writes" if one.moves == "io" else "takes a core"
            text = f"{subject} {doing} while {spinning} others wait: a checkpoint, or data only it prepares?"
            severity = "info" if one.moves == "io" else "warning"
            yield JobHit(one.node, subject, text, _of_disks(one), severity=severity)
            continue
        why = "is in state D" if one.state == "D" else "holds no GPU" if not one.has_gpu else "leaves its GPU idle"
        text = f"{subject} {why} while {spinning} others wait: it never reached the collective"
        yield JobHit(one.node, subject, text)


def _of_disks(one: RankFacts) -> tuple[str, ...]:
    """What its node's disks do meanwhile."""
    moved = one.disk_bytes_per_s
    return () if moved is None else (f"the disks of {one.node} move {moved / 1e6:.0f} MB/s",)


def _is_odd(one: RankFacts) -> bool:
    if one.state in ("D", "Z") or not one.has_gpu:
        return True
    return one.busy is not None and one.busy < IDLE_BUSY


def straggler(moment: JobMoment) -> Iterator[JobHit]:
    """By its clock; without that by its power, which stays level while that of those who wait for it dips."""
    ranks = [one for one in moment.ranks if one.clock_share is not None and (one.busy or 0.0) > 0.5]
    if len(ranks) < 4:
        return
    usual = median(one.clock_mhz or 0 for one in ranks)
    slow = [one for one in ranks if (one.clock_mhz or 0) < SLOW_CLOCK * usual]
    if 0 < len(slow) <= max(1, MOST_ODD * len(ranks)):
        for one in slow:
            clocks = f"its GPU runs at {one.clock_mhz} MHz, the others at {usual:.0f}"
            subject = one.name + moment.owner
            yield JobHit(one.node, subject, f"{subject} keeps {len(ranks) - len(slow)} waiting: {clocks}")
        return
    yield from _level_one(ranks, moment.owner)


def _level_one(ranks: Sequence[RankFacts], owner: str) -> Iterator[JobHit]:
    spreads = [(one.history.power_spread, one) for one in ranks if one.history.power_spread is not None]
    if len(spreads) < max(4, len(ranks)) or min(one.history.watched_s for one in ranks) < 0.8 * HISTORY_S:
        return
    (least, one), *others = sorted(spreads, key=lambda pair: pair[0])
    if others[0][0] > SPREAD_OF_OTHERS and least < 0.5 * others[0][0]:
        subject = one.name + owner
        text = f"{subject} works steadily while the power of {len(others)} others dips: they seem to wait for it"
        yield JobHit(one.node, subject, text)


def starved(moment: JobMoment) -> Iterator[JobHit]:
    ranks = _watched(moment)
    if not ranks or min(one.history.dips for one in ranks) < LEAST_DIPS:
        return
    share = min(one.history.idle_share for one in ranks)
    if share <= STARVED_SHARE:
        return
    loading = [one for one in ranks if (one.workers_cpu or 0.0) > 0.9 or (one.workers_blocked or 0) > 0]
    blocked = sum(one.workers_blocked or 0 for one in ranks)
    waiting = [one for one in ranks if (one.io_wait or 0.0) > WAITING_FOR_DISKS]
    if len(loading) > len(ranks) / 2:
        how = f"{blocked} workers wait for storage" if blocked else "the workers take all the CPU they get"
    elif len(waiting) > len(ranks) / 2:
        how = f"tasks wait for disks {median(one.io_wait or 0.0 for one in waiting):.0%} of the time"
    else:
        return
    nodes = {one.node: one for one in waiting}
    evidence = tuple(
        text
        for node, one in list(nodes.items())[:MOST_NODES]
        for text in (f"some task of {node} waited for disks {one.io_wait or 0.0:.0%} of the time", *_of_disks(one))
    )
    text = f"GPUs wait for data {share:.0%} of the time: {how}"
    yield JobHit(ranks[0].node, moment.name, text, evidence)


def garbage(moment: JobMoment) -> Iterator[JobHit]:
    ranks = _watched(moment)
    pausing = [one for one in ranks if one.history.pauses >= 2]
    together = min((one.history.idle_share for one in ranks), default=0.0) > STARVED_SHARE
    if len(ranks) >= 4 and len(pausing) >= 2 and not together:
        names = ", ".join(one.name for one in pausing[:3])
        text = f"single ranks pause in turn with a core at 100% ({names}): looks like Python's garbage collector"
        yield JobHit(ranks[0].node, moment.name, text)


def _watched(moment: JobMoment) -> list[RankFacts]:
    """Ranks that are watched for long enough; none when some are not."""
    ranks = [one for one in moment.ranks if one.has_gpu]
    return ranks if all(one.history.watched_s >= 0.8 * HISTORY_S for one in ranks) else []


JOB_RULES: tuple[JobRule, ...] = (
    JobRule(
        "job.hang",
        "critical",
        120.0,
        "t, or mltop stacks: the rank that differs is the suspect",
        hang,
        meaning="all ranks wait in a collective",
        threshold="all busy >= 95 %, no tensor work or < 40 % of the power limit, no traffic, for 120 s*",
        source="NVML, ports; ml-engineering, ClusterMAX",
        needs=("ranks", "gpu.*.busy", "gpu.*.tensor_active | gpu.*.power_w"),
    ),
    JobRule(
        "job.odd_rank",
        "critical",
        30.0,
        "mltop stacks, then look at that node",
        odd_rank,
        meaning="one rank never reached the collective in which the others wait",
        threshold="idle, without a GPU or in state D while all others spin, for 30 s*",
        source="Imbue, ml-engineering",
        needs=("ranks", "gpu.*.busy", "gpu.*.tensor_active | gpu.*.power_w"),
    ),
    JobRule(
        "job.straggler",
        "warning",
        300.0,
        "see what is wrong with that GPU",
        straggler,
        meaning="all wait for one slow rank",
        threshold="clock < 0.85 x median of the job, or steady power while the others' dips, for 5 min*",
        source="cluster-health-scanner, Imbue",
        needs=("ranks", "gpu.*.busy", "gpu.*.sm_clock_mhz", "gpu.*.sm_clock_max_mhz"),
    ),
    JobRule(
        "job.starved",
        "warning",
        60.0,
        "more or faster data loader workers (num_workers), faster storage",
        starved,
        meaning="GPUs wait for data",
        threshold="all idle together > 15 % of 5 min, in 4 dips or more, workers at work or in state D, or tasks that "
        "wait for disks > 20 % of the time*",
        source="NVML, the ranks' children, /proc/pressure/io; ml-engineering",
        needs=("ranks", "gpu.*.busy", "ranks.children_blocked | host.pressure.io"),
    ),
    JobRule(
        "job.gc",
        "info",
        60.0,
        "gc.disable(), and gc.collect() on all ranks at the same step",
        garbage,
        meaning="Python's garbage collector stops single ranks",
        threshold="two ranks pause by themselves with a core at 100 %*",
        source="Imbue, ml-engineering",
        needs=("ranks", "gpu.*.busy", "ranks.cpu_fraction"),
    ),
)
