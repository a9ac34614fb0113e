"""Clocks, limits and permissions of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mltop.probes.judge.health.moment import FleetMoment, Moment
from mltop.probes.judge.health.names import RDMA, about, rank_name
from mltop.probes.judge.health.relations import SLOWS, STOPS
from mltop.probes.judge.health.rule import LIMIT, Hit, Limit, critical_if, rule, share
from mltop.probes.model import UNLIMITED, RankSample, Sample
from mltop.probes.model.units import percent_words, size_words

CLOCK_CRITICAL_S = 1.0
SAMPLES_AGREE = 5
SKEW_APART_S, SKEW_APART = 0.5, 0.2  # what samples that agree may differ by
FILES_CRITICAL = 0.95
MOST_ZOMBIES = 1000
# What is kept of the clock's skew, and for how long: one node's samples come every second, a large fleet's in turns.
_SKEWS = {"clock_skew_s": 60.0, "clock_skew_s in turns": 3600.0}
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
PTRACE_ROOT_ONLY, PTRACE_NOBODY = 2, 3


def _adrift(moment: FleetMoment, *_: float) -> Iterator[Hit]:
    """The difference to who watches; it includes what a sample needs to arrive."""
    skew_s = _agreed_skew_s(moment)
    if skew_s is not None and abs(skew_s) > CLOCK_CRITICAL_S:
        direction = "ahead of" if skew_s > 0 else "behind"
        text = f"clock {abs(skew_s):.1f} s {direction} the machine that watches"
        yield Hit("host", text, (f"the same in {SAMPLES_AGREE} samples or more",), severity="critical")


@rule("time.sync", "warning", clear_s=60.0)(
    meaning="the node's clock is wrong: events of several nodes get into the wrong order",
    threshold=f"not synchronized: info; off by > {LIMIT}: warning; > {CLOCK_CRITICAL_S:.0f} s, "
    f"or so far from the machine that watches in {SAMPLES_AGREE} samples* in a row: critical*",
    limit=Limit(0.1, lambda seconds: f"{1000 * seconds:.0f} ms", "s"),
    source="adjtimex, the samples' times",
    action="sudo chronyc makestep",
    needs=("host.clock_synchronized", "host.clock_error_s"),
    compare=_adrift,
)
def clock(moment: Moment, limit: float) -> Iterator[Hit]:
    """The kernel's own estimate."""
    host = moment.now.host
    if host.clock_error_s is not None and host.clock_error_s > limit:
        severity = critical_if(host.clock_error_s > CLOCK_CRITICAL_S)
        yield Hit("host", f"clock may be off by {host.clock_error_s:.1f} s", severity=severity)
    elif host.clock_synchronized is False:
        yield Hit("host", "clock is not synchronized", severity="info", key="unsync")


def _agreed_skew_s(moment: Moment) -> float | None:
    """The smallest skew that several samples in a row agree on: a single late one looks like a clock that is behind."""
    if moment.now.clock_skew_s is None:
        return None
    for name in _SKEWS:
        series = moment.trails.series("host", name)
        newest = series.values[-SAMPLES_AGREE:] if series is not None else ()
        if len(newest) < SAMPLES_AGREE:
            continue
        least = min(newest, key=abs)
        alike = max(newest) - min(newest) <= max(SKEW_APART_S, SKEW_APART * abs(least))
        return least if alike and min(newest) * max(newest) > 0 else None
    return None


def gauges(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
    if sample.clock_skew_s is not None:
        for name, keep_s in _SKEWS.items():
            yield "host", name, sample.clock_skew_s, keep_s


@rule("host.ptrace", "info")(
    meaning="stacks cannot be read without root",
    threshold=f"ptrace_scope {PTRACE_ROOT_ONLY} or {PTRACE_NOBODY} (1: reported by doctor and stack dumps)",
    source="kernel.yama.ptrace_scope",
    action="sudo mltop (or: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope)",
    needs=("host.ptrace_scope", "ranks"),
)
def ptrace(moment: Moment) -> Iterator[Hit]:
    scope = moment.now.host.ptrace_scope if moment.now.ranks else None
    if scope == PTRACE_NOBODY:
        yield Hit("host", "stacks cannot be read at all here (ptrace_scope 3, until the next boot)")
    elif scope == PTRACE_ROOT_ONLY:
        yield Hit("host", "stacks need root here (ptrace_scope 2)")


@rule("host.memlock", "warning")(
    meaning="RDMA needs locked memory and the ranks may have little",
    threshold="a limit below half of the memory, with an active RDMA port",
    source="/proc/PID/limits",
    action="ulimit -l unlimited (in the job's limits)",
    needs=("ranks", "ranks.memlock_limit_bytes", "links"),
    explains_ranks=STOPS,
)
def locked_memory(moment: Moment) -> Iterator[Hit]:
    """A limit of most of the memory is as good as none."""
    if not any(link.kind in RDMA and link.state == "ACTIVE" for link in moment.now.links):
        return
    enough = (moment.now.host.memory_total_bytes or UNLIMITED) / 2
    limits = ((rank.memlock_limit_bytes, rank) for rank in moment.now.ranks)
    low = [(limit, rank) for limit, rank in limits if limit is not None and limit < min(enough, UNLIMITED)]
    if low:
        least = min(limit for limit, _ in low)
        text = f"locked memory is limited to {size_words(least)}: RDMA registration will fail"
        yield Hit("host", text, (f"{len(low)} ranks, e.g. {rank_name(low[0][1])}",))


@rule("host.fds", "warning", clear_s=60.0)(
    meaning="file descriptors run out, or process numbers",
    threshold=f"> {LIMIT}; critical: > {percent_words(FILES_CRITICAL)}; > {MOST_ZOMBIES}* zombies",
    limit=share(0.80),
    source="/proc/sys/fs/file-nr, /proc/PID/{limits,fd,stat}; gpud",
    action="raise the limit (ulimit -n, fs.file-max), or find the leak",
    needs=(
        *("host.open_files", "host.open_files_max", "host.zombies"),
        *("ranks", "ranks.open_files", "ranks.open_files_limit"),
    ),
    explains_ranks=STOPS,
)
def files(moment: Moment, limit: float) -> Iterator[Hit]:
    host = moment.now.host
    if host.open_files is not None and host.open_files_max:
        yield from _files("host", "of the machine's", host.open_files, host.open_files_max, limit)
    for rank in moment.now.ranks:
        most = rank.open_files_limit
        if rank.open_files is not None and most and most != UNLIMITED:
            yield from _files(rank_name(rank), "of its", rank.open_files, most, limit, rank=rank)
    if host.zombies is not None and host.zombies > MOST_ZOMBIES:
        text = f"{host.zombies:,} dead processes wait for their parents: process numbers run out"
        yield Hit("host", text, action="end or restart the parents: ps -eo stat,ppid | grep ^Z", key="zombies")


def _files(
    subject: str, whose: str, used: int, most: int, limit: float, *, rank: RankSample | None = None
) -> Iterator[Hit]:
    part = used / most
    if part > limit:
        text = f"{subject}: {used} {whose} {most} file descriptors are used"
        hit = Hit(subject, text, severity=critical_if(part > FILES_CRITICAL))
        yield hit if rank is None else about(rank, replace(hit, key=str(rank.pid)))


@rule("host.clocksource", "info", compares_nodes=True)(
    meaning="reading the clock is slow",
    threshold="hpet, acpi_pm or jiffies; another one than most nodes have",
    source="/sys/devices/system/clocksource; gcm",
    action="look at the BIOS and the kernel log (tsc unstable?)",
    needs=("host.clocksource",),
    explains_ranks=SLOWS,
)
def clocksource(moment: FleetMoment) -> Iterator[Hit]:
    name, usual = moment.now.host.clocksource, moment.peers.common("host.clocksource", "")
    if name in SLOW_CLOCKS:
        yield Hit("host", f"clock source {name}: reading the clock is slow")
    elif name and usual is not None and usual.value != name:
        yield Hit("host", f"clock source {name}, {usual.count} other nodes have {usual.value}")


def facts(sample: Sample) -> Iterator[tuple[str, str, str]]:
    if sample.host.clocksource:
        yield "host.clocksource", "", sample.host.clocksource
