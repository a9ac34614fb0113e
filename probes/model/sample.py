"""What one node says of one moment: its GPUs, ranks, host, links and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field

from mltop.probes.model.gpu import GpuSample


@dataclass
class Gap:
    """Something that could not be read: ``what`` (e.g. ``gpu.3.power_w``), ``why``, and ``fix`` (a command or "")."""

    what: str
    why: str
    fix: str = ""


@dataclass
class RankSample:
    """One training rank (a process) at one moment.

    ``rank`` is None for a dead sibling whose environment is gone (state Z). ``started_at`` is unix s.
    ``cpu_fraction`` is of one core and may exceed 1. ``voluntary_switches`` and ``main_cpu_s``
    (seconds on a CPU) are the main thread's; the syscall counts are the process's. ``cpus_allowed`` and
    ``numa_nodes`` are kernel lists ("0-7,12").
    ``children`` are pids. Source: /proc/PID/{environ,stat,status,schedstat,io,task}.
    """

    pid: int
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    job: str = ""  # Slurm id, torchelastic run id, or master address:port
    master_address: str | None = None
    launcher: str = ""  # torchrun | deepspeed | accelerate | mpirun | srun | env
    user: str = ""
    command: str = ""
    python: str | None = None  # the interpreter, None when the process is not Python
    state: str = ""  # R S D T Z as the kernel prints it (t: traced)
    wchan: str | None = None
    started_at: float | None = None
    gpus: list[int] = field(default_factory=list)
    cpu_fraction: float | None = None
    rss_bytes: int | None = None
    voluntary_switches: int | None = None
    main_cpu_s: float | None = None
    read_syscalls: int | None = None
    write_syscalls: int | None = None
    cpus_allowed: str | None = None
    numa_nodes: str | None = None
    children: list[int] = field(default_factory=list)


@dataclass
class HostSample:
    """The machine's basics. ``cpu_fraction`` is of all cores together. Source: psutil."""

    hostname: str = ""
    kernel: str = ""
    uptime_s: float | None = None
    cpu_count: int | None = None
    cpu_fraction: float | None = None
    load_1m: float | None = None
    load_5m: float | None = None
    load_15m: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_used_bytes: int | None = None
    network_rx_bytes_per_s: float | None = None
    network_tx_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None


@dataclass
class LinkSample:
    """One network port (InfiniBand, RoCE, Ethernet) with its raw counters."""

    device: str
    port: int = 1
    state: str | None = None
    physical_state: str | None = None
    rate_bits_per_s: float | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class KernelEvent:
    at: float
    kind: str
    subject: str = ""
    code: int | None = None
    text: str = ""


@dataclass
class Sample:
    """Everything one node says about one moment. ``cost_s`` is CPU-side wall time per collector."""

    node: str
    sampled_at: float
    boot_id: str = ""
    interval_s: float = 1.0
    simulated: bool = False  # True: the GPUs are made up (mltop demo) and every screen says so
    gpus: list[GpuSample] = field(default_factory=list)
    ranks: list[RankSample] = field(default_factory=list)
    host: HostSample = field(default_factory=HostSample)
    links: list[LinkSample] = field(default_factory=list)
    kernel_events: list[KernelEvent] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    cost_s: dict[str, float] = field(default_factory=dict)


@dataclass
class NodeState:
    """``state``: connecting | live | stale | lost | refused. ``age_s``: since the last sample, None before it."""

    node: str
    state: str
    reason: str = ""
    age_s: float | None = None
