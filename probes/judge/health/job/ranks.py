"""Ranks of a job on one node: pinning, NUMA, settings, memory that grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mltop.probes.judge.health.names import bus_id, kernel_list, of_rank, rank_name
from mltop.probes.judge.health.rule import RANK_STALLED, SLOWS, STOPS, Hit, Moment, once_per_moment, rank_rule, rule
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import RankSample, Sample
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.units import duration_words, size_words

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


@rank_rule(
    "job.affinity",
    "critical",
    hold_s=10.0,
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
            yield Hit(name, text, severity="warning", key=str(pinned[0].pid), **of_rank(pinned[0]))


@rank_rule(
    "job.numa",
    "warning",
    hold_s=10.0,
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
    for rank in moment.now.ranks:
        allowed = kernel_list(rank.cpus_allowed)
        for index in rank.gpus:
            device = gpus.get(index)
            if allowed and device is not None and not allowed & kernel_list(device.local_cpus):
                where = f" (NUMA node {device.numa_node})" if device.numa_node is not None else ""
                far = f"runs on cores {rank.cpus_allowed}, its GPU {index}{where} is near {device.local_cpus}"
                yield Hit(rank_name(rank), f"{rank_name(rank)} {far}", key=str(rank.pid), **of_rank(rank))
                break


@rule(
    "job.threads",
    "info",
    hold_s=60.0,
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
        yield Hit("host", f"{processes} processes of {len(ranks)} ranks on {len(allowed)} CPUs, {want} would be enough")


@rank_rule(
    "job.mem_growth",
    "warning",
    hold_s=60.0,
    meaning="the ranks' memory grows until the node has none left",
    threshold=f"steady over > {duration_words(GROWTH_SPAN_S)}, out of memory within {duration_words(GROWTH_WITHIN_S)}*",
    source="RSS of the ranks",
    action="look for what is kept from step to step",
    needs=("ranks", "ranks.rss_bytes", "host.memory"),
    eager=False,
    explains_node=("mem.pressure", "mem.swap"),
    explains_ranks=STOPS,
)
def memory_growth(moment: Moment) -> Iterator[Hit]:
    """Per rank, against what the node has left for all that grow."""
    available = moment.now.host.memory_available_bytes
    if available is None or not _may_run_out(moment, available):
        return
    all_series = ((rank, moment.series(f"pid {rank.pid}", "rss_bytes")) for rank in moment.now.ranks)
    slopes = ((rank, series.steady_slope_per_s(GROWTH_SPAN_S)) for rank, series in all_series if series is not None)
    growing = [(slope, rank) for rank, slope in slopes if slope is not None]
    total = sum(slope for slope, _ in growing)
    if total <= 0 or available / total > GROWTH_WITHIN_S:
        return
    slope, rank = max(growing, key=lambda pair: pair[0])
    name, others = rank_name(rank), f" and {len(growing) - 1} other ranks" if len(growing) > 1 else ""
    left = duration_words(available / total)
    text = f"{name} grows by {size_words(slope * 3600)} an hour{others}: out of memory in {left}"
    yield Hit(name, text, **of_rank(rank))


def _may_run_out(moment: Moment, available: int) -> bool:
    """A first look: from the oldest to the newest value of each rank, with much room."""
    total = 0.0
    for rank in moment.now.ranks:
        ends = moment.trails.ends(f"pid {rank.pid}", "rss_bytes")
        if ends is not None and ends[1][0] - ends[0][0] >= GROWTH_SPAN_S:
            total += max(0.0, (ends[1][1] - ends[0][1]) / (ends[1][0] - ends[0][0]))
    return total > 0 and available / total < 4 * GROWTH_WITHIN_S


@rule(
    "job.bad_env",
    "warning",
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
    yield from _without_infiniband(moment)


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


def _without_infiniband(moment: Moment) -> Iterator[Hit]:
    """Virtual machines have a RoCE port for their everyday network: NCCL is rightly kept off it."""
    kinds = ("infiniband", "roce") if moment.now.host.is_virtual is False else ("infiniband",)
    active = sum(link.kind in kinds and link.state == "ACTIVE" for link in moment.now.links)
    over_nodes = (rank for rank in moment.now.ranks if (rank.world_size or 0) > (rank.local_world_size or 0) > 0)
    without = (rank for rank in over_nodes if is_on("NCCL_IB_DISABLE", rank.settings.get("NCCL_IB_DISABLE", "")))
    for subject, job in {_job_name(moment, rank): rank.job_key for rank in without}.items() if active else ():
        text = f"{subject}: NCCL_IB_DISABLE is set: NCCL uses sockets beside {active} active InfiniBand ports"
        yield Hit(subject, text, key="NCCL_IB_DISABLE", job=job if job.name else None)


def gauges(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
    for rank in sample.ranks:
        if rank.rss_bytes is not None:
            yield f"pid {rank.pid}", "rss_bytes", float(rank.rss_bytes), GROWTH_KEEP_S
