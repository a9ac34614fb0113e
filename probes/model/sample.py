"""What one node says of one moment: its GPUs, ranks, host, links and what could not be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mltop.probes.model.encoding import slow
from mltop.probes.model.gap import Gap
from mltop.probes.model.gpu import GpuProcess, GpuSample
from mltop.probes.model.vocabulary import (
    COUNTER_KINDS,
    CounterKind,
    DeathKind,
    IdentifiedBy,
    LinkFault,
    LinkKind,
    LogLineKind,
    NodePhase,
    PciKind,
)

UNLIMITED = (1 << 63) - 1  # of limits: there is none
MAX_KERNEL_EVENTS = 100
MAX_LOG_LINES = 64


class JobKey(NamedTuple):
    """Which job. The name is whatever its processes' environment says, so whose they are is part of it."""

    name: str
    uid: int | None


class PlacedJob(NamedTuple):
    """Which job: by its name and whose it is, and of one that meets at a loopback address also where (else "")."""

    name: str
    uid: int | None
    node: str


@dataclass
class RankSample:
    """One training rank (a process) at one moment.

    ``rank`` is None for a dead sibling whose environment is gone (state Z). ``started_at`` is unix s.
    ``cpu_fraction`` is of one core and may exceed 1. ``voluntary_switches``, ``main_cpu_s`` (seconds on a CPU) and
    ``main_syscalls`` (reads and writes) are the main thread's; the other syscall counts are the process's.
    ``cpus_allowed`` and ``numa_nodes`` are kernel lists ("0-7,12").
    ``children`` are pids; ``children_cpu_fraction`` is of one core, of all of them together, ``children_blocked`` how
    many are in state D. Limits are the soft ones, UNLIMITED where there is none. ``settings``: of the environment what
    changes how a training job runs (CUDA_LAUNCH_BLOCKING, NCCL_*, OMP_NUM_THREADS …), never secrets.
    Source: /proc/PID/{environ,stat,status,schedstat,io,task,limits}.
    """

    pid: int
    rank: int | None = None
    local_rank: int | None = slow(None)
    world_size: int | None = None
    local_world_size: int | None = slow(None)
    job: str = ""  # Slurm id, torchelastic run id, or master address:port
    master_address: str | None = slow(None)
    launcher: str = slow("")  # torchrun | deepspeed | accelerate | mpirun | srun | env
    uid: int | None = None  # real uid: two users' jobs of one name are two jobs
    user: str = slow("")
    command: str = slow("")
    python: str | None = slow(None)  # the interpreter, None when the process is not Python
    state: str = ""  # R S D T Z as the kernel prints it (t: traced)
    wchan: str | None = None
    started_at: float | None = None
    gpus: list[int] = field(default_factory=list)
    gpus_by: str = slow("")  # how that is known: "nvml", "open devices", "environment"; "": it is not
    cpu_fraction: float | None = None
    rss_bytes: int | None = None
    voluntary_switches: int | None = None
    main_cpu_s: float | None = None
    main_syscalls: int | None = None
    read_syscalls: int | None = None
    write_syscalls: int | None = None
    cpus_allowed: str | None = slow(None)
    numa_nodes: str | None = slow(None)
    children: list[int] = field(default_factory=list)
    children_cpu_fraction: float | None = None
    children_blocked: int | None = None
    memlock_limit_bytes: int | None = slow(None)
    open_files: int | None = slow(None)
    open_files_limit: int | None = slow(None)
    cgroup: str | None = slow(None)  # path below /sys/fs/cgroup, "/" is the root
    settings: dict[str, str] = slow(factory=dict)
    identified_by: IdentifiedBy = slow("")  # how its number is known; "": it has none
    parallel: dict[str, int] = slow(factory=dict)  # its place, and the sizes: tp, pp, dp, tp_size, pp_size, dp_size …
    versions: dict[str, str] = slow(factory=dict)  # of what it has loaded: python, torch, nccl, cuda …

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.job, self.uid)

    @property
    def is_here_only(self) -> bool:
        """Whether its job is on its node only: loopback addresses and processes' numbers are equal on all machines."""
        return is_loopback(self.master_address) or is_of_one_machine(self.job)


# A start is known by the boot time, which is cut to seconds, and moves as the clock is set.
START_SLACK_S = 2.0


def is_same_start(one: float | None, other: float | None) -> bool | None:
    """Whether two processes of one pid are the same one, by their starts (unix s); None: one of them is unknown."""
    return None if one is None or other is None else abs(one - other) <= START_SLACK_S


def is_of_one_machine(job: str) -> bool:
    """Whether a job is named by what every machine may have of its own: where it meets ("127.0.0.1:29500"), or a
    process ("ppid:4711").
    """
    what, colon, _ = job.rpartition(":")
    return bool(colon) and (what in ("ppid", "sid") or is_loopback(what.strip("[]")))


def is_loopback(address: str | None) -> bool:
    return address is not None and (address in ("localhost", "::1") or address.startswith("127."))


def unplaced(gpu: GpuSample, ranks: Iterable[RankSample]) -> list[GpuProcess]:
    """Its processes of another PID namespace, unless as many ranks use the GPU: NVML names these by other pids."""
    apart = [process for process in gpu.processes or () if process.absent == "elsewhere"]
    own = sum(gpu.index in rank.gpus and rank.gpus_by != "nvml" for rank in ranks)
    return apart if len(apart) > own else []


@dataclass
class RankDeath:
    """How a rank's process ended, as far as the node can tell. ``at``: unix s, when it was seen at the latest.

    ``code``: the exit code of "exit", the signal's number of "signal" and "oom", either of "stopped" (128 and more: an
    exit code that stands for a signal). ``told_by``: what knows it, the first of these how it ended ("proc connector",
    "zombie", "pidfd", "kernel log", "cgroup", "error file", "launcher"; "gone": nothing does), joined by ", ".
    ``error``: what an error file says of it, one line.
    """

    pid: int
    rank: int | None = None
    job: str = ""
    uid: int | None = None
    how: DeathKind = "unknown"
    code: int | None = None
    at: float | None = None
    told_by: str = ""
    error: str = ""
    dumped_core: bool | None = None
    gpus: list[int] = field(default_factory=list)  # that it had
    started_at: float | None = None


@dataclass
class LogLine:
    """What stands in a file that ranks write to: one line, or the last one of a traceback.

    ``text``: as it may be shown; ``file``, ``line``: where it stands, counted from where mltop began to read (0: not
    from the file's beginning). ``at``: unix s, by the line's own stamp, else when it was read. ``pid``, ``rank``: who
    wrote it, None where several write to one file and the line does not say. ``waited_s``: for how long a collective
    had been waited for. ``named``: ranks that it accuses.
    """

    kind: LogLineKind
    text: str
    file: str
    at: float
    line: int = 0
    job: str = ""
    uid: int | None = None
    pid: int | None = None
    rank: int | None = None
    waited_s: float | None = None
    named: list[int] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass
class Pressure:
    """Share of the last ten seconds in which some (full: all) tasks waited. Source: /proc/pressure (PSI)."""

    cpu_some: float | None = None
    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None


@dataclass
class CgroupSample:
    """A cgroup that ranks (or mltop itself) run in. ``cpu_throttled_fraction``: of the periods since the last look.

    Limits: UNLIMITED bytes and None cores where there is none.
    """

    path: str
    cpu_limit_cores: float | None = None
    cpu_throttled_fraction: float | None = None
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    oom_kills: int | None = None


@dataclass
class FilesystemSample:
    """One mount. ``stalled_s``: for so long statvfs has not answered, None when it has; sizes are the last known.

    ``is_network``: NFS, Lustre, GPFS, Ceph, WEKA, …; ``counters``: nfs retransmissions and backlog (mountstats).
    """

    mount: str
    device: str = ""
    kind: str = ""
    is_network: bool = False
    read_only: bool | None = None
    total_bytes: int | None = None
    available_bytes: int | None = None
    inodes_total: int | None = None
    inodes_free: int | None = None
    stalled_s: float | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class BlockedProcess:
    """A process in state D (uninterruptible). ``blocked_s``: for how long it was seen so."""

    pid: int
    name: str = ""
    blocked_s: float = 0.0
    wchan: str | None = None
    rank: int | None = None
    uid: int | None = None


@dataclass
class HostSample:
    """The machine's basics. ``cpu_fraction`` is of all cores together.

    Sources: psutil for processor time, memory, network and disk traffic; /proc (loadavg, meminfo for swap space,
    vmstat, pressure, PID/stat, sys/fs/file-nr, sys/kernel), /sys (EDAC, hugepages, cpufreq, clocksource, module, DMI),
    cgroup files, statvfs, adjtimex, clock_gettime and systemctl for the rest.
    """

    hostname: str = slow("")
    kernel: str = slow("")
    uptime_s: float | None = None
    cpu_count: int | None = slow(None)
    cpu_fraction: float | None = None
    load_1m: float | None = None
    load_5m: float | None = None
    load_15m: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_total_bytes: int | None = slow(None)
    swap_used_bytes: int | None = None
    shm_total_bytes: int | None = slow(None)
    shm_used_bytes: int | None = None
    network_rx_bytes_per_s: float | None = None
    network_tx_bytes_per_s: float | None = None
    ports_rx_bytes_per_s: float | None = None  # of all ports in Sample.links together, what RDMA moves included
    ports_tx_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    pressure: Pressure = field(default_factory=Pressure)
    swap_in_bytes_per_s: float | None = None
    swap_out_bytes_per_s: float | None = None
    oom_kills: int | None = None  # counter since boot (/proc/vmstat oom_kill)
    huge_pages_total_bytes: int | None = slow(None)
    huge_pages_free_bytes: int | None = slow(None)
    memory_errors_corrected: int | None = slow(None)  # EDAC counters, all memory controllers
    memory_errors_uncorrected: int | None = slow(None)
    open_files: int | None = slow(None)  # of the whole machine (/proc/sys/fs/file-nr)
    open_files_max: int | None = slow(None)
    zombies: int | None = None
    blocked: list[BlockedProcess] = field(default_factory=list)
    cgroups: list[CgroupSample] = slow(factory=list)
    filesystems: list[FilesystemSample] = slow(factory=list)
    lustre_health: str | None = slow(None)
    governor: str | None = slow(None)  # of the cores' frequency governors the one that saves most power
    clocksource: str | None = slow(None)
    clock_synchronized: bool | None = slow(None)  # adjtimex: STA_UNSYNC is not set
    clock_error_s: float | None = slow(None)  # adjtimex: the kernel's estimate of its error
    ptrace_scope: int | None = slow(None)
    services: dict[str, str] = slow(factory=dict)  # nvidia-fabricmanager: active | inactive | failed | absent
    modules: dict[str, bool] = slow(factory=dict)  # nvidia_peermem: whether it is loaded
    nvidia_driver: str | None = slow(None)  # the loaded kernel module's version
    is_virtual: bool | None = slow(None)  # a virtual machine
    is_confined: bool | None = slow(None)  # a container or a job's cgroup: not all devices of the machine may show
    sees_all_processes: bool | None = slow(None)  # not only those of a PID namespace of its own


@dataclass
class PciDevice:
    """A GPU, NIC, NVSwitch or NVMe disk as the kernel sees it.

    ``bus_id`` as in sysfs ("0000:9b:00.0"); speeds in GT/s; ``driver``: the kernel driver bound to it, None: none.
    ``aer``: correctable, nonfatal, fatal (counters); ``acs``: whether ACS source validation is on (needs root).
    Source: /sys/bus/pci/devices.
    """

    bus_id: str
    kind: PciKind = "other"
    vendor_id: int | None = None
    device_id: int | None = None
    driver: str | None = None
    link_speed_gt_per_s: float | None = None
    link_speed_max_gt_per_s: float | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    numa_node: int | None = None
    local_cpus: str | None = None
    aer: dict[str, int] = field(default_factory=dict)
    acs: bool | None = None


@dataclass
class LinkSample:
    """One network port with its raw counters.

    ``state`` and ``physical_state`` are words ("ACTIVE", "LinkUp"; Ethernet: operstate in capitals, "UP", "DOWN").
    ``netdev``: the network interface of an RDMA device. ``saturated``: counters that stand at their maximum and can
    count no further. ``error``: why the port is not read any more, ``error_code`` where a program must know. Rates are
    since the sample before.
    """

    device: str
    port: int = 1
    kind: LinkKind = "infiniband"
    state: str | None = None
    physical_state: str | None = None
    rate_bits_per_s: float | None = None
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None
    netdev: str | None = None
    mtu: int | None = None
    firmware: str | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    has_chardev: bool | None = None  # /sys/class/infiniband_verbs has its uverbs device
    saturated: list[str] = field(default_factory=list)
    error: str | None = None
    error_code: LinkFault = ""
    counters: dict[str, int] = field(default_factory=dict)


def traffic_of(links: list[LinkSample]) -> tuple[float | None, float | None]:
    """Bytes per second, received and sent, of all ports whose rates are known; None where none is."""
    received = [link.rx_bytes_per_s for link in links if link.rx_bytes_per_s is not None]
    sent = [link.tx_bytes_per_s for link in links if link.tx_bytes_per_s is not None]
    return sum(received) if received else None, sum(sent) if sent else None


@dataclass
class KernelEvent:
    """Something the kernel (or NVML) reported. ``at``: unix s.

    ``kind``: xid | sxid | off_bus | oom | segfault | hung_task | soft_lockup | nfs | nfs_ok | mlx5 | link |
    remount_ro | disk_io | pcie_limited | peermem | mce | aer. ``subject``: what it is about: a PCI bus id as the line
    has it, a device, a server, a process name. ``code``: Xid or SXid number, of a link 0 down and 1 up, of a segfault
    (or another crash of a rank; its ``pid`` is the thread's) the signal; ``severity``: "fatal" | "nonfatal" where the
    line says so. ``source``: kmsg | journal | kern_log | nvml.
    """

    at: float
    kind: str
    subject: str = ""
    code: int | None = None
    text: str = ""
    severity: str = ""
    pid: int | None = None
    process: str = ""
    source: str = "kmsg"


@dataclass
class Sample:
    """Everything one node says about one moment. ``cost_s`` is CPU-side wall time per collector.

    ``kernel_events``: all that are known of the last 24 hours, the newest last, at most MAX_KERNEL_EVENTS: who misses a
    sample misses no event; what the kernel says once while it finds the hardware (pcie_limited) for as long as it runs.
    ``clock_skew_s``: the node's clock minus the watcher's, known to who receives samples. ``counters_read_at``: by kind
    of error counters (CounterKind) a time (unix s) since which all of that kind have been read.
    ``unassigned``: Python processes with torch or JAX loaded that belong to no job that we know (a notebook, a server).
    ``deaths``: of ranks, of the last hour. ``log_lines``: of their own logs that matter, of the last hour, the newest
    last, at most MAX_LOG_LINES.
    """

    node: str
    sampled_at: float
    boot_id: str = ""
    interval_s: float = 1.0
    simulated: bool = False  # True: the GPUs are made up (mltop demo) and every screen says so
    gpus: list[GpuSample] = field(default_factory=list)
    ranks: list[RankSample] = field(default_factory=list)
    unassigned: list[RankSample] = slow(factory=list)
    deaths: list[RankDeath] = slow(factory=list)
    log_lines: list[LogLine] = slow(factory=list)
    host: HostSample = field(default_factory=HostSample)
    links: list[LinkSample] = slow(factory=list)
    pci: list[PciDevice] = slow(factory=list)
    kernel_events: list[KernelEvent] = slow(factory=list)
    gaps: list[Gap] = field(default_factory=list)
    counters_read_at: dict[str, float] = slow(factory=dict)
    clock_skew_s: float | None = None
    cost_s: dict[str, float] = field(default_factory=dict)


@dataclass
class NodeState:
    """``age_s``: since the last sample, None before it. ``reason`` is ``why`` with its ``fix`` (or "") behind it.

    In recordings of older versions a reason may hold its fix without telling which part of it that is.
    """

    node: str
    state: NodePhase
    reason: str = ""
    age_s: float | None = None
    fix: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if self.reason != (f"{self.why} ({self.fix})" if self.fix else self.why):  # it was given, or replaced, alone
            self.why, self.fix = self.reason, ""

    @classmethod
    def because(cls, node: str, state: NodePhase, why: str, fix: str = "", age_s: float | None = None) -> NodeState:
        return cls(node, state, f"{why} ({fix})" if fix else why, age_s, fix, why)


# What machines of a kind have and never show, whatever mltop may do there: the field of HostSample that tells the kind,
# of what, which fields, and why.
_CLOCK, _ERRORS = ("clock_synchronized", "clock_error_s"), ("memory_errors_corrected", "memory_errors_uncorrected")
_NOT_HERE = (
    ("is_confined", "host", _CLOCK, "a container cannot see whether the host's clock is synchronised"),
    ("is_confined", "host", ("services",), "a container does not see the host's services"),
    ("is_confined", "host", ("modules", "clocksource", "is_virtual"), "this container does not show it"),
    ("is_virtual", "host", ("governor",), "only the hypervisor controls the processors' frequency"),
    ("is_virtual", "host", _ERRORS, "only the hypervisor sees errors of the memory modules"),
    ("is_virtual", "pci", ("link", "aer", "acs", "numa_node"), "only the hypervisor sees all of the PCIe bus"),
)


def marked_not_here(gaps: Iterable[Gap], host: HostSample) -> list[Gap]:
    """The gaps, those marked that are about what such a machine never shows: nobody misses it, and no fix helps."""
    why_of = {(source, name): why for flag, source, names, why in _NOT_HERE if getattr(host, flag) for name in names}

    def marked(gap: Gap) -> Gap:
        why, *others = {why_of.get((gap.source, name), "") for name in gap.fields} or {""}
        is_hidden = why and not others and gap.kind != "starting"
        return replace(gap, why=why, fix="", kind="unsupported", code="not_here") if is_hidden else gap

    return [marked(gap) for gap in gaps]


APART_S = 0.4  # two readings this far apart are two: less than half a second, which samples that hurry are apart
UNDATED_S = 30.0  # of samples that do not say when they were read: by then everything was read twice


@dataclass
class Reads:
    """Whether counters were read twice since a node is watched: of one reading nobody can say that it does not grow.

    ``see`` takes a node's samples in the order of time.
    """

    _first: dict[CounterKind, float] = field(default_factory=dict)
    _twice: set[CounterKind] = field(default_factory=set)
    _began_at: float | None = None

    def see(self, sample: Sample) -> None:
        if len(self._twice) == len(COUNTER_KINDS):
            return
        now = sample.sampled_at
        self._began_at = now if self._began_at is None else self._began_at
        if not sample.counters_read_at and now - self._began_at >= UNDATED_S:
            self._twice.update(COUNTER_KINDS)
        for kind in COUNTER_KINDS:
            read_at = sample.counters_read_at.get(kind)
            if read_at is not None and read_at >= self._first.setdefault(kind, now) + APART_S:
                self._twice.add(kind)

    @property
    def count(self) -> int:
        """How many kinds were read twice."""
        return len(self._twice)

    def twice(self, kind: str) -> bool:
        return kind in self._twice
