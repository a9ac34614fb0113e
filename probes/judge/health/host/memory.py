"""Host memory: pressure, swap, OOM kills, /dev/shm, DIMM errors."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.host.system import size
from mltop.probes.judge.health.rule import EVENT_LISTED_S, MEMORY_ERRORS, Hit, Moment, Rule
from mltop.probes.model import Sample

SOME_PRESSURE, FULL_PRESSURE = 0.10, 0.05
LEAST_AVAILABLE = 0.03
SHM_WARNING, SHM_CRITICAL = 0.80, 0.95
HUGE_PAGES_SHARE = 0.10
CORRECTED_A_DAY = 9
DAY_S = 86_400.0


def pressure(moment: Moment) -> Iterator[Hit]:
    host, waits = moment.now.host, moment.now.host.pressure
    left = None
    if host.memory_available_bytes is not None and host.memory_total_bytes:
        left = host.memory_available_bytes / host.memory_total_bytes
    full = (waits.memory_full or 0.0) > FULL_PRESSURE
    short = left is not None and left < LEAST_AVAILABLE
    if not full and not short and (waits.memory_some or 0.0) <= SOME_PRESSURE:
        return
    parts = []
    if host.memory_available_bytes is not None and host.memory_total_bytes:
        parts.append(f"{size(host.memory_available_bytes)} of {size(host.memory_total_bytes)} available")
    if waits.memory_some is not None:
        parts.append(f"tasks waited for memory {waits.memory_some:.0%} of the time")
    severity = "critical" if full or short else "warning"
    yield Hit("host", f"node short of memory: {', '.join(parts)}", severity=severity)


def swap(moment: Moment) -> Iterator[Hit]:
    host = moment.now.host
    if not moment.now.ranks:
        return
    moved = (host.swap_in_bytes_per_s or 0.0) + (host.swap_out_bytes_per_s or 0.0)
    if moved > 0:
        yield Hit("host", f"training is swapping: {size(moved)}/s", severity="warning")
    elif host.swap_used_bytes:
        yield Hit("host", f"swap is on and {size(host.swap_used_bytes)} of it used", severity="info", key="on")


def oom(moment: Moment) -> Iterator[Hit]:
    """By the log where it can be read; its counter tells as well, but not who."""
    now, named = moment.now.sampled_at, False
    for event in moment.now.kernel_events:
        if event.kind == "oom" and now - event.at < EVENT_LISTED_S:
            named = True
            who = event.process or event.subject or "a process"
            pid = f" ({event.pid})" if event.pid is not None else ""
            limit = ", cgroup limit" if "CONSTRAINT_MEMCG" in event.text else ""
            text = f"kernel killed {who}{pid} for lack of memory{limit}"
            yield Hit(who, text, (event.text,), since=event.at, key=str(event.pid))
    if not named:
        yield from _counted_kills(moment)


def _counted_kills(moment: Moment) -> Iterator[Hit]:
    """Where the log is silent the counters tell how many, and in which cgroup."""
    grown = moment.increase("host", "oom_kills", EVENT_LISTED_S)
    paths = [group.path for group in moment.now.host.cgroups]
    inside = {path: one.amount for path in paths if (one := moment.increase(path, "oom_kills", EVENT_LISTED_S))}
    inside = {path: amount for path, amount in inside.items() if amount > 0}
    # A cgroup's counter (memory.events) also counts what was killed in those below it.
    outermost = [path for path in inside if not any(path.startswith(f"{other}/") for other in inside)]
    kills = max(grown.amount if grown is not None else 0.0, sum(inside[path] for path in outermost))
    if kills <= 0:
        return
    times = "a process" if kills == 1 else f"{kills:.0f} processes"
    where = f" in cgroup{'s' if len(inside) > 1 else ''} {', '.join(inside)}" if inside else ""
    evidence = tuple(f"{path}: oom_kill +{amount:.0f}" for path, amount in inside.items())
    yield Hit("host", f"kernel killed {times} for lack of memory{where} within the hour", evidence)


def shm(moment: Moment) -> Iterator[Hit]:
    host = moment.now.host
    if host.shm_used_bytes is None or not host.shm_total_bytes:
        return
    share = host.shm_used_bytes / host.shm_total_bytes
    if share > SHM_WARNING:
        text = f"/dev/shm {share:.0%} full ({size(host.shm_used_bytes)} of {size(host.shm_total_bytes)})"
        severity = "critical" if share > SHM_CRITICAL else "warning"
        yield Hit("/dev/shm", f"{text}: data loader workers get SIGBUS when it is", severity=severity)


def huge_pages(moment: Moment) -> Iterator[Hit]:
    host = moment.now.host
    unused = host.huge_pages_free_bytes
    if unused and host.memory_total_bytes and unused > HUGE_PAGES_SHARE * host.memory_total_bytes:
        yield Hit("host", f"{size(unused)} of memory locked in huge pages that nobody uses")


def mce(moment: Moment) -> Iterator[Hit]:
    """Uncorrected errors of before are told, as they do not go away; corrected ones only when they grow."""
    host = moment.now.host
    fatal = moment.increase("host", "memory_errors_uncorrected", DAY_S)
    if host.memory_errors_uncorrected:
        fresh = fatal is not None and fatal.amount > 0
        text = f"{host.memory_errors_uncorrected} uncorrected host memory errors since boot"
        yield Hit("host", text, severity="critical" if fresh else "warning", key="ue")
    corrected = moment.increase("host", "memory_errors_corrected", DAY_S)
    if corrected is not None and corrected.amount > CORRECTED_A_DAY:
        text = f"{corrected.amount:.0f} corrected host memory errors while watched"
        yield Hit("host", text, severity="warning", key="ce")


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    host = sample.host
    for name in ("oom_kills", "memory_errors_uncorrected", "memory_errors_corrected"):
        value = getattr(host, name)
        if value is not None:
            yield "host", name, value
    for group in host.cgroups:
        if group.oom_kills is not None:
            yield group.path, "oom_kills", group.oom_kills


COUNTERS = (counters,)

RULES = (
    Rule(
        "mem.pressure",
        "warning",
        10.0,
        "look for a leak; fewer data loader workers",
        pressure,
        meaning="tasks wait for memory",
        threshold="PSI memory some > 10 %*; critical: full > 5 %* or < 3 % available*, for 10 s",
        source="/proc/pressure/memory, MemAvailable",
        needs=("host.memory", "host.pressure.memory"),
        explains_node=("mem.swap",),
    ),
    Rule(
        "mem.swap",
        "warning",
        10.0,
        "sudo swapoff -a",
        swap,
        meaning="pages of the node move to and from disk",
        threshold="pswpin + pswpout > 0/s while ranks run; swap in use: info",
        source="/proc/vmstat; imbue, Azure",
        needs=("ranks", "host.swap", "host.swap_in_bytes_per_s", "host.swap_out_bytes_per_s"),
    ),
    Rule(
        "mem.oom",
        "critical",
        0.0,
        "raise the memory limit or use less",
        oom,
        meaning="the kernel killed a process for lack of memory",
        threshold="each, for an hour",
        source="kernel log, /proc/vmstat oom_kill, memory.events; gpud",
        needs=("kernel_log | host.oom_kills",),
        grows=("host",),
        precedence=MEMORY_ERRORS,
        explains_node=("mem.pressure",),
    ),
    Rule(
        "mem.shm",
        "warning",
        5.0,
        "bigger --shm-size, fewer workers, or remove what is left over there",
        shm,
        meaning="shared memory, through which workers hand over batches, runs out",
        threshold="> 80 %; critical: > 95 %",
        source="statvfs /dev/shm",
        needs=("host.shm",),
    ),
    Rule(
        "mem.hugepages",
        "info",
        0.0,
        "sudo sysctl vm.nr_hugepages=0",
        huge_pages,
        meaning="memory is reserved for huge pages and not used",
        threshold="> 10 % of memory*",
        source="/proc/meminfo HugePages_Free",
        needs=("host.huge_pages_free_bytes", "host.memory"),
    ),
    Rule(
        "mem.mce",
        "warning",
        0.0,
        "have the DIMMs looked at by the vendor",
        mce,
        meaning="host memory has errors",
        threshold="uncorrected > 0 (critical while they grow); corrected > 9 a day",
        source="EDAC ue_count, ce_count; NHC",
        needs=("host.memory_errors_corrected", "host.memory_errors_uncorrected"),
        grows=("host",),
        precedence=MEMORY_ERRORS,
    ),
)
