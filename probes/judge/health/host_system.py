"""Clocks, limits and permissions of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.host_words import rank_name, size
from mltop.probes.judge.health.rule import Hit, Moment, Rule
from mltop.probes.model import UNLIMITED, Sample

CLOCK_WARNING_S, CLOCK_CRITICAL_S = 0.1, 1.0
FILES_WARNING, FILES_CRITICAL = 0.80, 0.95
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
PTRACE_ROOT_ONLY, PTRACE_NOBODY = 2, 3


def clock(moment: Moment) -> Iterator[Hit]:
    """The difference to who watches (it includes what a sample needs to arrive), and the kernel's own estimate."""
    skew_s, host = moment.now.clock_skew_s, moment.now.host
    if skew_s is not None and abs(skew_s) > CLOCK_CRITICAL_S:
        direction = "ahead of" if skew_s > 0 else "behind"
        yield Hit("host", f"clock {abs(skew_s):.1f} s {direction} the machine that watches", severity="critical")
    elif host.clock_error_s is not None and host.clock_error_s > CLOCK_WARNING_S:
        severity = "critical" if host.clock_error_s > CLOCK_CRITICAL_S else "warning"
        yield Hit("host", f"clock may be off by {host.clock_error_s:.1f} s", severity=severity)
    elif host.clock_synchronized is False:
        yield Hit("host", "clock is not synchronized", severity="info", key="unsync")


def ptrace(moment: Moment) -> Iterator[Hit]:
    scope = moment.now.host.ptrace_scope
    if scope is None or not moment.now.ranks:
        return
    if scope == PTRACE_NOBODY:
        yield Hit("host", "stacks cannot be read at all here (ptrace_scope 3, until the next boot)")
    elif scope == PTRACE_ROOT_ONLY:
        yield Hit("host", "stacks need root here (ptrace_scope 2)")


def memlock(moment: Moment) -> Iterator[Hit]:
    """A limit of most of the memory is as good as none."""
    if not any(link.kind in ("infiniband", "roce", "efa") and link.state == "ACTIVE" for link in moment.now.links):
        return
    enough = (moment.now.host.memory_total_bytes or UNLIMITED) / 2
    low = [
        rank
        for rank in moment.now.ranks
        if rank.memlock_limit_bytes not in (None, UNLIMITED) and (rank.memlock_limit_bytes or 0) < enough
    ]
    if low:
        least = min(rank.memlock_limit_bytes or 0 for rank in low)
        text = f"locked memory is limited to {size(least)}: RDMA registration will fail"
        yield Hit("host", text, (f"{len(low)} ranks, e.g. {rank_name(low[0])}",))


def files(moment: Moment) -> Iterator[Hit]:
    host = moment.now.host
    if host.open_files is not None and host.open_files_max:
        yield from _files("host", "of the machine's", host.open_files, host.open_files_max)
    for rank in moment.now.ranks:
        limit = rank.open_files_limit
        if rank.open_files is not None and limit and limit != UNLIMITED:
            yield from _files(rank_name(rank), "of its", rank.open_files, limit)


def _files(subject: str, whose: str, used: int, limit: int) -> Iterator[Hit]:
    share = used / limit
    if share > FILES_WARNING:
        severity = "critical" if share > FILES_CRITICAL else "warning"
        yield Hit(subject, f"{subject}: {used} {whose} {limit} file descriptors are used", severity=severity)


def clocksource(moment: Moment) -> Iterator[Hit]:
    name = moment.now.host.clocksource
    if not name:
        return
    usual = moment.peers.common("host.clocksource", "")
    if name in SLOW_CLOCKS:
        yield Hit("host", f"clock source {name}: every look at the clock is a slow one")
    elif usual is not None and usual.value != name:
        yield Hit("host", f"clock source {name}, {usual.count} other nodes have {usual.value}")


def facts(sample: Sample) -> Iterator[tuple[str, str, str]]:
    if sample.host.clocksource:
        yield "host.clocksource", "", sample.host.clocksource


FACTS = (facts,)

RULES = (
    Rule(
        "time.sync",
        "warning",
        0.0,
        "sudo chronyc makestep",
        clock,
        meaning="the node's clock is wrong: events of several nodes get into the wrong order",
        threshold="not synchronized: info; off by > 100 ms: warning; > 1 s: critical*",
        clear_s=60.0,
        source="adjtimex, the samples' times",
    ),
    Rule(
        "host.ptrace",
        "info",
        0.0,
        "sudo mltop (or: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope)",
        ptrace,
        meaning="stacks cannot be read without root",
        threshold="ptrace_scope 2 or 3 (1: told by doctor, and when stacks are asked for)",
        source="kernel.yama.ptrace_scope",
    ),
    Rule(
        "host.memlock",
        "warning",
        0.0,
        "ulimit -l unlimited (in the job's limits)",
        memlock,
        meaning="RDMA needs locked memory and the ranks may have little",
        threshold="a limit below half of the memory, with an active RDMA port",
        source="/proc/PID/limits",
    ),
    Rule(
        "host.fds",
        "warning",
        0.0,
        "raise the limit (ulimit -n, fs.file-max), or find the leak",
        files,
        meaning="file descriptors run out",
        threshold="> 80 %; critical: > 95 %",
        clear_s=60.0,
        source="/proc/sys/fs/file-nr, /proc/PID/limits; gpud",
    ),
    Rule(
        "host.clocksource",
        "info",
        0.0,
        "look at the BIOS and the kernel log (tsc unstable?)",
        clocksource,
        meaning="reading the clock is slow",
        threshold="hpet, acpi_pm or jiffies; another one than most nodes have",
        source="/sys/devices/system/clocksource; gcm",
    ),
)
