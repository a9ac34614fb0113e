"""Host memory: pressure, swap, OOM kills, /dev/shm, DIMM errors."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.moment import DAY_S, EVENT_LISTED_S, Moment
from mltop.probes.judge.health.relations import MEMORY_ERRORS, RANK_ENDED, RANK_STALLED, SILENT_PEER, SLOWS, STOPS
from mltop.probes.judge.health.rule import HOLD, LIMIT, Hit, Limit, critical_if, rank_rule, rule, share
from mltop.probes.model import Sample
from mltop.probes.model.units import percent_words, rate_words, size_words

SOME_PRESSURE, FULL_PRESSURE = 0.10, 0.05
LEAST_AVAILABLE = 0.03
SHM_CRITICAL = 0.95


@rule("mem.pressure", "warning", hold_s=10.0)(
    meaning="tasks wait for memory",
    threshold=f"PSI memory some > {percent_words(SOME_PRESSURE)}*; critical: full > {percent_words(FULL_PRESSURE)}* or "
    f"< {percent_words(LEAST_AVAILABLE)} available*, for {HOLD}",
    source="/proc/pressure/memory, MemAvailable",
    action="look for a leak; fewer data loader workers",
    needs=("host.memory", "host.pressure.memory"),
    explains_node=("mem.swap", "job.mem_growth"),
    explains_ranks=(RANK_STALLED, *SLOWS, "job.starved"),
)
def pressure(moment: Moment) -> Iterator[Hit]:
    host, waits = moment.now.host, moment.now.host.pressure
    available, total = host.memory_available_bytes, host.memory_total_bytes
    grave = (waits.memory_full or 0.0) > FULL_PRESSURE
    parts = []
    if available is not None and total:
        grave |= available / total < LEAST_AVAILABLE
        parts.append(f"{size_words(available)} of {size_words(total)} available")
    if waits.memory_some is not None:
        parts.append(f"tasks waited for memory {percent_words(waits.memory_some)} of the time")
    if grave or (waits.memory_some or 0.0) > SOME_PRESSURE:
        yield Hit("host", f"node short of memory: {', '.join(parts)}", severity=critical_if(grave))


@rule("mem.swap", "warning", hold_s=10.0)(
    meaning="pages of the node move to and from disk",
    threshold="pswpin + pswpout > 0/s while ranks run; swap in use: info",
    source="/proc/vmstat; imbue, Azure",
    action="sudo swapoff -a",
    needs=("ranks", "host.swap", "host.swap_in_bytes_per_s", "host.swap_out_bytes_per_s"),
    explains_ranks=(*SLOWS, "job.starved"),
)
def swap(moment: Moment) -> Iterator[Hit]:
    host = moment.now.host
    if not moment.now.ranks:
        return
    moved = (host.swap_in_bytes_per_s or 0.0) + (host.swap_out_bytes_per_s or 0.0)
    if moved > 0:
        yield Hit("host", f"training is swapping: {rate_words(moved)}")
    elif host.swap_used_bytes:
        yield Hit("host", f"swap is on, {size_words(host.swap_used_bytes)} of it in use", severity="info", key="on")


@rank_rule("mem.oom", "critical")(
    meaning="the kernel killed a process for lack of memory",
    threshold="each, for an hour",
    source="kernel log, /proc/vmstat oom_kill, memory.events; gpud",
    action="raise the memory limit or use less",
    needs=("kernel_log | host.oom_kills",),
    grows=("host",),
    precedence=MEMORY_ERRORS,
    at_once=True,
    explains_node=("mem.pressure", "mem.swap", "mem.shm", "job.mem_growth"),
    explains_ranks=STOPS,
    explains_peers=SILENT_PEER,
)
def oom(moment: Moment) -> Iterator[Hit]:
    """By the log where it can be read; its counter tells as well, but not who."""
    events = list(moment.events("oom"))
    for event in events:
        who = event.process or event.subject or "a process"
        pid = f" ({event.pid})" if event.pid is not None else ""
        limit = ", cgroup limit" if "CONSTRAINT_MEMCG" in event.text else ""
        text = f"kernel killed {who}{pid} for lack of memory{limit}"
        yield Hit(who, text, (event.text,), since=event.at, key=str(event.pid), pid=event.pid)
    if events:
        return
    of_host = moment.trails.increase("host", "oom_kills", EVENT_LISTED_S).amount
    of_cgroups = (
        (group.path, moment.trails.increase(group.path, "oom_kills", EVENT_LISTED_S).amount)
        for group in moment.now.host.cgroups
    )
    inside = {path: kills for path, kills in of_cgroups if kills > 0}
    # A cgroup's counter (memory.events) also counts what was killed in those below it.
    outermost = [path for path in inside if not any(path.startswith(f"{other}/") for other in inside)]
    kills = max(of_host, sum(inside[path] for path in outermost))
    if kills > 0:
        times = "a process" if kills == 1 else f"{kills:.0f} processes"
        where = f" in cgroup{'s' if len(inside) > 1 else ''} {', '.join(inside)}" if inside else ""
        evidence = tuple(f"{path}: oom_kill +{amount:.0f}" for path, amount in inside.items())
        yield Hit("host", f"kernel killed {times} for lack of memory{where} within the hour", evidence)


@rule("mem.shm", "warning", hold_s=5.0)(
    meaning="shared memory, through which workers hand over batches, runs out",
    threshold=f"> {LIMIT}; critical: > {percent_words(SHM_CRITICAL)}",
    limit=share(0.80),
    source="statvfs /dev/shm",
    action="remove what is left over there; else fewer workers, or more --shm-size and memory",
    needs=("host.shm",),
    adds=True,
    orders=True,
    explains_ranks=(*STOPS, "job.starved"),
)
def shared_memory(moment: Moment, limit: float) -> Iterator[Hit]:
    used, total = moment.now.host.shm_used_bytes or 0, moment.now.host.shm_total_bytes
    full = used / total if total else 0.0
    if full > limit:
        text = f"/dev/shm {percent_words(full)} full ({size_words(used)} of {size_words(total or 0)})"
        text = f"{text}: data loader workers get SIGBUS once it is full"
        yield Hit("/dev/shm", text, severity=critical_if(full > SHM_CRITICAL))


@rule("mem.hugepages", "info")(
    meaning="memory is reserved for huge pages and not used",
    threshold=f"> {LIMIT} of memory*",
    limit=share(0.10),
    source="/proc/meminfo HugePages_Free",
    action="sudo sysctl vm.nr_hugepages=0",
    needs=("host.huge_pages_free_bytes", "host.memory"),
)
def huge_pages(moment: Moment, limit: float) -> Iterator[Hit]:
    host = moment.now.host
    unused = host.huge_pages_free_bytes
    if unused and host.memory_total_bytes and unused > limit * host.memory_total_bytes:
        yield Hit("host", f"{size_words(unused)} of memory locked in huge pages that nobody uses")


@rule("mem.mce", "warning")(
    meaning="host memory has errors",
    threshold=f"uncorrected > 0 (critical while they grow); corrected > {LIMIT} a day",
    limit=Limit(9, unit="corrected errors a day"),
    source="EDAC ue_count, ce_count; NHC",
    action="have the DIMMs looked at by the vendor",
    needs=("host.memory_errors_corrected", "host.memory_errors_uncorrected"),
    grows=("host",),
    precedence=MEMORY_ERRORS,
    explains_ranks=(RANK_ENDED,),
)
def memory_errors(moment: Moment, limit: float) -> Iterator[Hit]:
    """Uncorrected errors of before are told, as they do not go away; corrected ones only when they grow."""
    uncorrected = moment.now.host.memory_errors_uncorrected
    if uncorrected:
        grow = moment.trails.increase("host", "memory_errors_uncorrected", DAY_S).amount > 0
        text = f"{uncorrected} uncorrected host memory errors since boot"
        yield Hit("host", text, severity=critical_if(grow), key="ue")
    corrected = moment.trails.increase("host", "memory_errors_corrected", DAY_S).amount
    if corrected > limit:
        yield Hit("host", f"{corrected:.0f} corrected host memory errors while watched", key="ce")


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    host = sample.host
    for name in ("oom_kills", "memory_errors_uncorrected", "memory_errors_corrected"):
        value = getattr(host, name)
        if value is not None:
            yield "host", name, value
    for group in host.cgroups:
        if group.oom_kills is not None:
            yield group.path, "oom_kills", group.oom_kills
