"""Ranks of a job on one node: pinning, NUMA, settings, memory that grows, what they log; what they did lately, which
only their node sees, and rules about whole jobs are made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import sqrt

from mltop.probes.judge.deaths import ended_well
from mltop.probes.judge.health.moment import Moment, once_per_moment
from mltop.probes.judge.health.names import about, bus_id, rank_name
from mltop.probes.judge.health.relations import RANK_ENDED, RANK_STALLED, SLOWS, STOPS
from mltop.probes.judge.health.rule import Hit, rank_rule, rule
from mltop.probes.judge.health.trails import Series
from mltop.probes.judge.values import grouped, known, mean_of
from mltop.probes.model import GpuSample, JobKey, LogLine, RankSample, Sample
from mltop.probes.model.news.judged import RankPast
from mltop.probes.model.ranks import kernel_list, ranks_text
from mltop.probes.model.units import counted, duration_words, size_words

HISTORY_S = 300.0
WATCHED_SHARE = 0.8  # of HISTORY_S: less says nothing of what is usual
TOLD_S = 600.0  # lines of a rank's log
IDLE_BUSY = 0.20
WORKING_CALLS_PER_S = 20.0  # reads and writes: a heartbeat makes a few
FULL_CORE, QUIET_WORKERS = 0.9, 0.2  # CPU of a rank that pauses, and of its workers
_LEAST_POWERS = 30
GROWTH_KEEP_S, GROWTH_SPAN_S = 7200.0, 900.0
GROWTH_WITHIN_S = 6 * 3600.0
OTHER_THREADS = 4  # beside the ranks and their workers
_YES = ("true", "t", "yes", "y", "on")

# What a setting does that is left over. Where it does nothing, nothing is said: see _is_harmless.
BAD_SETTINGS = {
    "CUDA_LAUNCH_BLOCKING": "every kernel launch waits for the one before",
    "NSIGHT_CUDA_DEBUGGER": "a debugger is attached to the GPU",
    "NCCL_P2P_DISABLE": "GPUs do not talk to each other directly",
    "NCCL_SHM_DISABLE": "ranks of one node do not use shared memory",
    "TORCH_NCCL_BLOCKING_WAIT": "every collective blocks the CPU",
}
# Cards between which the driver allows no peer-to-peer traffic.
_NO_P2P = ("GeForce", "RTX 4", "RTX 5", "TITAN RTX")


@rank_rule("job.affinity", "critical", hold_s=10.0)(
    meaning="ranks are pinned to one core",
    threshold="one CPU allowed (warning), the same for several ranks (critical)*",
    source="/proc/PID/status Cpus_allowed_list",
    action="srun --cpu-bind, taskset, or the launcher's binding",
    needs=("ranks", "ranks.cpus_allowed", "host.cpu_count"),
    explains=("job.numa",),
    explains_node=("cpu.load", "job.threads"),
    explains_ranks=(*SLOWS, "job.starved", "job.gc"),
)
def affinity(moment: Moment) -> Iterator[Hit]:
    """Only where there are cores to give: a container of one core has no choice."""
    ranks = [rank for rank in moment.now.ranks if rank.cpus_allowed and rank.state != "Z"]
    if (moment.now.host.cpu_count or 0) < 2 * max(1, len(ranks)):
        return
    on_one_core = (rank for rank in ranks if len(kernel_list(rank.cpus_allowed)) == 1)
    for core, pinned in sorted(grouped(on_one_core, lambda rank: min(kernel_list(rank.cpus_allowed))).items()):
        if len(pinned) > 1:
            of = "all " if len(pinned) == len(ranks) else ""
            names, text = tuple(map(rank_name, pinned)), f"{of}{len(pinned)} ranks pinned to core {core}"
            yield Hit(f"core {core}", text, severity="critical", about=names)
        else:
            name = rank_name(pinned[0])
            text = f"{name} has core {core} only: its data loader workers and NCCL threads share it"
            yield about(pinned[0], Hit(name, text, severity="warning", key=str(pinned[0].pid)))


@rank_rule("job.numa", "warning", hold_s=10.0)(
    meaning="a rank runs on the other socket than its GPU",
    threshold="allowed CPUs and the GPU's local CPUs are disjoint",
    source="Cpus_allowed_list, PCI local_cpulist; ml-engineering",
    action="bind the rank to its GPU's socket (numactl, --cpu-bind)",
    needs=("ranks", "ranks.cpus_allowed", "pci", "gpu.*.pci_bus_id"),
    explains_ranks=(*SLOWS, "job.starved"),
)
def numa(moment: Moment) -> Iterator[Hit]:
    near = {bus_id(device.bus_id): device for device in moment.now.pci if device.kind == "gpu" and device.local_cpus}
    if not near:
        return
    gpus = {gpu.index: near.get(bus_id(gpu.pci_bus_id)) for gpu in moment.now.gpus}
    far: dict[tuple[JobKey, str | None, str | None, int | None], list[tuple[RankSample, int]]] = {}
    for rank in moment.now.ranks:
        allowed = kernel_list(rank.cpus_allowed)
        for index in rank.gpus:
            device = gpus.get(index)
            if allowed and device is not None and not allowed & kernel_list(device.local_cpus):
                pinning = rank.job_key, rank.cpus_allowed, device.local_cpus, device.numa_node
                far.setdefault(pinning, []).append((rank, index))
                break
    for (_, cores, near_cores, node), members in far.items():
        first, gpu = members[0]
        where = f" (NUMA node {node})" if node is not None else ""
        text = f"{rank_name(first)} runs on cores {cores}, its GPU {gpu}{where} is near {near_cores}"
        names = tuple(rank_name(rank) for rank, _ in members)
        hit = about(first, Hit(rank_name(first), text, key=str(first.pid), about=names))
        if len(members) > 1:
            numbers = tuple(known(rank.rank for rank, _ in members))
            who = ranks_text(numbers) if numbers else counted(len(members), "rank")
            text = f"{who} run on cores {cores}, their GPUs{where} are near {near_cores}"
            hit = replace(hit, message=text, ranks=numbers, pid=None)
        yield hit


@rule("job.threads", "info", hold_s=60.0)(
    meaning="more processes than CPUs",
    threshold="ranks and their workers > allowed CPUs",
    source="/proc/PID/status; ml-engineering",
    action="fewer data loader workers, or more CPUs per task",
    needs=("ranks", "ranks.cpus_allowed"),
    explains_ranks=(*SLOWS, "job.starved", "job.gc"),
)
def threads(moment: Moment) -> Iterator[Hit]:
    ranks = [rank for rank in moment.now.ranks if rank.state != "Z"]
    allowed = frozenset().union(*(kernel_list(rank.cpus_allowed) for rank in ranks))
    processes = sum(1 + len(rank.children) for rank in ranks)
    if allowed and processes > len(allowed):
        want = processes + OTHER_THREADS
        who = f"{counted(len(ranks), 'rank')} with {processes} processes"
        yield Hit("host", f"{who} share {counted(len(allowed), 'CPU')}; they need {want}")


@rank_rule("job.mem_growth", "warning", hold_s=60.0, eager=False)(
    meaning="the ranks' memory grows until the node has none left",
    threshold=f"steady over > {duration_words(GROWTH_SPAN_S)}, out of memory within {duration_words(GROWTH_WITHIN_S)}*",
    source="RSS of the ranks",
    action="look for what is kept from step to step",
    needs=("ranks", "ranks.rss_bytes", "host.memory"),
    explains_node=("mem.pressure", "mem.swap"),
    explains_ranks=STOPS,
)
def memory_growth(moment: Moment) -> Iterator[Hit]:
    """Per rank, against what the node has left for all that grow."""
    available = moment.now.host.memory_available_bytes
    if available is None or not _may_run_out(moment, available):
        return
    all_series = ((rank, moment.trails.series(f"pid {rank.pid}", "rss_bytes")) for rank in moment.now.ranks)
    slopes = ((rank, series.steady_slope_per_s(GROWTH_SPAN_S)) for rank, series in all_series if series is not None)
    growing = [(slope, rank) for rank, slope in slopes if slope is not None]
    total = sum(slope for slope, _ in growing)
    if total <= 0 or available / total > GROWTH_WITHIN_S:
        return
    slope, rank = max(growing, key=lambda pair: pair[0])
    name, others = rank_name(rank), f" and {len(growing) - 1} other ranks" if len(growing) > 1 else ""
    left = duration_words(available / total)
    text = f"{name} grows by {size_words(slope * 3600)} an hour{others}: out of memory in {left}"
    yield about(rank, Hit(name, text))


def _may_run_out(moment: Moment, available: int) -> bool:
    """A first look: from the oldest to the newest value of each rank, with much room."""
    total = 0.0
    for rank in moment.now.ranks:
        ends = moment.trails.ends(f"pid {rank.pid}", "rss_bytes")
        if ends is not None and ends[1][0] - ends[0][0] >= GROWTH_SPAN_S:
            total += max(0.0, (ends[1][1] - ends[0][1]) / (ends[1][0] - ends[0][0]))
    return total > 0 and available / total < 4 * GROWTH_WITHIN_S


@rule("job.bad_env", "warning")(
    meaning="a setting that makes training slow is left over",
    threshold="CUDA_LAUNCH_BLOCKING, NSIGHT_CUDA_DEBUGGER, NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_IB_DISABLE, "
    "TORCH_NCCL_BLOCKING_WAIT, where they change something: not with one rank, one GPU, or no such link",
    source="the ranks' environment; DCGM, ml-engineering",
    action="unset it",
    needs=("ranks",),
    explains_ranks=(*SLOWS, RANK_STALLED, "job.starved"),
)
def bad_settings(moment: Moment) -> Iterator[Hit]:
    """What slows this job down, here: a setting that changes nothing on this machine is nobody's trouble."""
    settings = ((rank, name, value) for rank in moment.now.ranks for name, value in rank.settings.items())
    bad = ((rank, name) for rank, name, value in settings if name in BAD_SETTINGS and is_on(name, value))
    for (job, name), entries in grouped(bad, lambda entry: (entry[0].job_key, entry[1])).items():
        ranks = [rank for rank, _ in entries]
        here = [rank for rank in moment.now.ranks if rank.job_key == job] if job.name else ranks
        if not _is_harmless(moment.now, name, here):
            subject = _job_name(moment, ranks[0])
            numbers = tuple(number for number in known(rank.rank for rank in ranks) if number >= 0)
            only = f" on {ranks_text(numbers)} only" if numbers and len(ranks) < len(here) else ""
            text = f"{subject}: {name}={ranks[0].settings[name]} is set{only}: {BAD_SETTINGS[name]}"
            yield Hit(subject, text, key=name, job=job if job.name else None, ranks=numbers)
    # Virtual machines have a RoCE port for their everyday network: NCCL is rightly kept off it.
    kinds = ("infiniband", "roce") if moment.now.host.is_virtual is False else ("infiniband",)
    active = sum(link.kind in kinds and link.state == "ACTIVE" for link in moment.now.links)
    over_nodes = (rank for rank in moment.now.ranks if (rank.world_size or 0) > (rank.local_world_size or 0) > 0)
    without = (rank for rank in over_nodes if is_on("NCCL_IB_DISABLE", rank.settings.get("NCCL_IB_DISABLE", "")))
    for subject, job in {_job_name(moment, rank): rank.job_key for rank in without}.items() if active else ():
        text = f"{subject}: NCCL_IB_DISABLE is set: NCCL uses sockets beside {active} active InfiniBand ports"
        yield Hit(subject, text, key="NCCL_IB_DISABLE", job=job if job.name else None)


def is_on(name: str, value: str) -> bool:
    """Whether it switches something on: NCCL reads its own as numbers, and a word as 0."""
    try:
        return int(value.strip() or "0", 0) != 0
    except ValueError:
        return not name.startswith("NCCL_") and value.strip().lower() in _YES


def _is_harmless(sample: Sample, name: str, ranks: list[RankSample]) -> bool:
    """``ranks``: the job's on this node, also those that do without the setting: one that has it costs them, too."""
    if name.startswith(("CUDA_", "NSIGHT_")):
        return not sample.gpus
    if all((rank.world_size or 2) < 2 for rank in ranks):
        return True  # nobody to talk to
    if not name.startswith("NCCL_"):
        return False
    if all(rank.local_world_size == 1 for rank in ranks) or len({gpu for rank in ranks for gpu in rank.gpus}) == 1:
        return True  # nobody on this node
    linked = any(link.active for gpu in sample.gpus for link in gpu.nvlink.links)
    if name == "NCCL_P2P_DISABLE":
        return not linked and all(any(card in (gpu.name or "") for card in _NO_P2P) for gpu in sample.gpus)
    # Shared memory is what NCCL takes where GPUs cannot reach each other.
    return linked and not any(is_on("NCCL_P2P_DISABLE", rank.settings.get("NCCL_P2P_DISABLE", "")) for rank in ranks)


def _job_name(moment: Moment, rank: RankSample) -> str:
    if not rank.job:
        return rank_name(rank)
    owner = f" of {rank.user or rank.uid}" if _owners(moment)[rank.job] > 1 else ""
    return f"job {rank.job}{owner}"


@once_per_moment
def _owners(moment: Moment) -> Counter[str]:
    """By the name of a job of how many users it is one."""
    return Counter(job.name for job in {rank.job_key for rank in moment.now.ranks})


@rank_rule("job.log", "warning", clear_s=0.0)(
    meaning="a rank's log says that a collective timed out, who did not come to it, or why the rank ended",
    threshold=f"torch's or gloo's line of the last {TOLD_S:g} s; a traceback of a rank that has failed",
    source="the file that is its stdout or stderr",
    act="stacks",
    action="while the processes live; later the log says more",
    needs=("ranks",),
    follows_ranks=(RANK_STALLED, RANK_ENDED),
)
def log(moment: Moment) -> Iterator[Hit]:
    """The last line of each rank. An error of one that lives may have been handled."""
    failed = {death.pid for death in moment.now.deaths if not ended_well(death)}
    last: dict[tuple[int | None, int | None], LogLine] = {}
    for line in moment.now.log_lines:
        if line.at >= moment.now.sampled_at - TOLD_S and (line.kind in ("timeout", "names") or line.pid in failed):
            last[line.pid, line.rank] = line
    for line in last.values():
        who = f"rank {line.rank}" if line.rank is not None else f"a rank of {line.job}" if line.job else "a rank"
        named = f" that {ranks_text(line.named)} did not come" if line.named else ""
        yield Hit(
            who,
            f"the log of {who} says{named}: {line.text} ({line.where})",
            since=line.at,
            key=str(line.pid or ""),
            job=JobKey(line.job, line.uid) if line.job else None,
            ranks=() if line.rank is None else (line.rank,),
            pid=line.pid,
        )


def gauges(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
    for rank in sample.ranks:
        if rank.rss_bytes is not None:
            yield f"pid {rank.pid}", "rss_bytes", float(rank.rss_bytes), GROWTH_KEEP_S


# What they did lately


def pasts_of_ranks(moment: Moment, known: Mapping[int, RankPast] | None = None) -> list[RankPast]:
    """``known``: by pid, what was made a moment ago, with new ``moves``; None: make all anew, which takes a while."""
    sample, passed_s = moment.now, moment.passed_s or 1.0
    gpus = {gpu.index: gpu for gpu in sample.gpus if gpu.state == "ok"}
    before = {rank.pid: rank for rank in moment.before.ranks} if moment.before is not None else {}
    of_gpus: dict[int, RankPast] = {}
    pasts = []
    for rank in sample.ranks:
        if not rank.job:
            continue
        past = known.get(rank.pid) if known is not None else None
        gpu = next((gpus[index] for index in rank.gpus if index in gpus), None)
        if known is None and gpu is not None:
            if gpu.index not in of_gpus:
                of_gpus[gpu.index] = _past_of_gpu(moment, gpu)
            pauses = moment.trails.series(f"pid {rank.pid}", "pause")
            past = replace(of_gpus[gpu.index], pid=rank.pid, pauses=_begins(pauses, bool) if pauses else 0)
        moves, old = "", before.get(rank.pid)
        if old is not None:
            read = (rank.read_syscalls or 0) - (old.read_syscalls or 0)
            written = (rank.write_syscalls or 0) - (old.write_syscalls or 0)
            ran_s = (rank.main_cpu_s or 0.0) - (old.main_cpu_s or 0.0)
            moves = "cpu" if ran_s > 0.5 * passed_s else ""
            if read + written > WORKING_CALLS_PER_S * passed_s:
                moves = "io"
        pasts.append(replace(past or RankPast(rank.pid), moves=moves))
    return pasts


def _past_of_gpu(moment: Moment, gpu: GpuSample) -> RankPast:
    """Rounded: what changes is sent, and the digits behind change every time."""
    busy = moment.trails.series(f"GPU {gpu.index}", "busy")
    power = moment.trails.series(f"GPU {gpu.index}", "power_w")
    past, mean = RankPast(0), (mean_of(power.values) or 0.0) if power else 0.0
    if busy:
        dips = _begins(busy, _is_idle)
        is_watched = busy.span_s >= WATCHED_SHARE * HISTORY_S
        past = replace(past, is_watched=is_watched, idle_share=round(busy.share(_is_idle), 2), dips=dips)
    if power and len(power.values) >= _LEAST_POWERS and mean > 0:
        spread = sqrt(mean_of((watts - mean) ** 2 for watts in power.values) or 0.0) / mean
        past = replace(past, power_spread=round(spread, 2))
    return past


def _is_idle(busy: float) -> bool:
    return busy < IDLE_BUSY


def _begins(series: Series, holds: Callable[[float], bool]) -> int:
    """How often it began to hold."""
    held = [*map(holds, series.values)]
    return sum(now and not before for before, now in zip(held, held[1:]))


def past_gauges(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
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
