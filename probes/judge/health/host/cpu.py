"""Processors: overcommitted, throttled, processes stuck in the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.moment import Moment
from mltop.probes.judge.health.relations import DRIVER, RANK_SLOWED, RANK_STALLED, SLOWS
from mltop.probes.judge.health.rule import HOLD, LIMIT, Hit, critical_if, rank_rule, rule, share
from mltop.probes.model import Sample
from mltop.probes.model.units import duration_words, percent_words

MOST_LOAD_PER_CORE = 2
MOST_CPU_PRESSURE = 0.20
RANK_BLOCKED_S, OTHERS_BLOCKED_S = 60.0, 300.0
DRIVERS_OWN = ("nvidia-", "nv-")  # names of its programs begin so
NFS_SILENT_S = 180.0  # major timeout: so long a server was silent already when the kernel says so
_BLOCKED = "seen blocked"  # the counter that exists once a process has been seen so


@rule("cpu.load", "warning", hold_s=60.0, eager=False)(
    meaning="more runs than there are cores",
    threshold=f"load > {MOST_LOAD_PER_CORE} x cores*, or PSI cpu some > {percent_words(MOST_CPU_PRESSURE)}*, for "
    f"{HOLD}",
    source="/proc/loadavg, /proc/pressure/cpu; NHC",
    action="fewer data loader workers or threads",
    needs=("host.load", "host.cpu_count", "host.pressure.cpu"),
    explains_node=("job.threads",),
    explains_ranks=(*SLOWS, "job.starved", "job.gc"),
)
def load(moment: Moment) -> Iterator[Hit]:
    host = moment.now.host
    cores, load_1m, pressure = host.cpu_count, host.load_1m, host.pressure.cpu_some
    overloaded = cores is not None and load_1m is not None and load_1m > MOST_LOAD_PER_CORE * cores
    if not overloaded and (pressure is None or pressure <= MOST_CPU_PRESSURE):
        return
    parts = [f"load {load_1m:.0f} on {cores} cores"] if load_1m is not None and cores else []
    parts += [f"CPU pressure {percent_words(pressure)}"] if pressure is not None else []
    yield Hit("host", f"CPU overcommitted: {', '.join(parts)}")


@rule("cpu.cgroup", "warning", hold_s=10.0, eager=False)(
    meaning="the cgroup's quota stops the job's processes",
    threshold=f"throttled in > {LIMIT} of the periods*",
    limit=share(0.05),
    source="cgroup cpu.stat",
    action="raise the CPU quota",
    needs=("host.cgroups.cpu",),
    explains_node=("cpu.load", "job.threads"),
    explains_ranks=(*SLOWS, "job.starved", "job.gc"),
)
def cgroup(moment: Moment, limit: float) -> Iterator[Hit]:
    for group in moment.now.host.cgroups:
        throttled = group.cpu_throttled_fraction
        if throttled is not None and throttled > limit:
            quota = f" (limit {group.cpu_limit_cores:g} cores)" if group.cpu_limit_cores else ""
            text = f"cgroup throttled in {percent_words(throttled)} of its periods{quota}"
            yield Hit("host", text, (group.path,), key=group.path)


@rule("cpu.governor", "info")(
    meaning="cores save power while GPUs wait for them",
    threshold="not performance",
    source="cpufreq scaling_governor; gcm",
    action="sudo cpupower frequency-set -g performance",
    needs=("host.governor",),
    explains_ranks=(*SLOWS, "job.starved"),
)
def governor(moment: Moment) -> Iterator[Hit]:
    """Only where GPUs wait for the CPU."""
    name = moment.now.host.governor
    if name and name != "performance" and moment.now.gpus:
        yield Hit("host", f"CPU frequency governor is {name}")


@rank_rule("cpu.dstate", "critical")(
    meaning="a process does not come back from the kernel",
    threshold=f"state D without switches: ranks {RANK_BLOCKED_S:.0f} s; {duration_words(OTHERS_BLOCKED_S)}: warning",
    source="/proc/PID/stat; gpud, gcm",
    action="look at storage and driver, and at the process's stack",
    needs=("host.blocked",),
    precedence=DRIVER,
    explains_node=("cpu.hung",),
    explains_ranks=(RANK_STALLED, RANK_SLOWED, "job.hang", "job.odd_rank", "job.starved"),
)
def stuck_processes(moment: Moment) -> Iterator[Hit]:
    return _stuck(moment, of_driver=False)


def stuck_in_driver(moment: Moment) -> list[Hit]:
    """The driver's own programs that do not come back from the kernel."""
    return [*_stuck(moment, of_driver=True), *(hit for hit in _hung(moment) if hit.subject.startswith(DRIVERS_OWN))]


def _stuck(moment: Moment, *, of_driver: bool) -> Iterator[Hit]:
    for process in moment.now.host.blocked:
        is_drivers = process.name.startswith(DRIVERS_OWN) and not process.uid  # any user may choose such a name
        if is_drivers != of_driver:
            continue
        ours = process.rank is not None or is_drivers
        if process.blocked_s < (RANK_BLOCKED_S if ours else OTHERS_BLOCKED_S):
            continue
        if moment.trails.increase(f"pid {process.pid}", "switches", RANK_BLOCKED_S).amount > 0:
            continue  # a rank that writes a checkpoint is in state D at every look, and moves in between
        where = f" in {process.wchan}" if process.wchan else ""
        name = f"rank {process.rank}" if process.rank is not None else process.name or "process"
        text = f"{name} (pid {process.pid}) stuck in the kernel for {duration_words(process.blocked_s)}{where}"
        action = f"look at storage and driver: sudo cat /proc/{process.pid}/stack"
        since = moment.now.sampled_at - process.blocked_s
        ranks = () if process.rank is None else (process.rank,)
        yield Hit(name, text, (), critical_if(ours), action, since, str(process.pid), ranks=ranks, pid=process.pid)


@rank_rule("cpu.hung", "warning")(
    meaning="the kernel says that a task or a CPU hangs",
    threshold="each, for an hour, unless the task is seen to go on or the NFS server that it waits for answers; a "
    "soft lockup is critical",
    source="kernel log; gpud",
    action="see what the kernel does: sudo dmesg -T",
    needs=("kernel_log",),
    explains_ranks=(RANK_STALLED, RANK_SLOWED, "job.hang", "job.odd_rank", "job.starved"),
)
def hung(moment: Moment) -> Iterator[Hit]:
    return (hit for hit in _hung(moment) if not hit.subject.startswith(DRIVERS_OWN))


def _hung(moment: Moment) -> Iterator[Hit]:
    """What has gone on since is over: the kernel says nothing of that, but a file server does, and so does the task."""
    events = moment.events("hung_task", "soft_lockup")
    newest = {(event.kind, event.subject or event.process or "kernel", event.pid): event for event in events}
    if not newest:
        return
    blocked = {process.pid for process in moment.now.host.blocked}
    awake = {rank.pid for rank in moment.now.ranks if rank.state not in ("D", "")}
    pauses = _nfs_pauses(moment.now)
    for (kind, subject, pid), event in newest.items():
        who, key = (subject, kind) if pid is None else (f"{subject} (pid {pid})", f"{kind} {pid}")
        moves = pid is not None and (moment.trails.has_seen(f"task {pid}", _BLOCKED) or pid in awake)
        answered = any(silent_at <= event.at < answered_at for silent_at, answered_at in pauses)
        if kind == "soft_lockup":
            text = f"{who}: a CPU is locked up in the kernel"
            yield Hit(subject, text, (event.text,), "critical", since=event.at, key=key)
        elif pid in blocked or not (moves or answered):
            stack = f"the kernel's side of it: sudo cat /proc/{pid}/stack" if pid is not None else ""
            text = f"{who}: blocked in the kernel for minutes"
            yield Hit(subject, text, (event.text,), action=stack, act="stacks", since=event.at, key=key, pid=pid)


def _nfs_pauses(sample: Sample) -> list[tuple[float, float]]:
    """From when to when servers were silent that answer by now."""
    silent: dict[str, float] = {}
    pauses = []
    for event in sample.kernel_events:
        if event.kind == "nfs":
            silent.setdefault(event.subject, event.at)
        elif event.kind == "nfs_ok" and event.subject in silent:
            pauses.append((silent.pop(event.subject) - NFS_SILENT_S, event.at))
    return pauses


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for rank in sample.ranks:
        if rank.voluntary_switches is not None and rank.state == "D":
            yield f"pid {rank.pid}", "switches", rank.voluntary_switches
    for process in sample.host.blocked:
        yield f"task {process.pid}", _BLOCKED, 1
