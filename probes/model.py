"""What travels: samples, findings, digests and verdicts.

These dataclasses are the wire format and the JSON output (same names). Units stand in the names:
``_bytes``, ``_w``, ``_c``, ``_mhz``, ``_s``, ``_bytes_per_s``; fractions are 0..1. A value is a number or
``None``; why it is ``None`` stands in the sample's ``gaps``. Unknown is never 0.

Runs on every node: Python 3.9, standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Optional

SCHEMA = 1


@dataclass
class Gap:
    """Something that could not be read: ``what`` (dotted, e.g. ``gpu.3.power_w``), ``why``, ``fix`` (a command or "")."""

    what: str
    why: str
    fix: str = ""


@dataclass
class GpuProcess:
    """One process that holds a GPU context. ``pid`` is the host's pid; ``kind`` is compute, graphics or mps."""

    pid: int
    memory_bytes: Optional[int] = None
    kind: str = "compute"


@dataclass
class Ecc:
    """ECC error counts since the last reset (volatile) or over the board's life (aggregate)."""

    enabled: Optional[bool] = None
    corrected_volatile: Optional[int] = None
    uncorrected_volatile: Optional[int] = None
    corrected_aggregate: Optional[int] = None
    uncorrected_aggregate: Optional[int] = None
    sram_uncorrected_aggregate: Optional[int] = None
    sram_threshold_exceeded: Optional[bool] = None


@dataclass
class RemapBanks:
    """Memory banks by how many spare rows they have left."""

    max: Optional[int] = None
    high: Optional[int] = None
    partial: Optional[int] = None
    low: Optional[int] = None
    none: Optional[int] = None


@dataclass
class Remap:
    """Row remapping (Ampere and newer): rows remapped, and whether a reset is pending or repair failed."""

    corrected: Optional[int] = None
    uncorrected: Optional[int] = None
    pending: Optional[bool] = None
    failed: Optional[bool] = None
    banks: RemapBanks = field(default_factory=RemapBanks)


@dataclass
class Pcie:
    gen: Optional[int] = None
    gen_max: Optional[int] = None
    width: Optional[int] = None
    width_max: Optional[int] = None
    replay_count: Optional[int] = None
    rx_bytes_per_s: Optional[float] = None
    tx_bytes_per_s: Optional[float] = None


@dataclass
class NvlinkLink:
    index: int
    active: Optional[bool] = None
    version: Optional[int] = None
    speed_bytes_per_s: Optional[float] = None
    remote: Optional[str] = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class Nvlink:
    links: list[NvlinkLink] = field(default_factory=list)
    rx_bytes_per_s: Optional[float] = None
    tx_bytes_per_s: Optional[float] = None


@dataclass
class Fabric:
    state: Optional[str] = None
    health: Optional[str] = None


@dataclass
class GpuSample:
    """One GPU at one moment. ``state``: ok | lost | error; ``error`` says what and where for the latter two.

    ``last_seen_at`` (unix s) is when NVML last answered for it; a lost GPU keeps its identity and this time.
    """

    index: int
    uuid: Optional[str] = None
    name: Optional[str] = None
    pci_bus_id: Optional[str] = None
    state: str = "ok"
    error: Optional[str] = None
    last_seen_at: Optional[float] = None
    busy: Optional[float] = None  # NVML's GPU-Util: share of time a kernel was resident
    sm_active: Optional[float] = None
    sm_occupancy: Optional[float] = None
    tensor_active: Optional[float] = None
    dram_active: Optional[float] = None
    activity_source: Optional[str] = None  # gpm | dcgm
    memory_used_bytes: Optional[int] = None
    memory_total_bytes: Optional[int] = None
    temperature_c: Optional[float] = None
    memory_temperature_c: Optional[float] = None
    temperature_margin_c: Optional[float] = None
    power_w: Optional[float] = None
    power_limit_w: Optional[float] = None
    power_limit_default_w: Optional[float] = None
    energy_j: Optional[float] = None
    sm_clock_mhz: Optional[int] = None
    sm_clock_max_mhz: Optional[int] = None
    memory_clock_mhz: Optional[int] = None
    memory_clock_max_mhz: Optional[int] = None
    throttle_reasons: Optional[list[str]] = None  # [] is "none holds"; None is unknown
    throttle_ns: dict[str, int] = field(default_factory=dict)
    ecc: Ecc = field(default_factory=Ecc)
    remap: Remap = field(default_factory=Remap)
    retired_pages: Optional[int] = None
    recovery_action: Optional[str] = None
    pcie: Pcie = field(default_factory=Pcie)
    nvlink: Nvlink = field(default_factory=Nvlink)
    fabric: Fabric = field(default_factory=Fabric)
    mig_enabled: Optional[bool] = None
    persistence: Optional[bool] = None
    driver: Optional[str] = None
    vbios: Optional[str] = None
    serial: Optional[str] = None
    processes: Optional[list[GpuProcess]] = None  # [] is "none"; None is unknown


@dataclass
class RankSample:
    """One training rank (a process) at one moment.

    ``rank`` is None for a dead sibling whose environment is gone (state Z). ``started_at`` is unix s.
    ``cpu_fraction`` is of one core and may exceed 1. ``voluntary_switches`` are the main thread's;
    the syscall counts are the process's. ``cpus_allowed`` and ``numa_nodes`` are kernel lists ("0-7,12").
    ``children`` are pids. Source: /proc/PID/{environ,stat,status,io,task}.
    """

    pid: int
    rank: Optional[int] = None
    local_rank: Optional[int] = None
    world_size: Optional[int] = None
    local_world_size: Optional[int] = None
    job: str = ""  # Slurm id, torchelastic run id, or master address:port
    master_address: Optional[str] = None
    launcher: str = ""  # torchrun | deepspeed | accelerate | mpirun | srun | env
    user: str = ""
    command: str = ""
    python: Optional[str] = None  # the interpreter, None when the process is not Python
    state: str = ""  # R S D T Z as the kernel prints it (t: traced)
    wchan: Optional[str] = None
    started_at: Optional[float] = None
    gpus: list[int] = field(default_factory=list)
    cpu_fraction: Optional[float] = None
    rss_bytes: Optional[int] = None
    voluntary_switches: Optional[int] = None
    read_syscalls: Optional[int] = None
    write_syscalls: Optional[int] = None
    cpus_allowed: Optional[str] = None
    numa_nodes: Optional[str] = None
    children: list[int] = field(default_factory=list)


@dataclass
class HostSample:
    """The machine's basics. ``cpu_fraction`` is of all cores together. Source: psutil."""

    hostname: str = ""
    kernel: str = ""
    uptime_s: Optional[float] = None
    cpu_count: Optional[int] = None
    cpu_fraction: Optional[float] = None
    load_1m: Optional[float] = None
    load_5m: Optional[float] = None
    load_15m: Optional[float] = None
    memory_total_bytes: Optional[int] = None
    memory_available_bytes: Optional[int] = None
    swap_total_bytes: Optional[int] = None
    swap_used_bytes: Optional[int] = None
    shm_total_bytes: Optional[int] = None
    shm_used_bytes: Optional[int] = None
    network_rx_bytes_per_s: Optional[float] = None
    network_tx_bytes_per_s: Optional[float] = None
    disk_read_bytes_per_s: Optional[float] = None
    disk_write_bytes_per_s: Optional[float] = None


@dataclass
class LinkSample:
    """One network port (InfiniBand, RoCE, Ethernet) with its raw counters."""

    device: str
    port: int = 1
    state: Optional[str] = None
    physical_state: Optional[str] = None
    rate_bits_per_s: Optional[float] = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class KernelEvent:
    at: float
    kind: str
    subject: str = ""
    code: Optional[int] = None
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
class Finding:
    """What a health rule says. ``severity``: info | warning | critical; times are unix s, ``until`` None: still so."""

    id: str
    severity: str
    node: str
    subject: str
    message: str
    action: str = ""
    evidence: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    since: Optional[float] = None
    until: Optional[float] = None


@dataclass
class Frame:
    """One Python frame. ``file`` is shortened (relative to site-packages or its last parts); ``ints`` are integer locals."""

    function: str
    file: str
    line: int
    ints: dict[str, int] = field(default_factory=dict)


@dataclass
class StackDigest:
    """One thread's stack, normalised next to the process, leaf first.

    ``key`` is equal for equal normalised frames (integer locals left out): ranks are merged by it.
    ``child_of`` is the rank's pid when ``pid`` is one of its children (a dataloader worker).
    ``samples`` counts the dumps in which this same stack was seen in a row. ``error`` says in plain words why
    there are no frames, ``fix`` what would help.
    """

    rank: Optional[int]
    pid: int
    thread: str = "MainThread"
    state: str = ""
    frames: list[Frame] = field(default_factory=list)
    waiting_in: Optional[str] = None
    samples: int = 1
    key: str = ""
    node: str = ""
    job: str = ""
    child_of: Optional[int] = None
    wchan: Optional[str] = None
    error: Optional[str] = None
    fix: str = ""
    taken_at: Optional[float] = None


@dataclass
class StackClass:
    """All ranks of a job with one and the same stack. ``ranks`` is folded ("0-12,14-63")."""

    ranks: str
    count: int
    waiting_in: Optional[str]
    frames: list[Frame] = field(default_factory=list)


@dataclass
class Culprit:
    """``where`` is "function (file:line)" or the kernel function; ``pid`` may be a child of the rank."""

    rank: Optional[int]
    node: str
    pid: Optional[int]
    reason: str
    where: str


@dataclass
class Waiting:
    ranks: str
    where: str


@dataclass
class Verdict:
    """``kind``: hang | straggler | moving | unclear; ``confidence``: high | medium | low. Moving jobs accuse nobody.

    ``stragglers`` names the slow ranks of a job that moves: they are observations, not accusations.
    """

    kind: str
    culprits: list[Culprit] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    stragglers: list[Culprit] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    confidence: str = "low"
    gaps: list[Gap] = field(default_factory=list)


@dataclass
class RankStacks:
    """One dump of one rank: its counters just before and just after, and the digests of its threads and children.

    Progress is judged between one dump's ``after`` and the next one's ``before``, because the dump itself
    stops the process for a moment and so moves its switch counter. ``raw`` is py-spy's JSON per process with
    all locals but integers removed, only when it was asked for: ``[{"pid": .., "threads": [..]}]``.
    """

    pid: int
    rank: Optional[int]
    job: str = ""
    node: str = ""
    taken_at: float = 0.0
    took_s: float = 0.0
    before: Optional[RankSample] = None
    after: Optional[RankSample] = None
    digests: list[StackDigest] = field(default_factory=list)
    raw: list[Any] = field(default_factory=list)


@dataclass
class JobReport:
    """What `mltop stacks` says of one job."""

    job: str
    world_size: Optional[int]
    verdict: Verdict
    classes: list[StackClass] = field(default_factory=list)
    digests: list[StackDigest] = field(default_factory=list)


@dataclass
class NodeState:
    """``state``: connecting | live | stale | lost | refused. ``age_s`` is since the last sample, None before the first."""

    node: str
    state: str
    reason: str = ""
    age_s: Optional[float] = None


def to_json(value: Any) -> str:
    """JSON text of model objects, lists and dicts of them. Non-finite floats raise ValueError."""
    return json.dumps(value, default=vars, separators=(",", ":"), allow_nan=False)
