"""What travels: samples, findings, digests and verdicts.

These dataclasses are the wire format and the JSON output (same names). Units stand in the names:
``_bytes``, ``_w``, ``_c``, ``_mhz``, ``_s``, ``_bytes_per_s``; fractions are 0..1. A value is a number or
``None``; why it is ``None`` stands in the sample's ``gaps``. Unknown is never 0.

Runs on every node: Python 3.9, standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


@dataclass
class Gap:
    """Something that could not be read: ``what`` (e.g. ``gpu.3.power_w``), ``why``, and ``fix`` (a command or "")."""

    what: str
    why: str
    fix: str = ""


@dataclass
class GpuProcess:
    """One process that holds a GPU context. ``pid`` is the host's pid; ``kind`` is compute, graphics or mps."""

    pid: int
    memory_bytes: int | None = None
    kind: str = "compute"


@dataclass
class Ecc:
    """ECC error counts since the last reset (volatile) or over the board's life (aggregate)."""

    enabled: bool | None = None
    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_aggregate: int | None = None
    sram_uncorrected_aggregate: int | None = None
    sram_threshold_exceeded: bool | None = None


@dataclass
class RemapBanks:
    """Memory banks by how many spare rows they have left."""

    max: int | None = None
    high: int | None = None
    partial: int | None = None
    low: int | None = None
    none: int | None = None


@dataclass
class Remap:
    """Row remapping (Ampere and newer): rows remapped, and whether a reset is pending or repair failed."""

    corrected: int | None = None
    uncorrected: int | None = None
    pending: bool | None = None
    failed: bool | None = None
    banks: RemapBanks = field(default_factory=RemapBanks)


@dataclass
class Pcie:
    gen: int | None = None
    gen_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    replay_count: int | None = None
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None


@dataclass
class NvlinkLink:
    index: int
    active: bool | None = None
    version: int | None = None
    speed_bytes_per_s: float | None = None
    remote: str | None = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class Nvlink:
    links: list[NvlinkLink] = field(default_factory=list)
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None


@dataclass
class Fabric:
    state: str | None = None
    health: str | None = None


@dataclass
class GpuSample:
    """One GPU at one moment. ``state``: ok | lost | error; ``error`` says what and where for the latter two.

    ``last_seen_at`` (unix s) is when NVML last answered for it; a lost GPU keeps its identity and this time.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    state: str = "ok"
    error: str | None = None
    last_seen_at: float | None = None
    busy: float | None = None  # NVML's GPU-Util: share of time a kernel was resident
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    activity_source: str | None = None  # gpm | dcgm
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    temperature_margin_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    throttle_reasons: list[str] | None = None  # [] is "none holds"; None is unknown
    throttle_ns: dict[str, int] = field(default_factory=dict)
    ecc: Ecc = field(default_factory=Ecc)
    remap: Remap = field(default_factory=Remap)
    retired_pages: int | None = None
    recovery_action: str | None = None
    pcie: Pcie = field(default_factory=Pcie)
    nvlink: Nvlink = field(default_factory=Nvlink)
    fabric: Fabric = field(default_factory=Fabric)
    mig_enabled: bool | None = None
    persistence: bool | None = None
    driver: str | None = None
    vbios: str | None = None
    serial: str | None = None
    processes: list[GpuProcess] | None = None  # [] is "none"; None is unknown


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
    since: float | None = None
    until: float | None = None


@dataclass
class Frame:
    """One Python frame. ``file`` is relative to site-packages or its last parts; ``ints`` are integer locals."""

    function: str
    file: str
    line: int
    ints: dict[str, int] = field(default_factory=dict)


@dataclass
class StackDigest:
    """One thread's stack, normalised next to the process, leaf first.

    ``key`` is equal for equal normalised frames (integer locals left out): ranks are merged by it. Of a child that
    is not Python (``error`` begins "not Python: NAME") it stays equal while that child does not run.
    ``child_of`` is the rank's pid when ``pid`` is one of its children (a dataloader worker).
    ``samples`` counts the dumps in which this same stack was seen in a row. ``error`` says in plain words why
    there are no frames, ``fix`` what would help.
    """

    rank: int | None
    pid: int
    thread: str = "MainThread"
    state: str = ""
    frames: list[Frame] = field(default_factory=list)
    waiting_in: str | None = None
    samples: int = 1
    key: str = ""
    node: str = ""
    job: str = ""
    child_of: int | None = None
    wchan: str | None = None
    error: str | None = None
    fix: str = ""
    taken_at: float | None = None


@dataclass
class StackClass:
    """All ranks of a job with one and the same stack. ``ranks`` is folded ("0-12,14-63")."""

    ranks: str
    count: int
    waiting_in: str | None
    frames: list[Frame] = field(default_factory=list)


@dataclass
class Culprit:
    """``where`` is "function (file:line)" or the kernel function; ``pid`` may be a child of the rank."""

    rank: int | None
    node: str
    pid: int | None
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
    rank: int | None
    job: str = ""
    node: str = ""
    taken_at: float = 0.0
    took_s: float = 0.0
    before: RankSample | None = None
    after: RankSample | None = None
    digests: list[StackDigest] = field(default_factory=list)
    raw: list[Any] = field(default_factory=list)


@dataclass
class JobReport:
    """What `mltop stacks` says of one job."""

    job: str
    world_size: int | None
    verdict: Verdict
    classes: list[StackClass] = field(default_factory=list)
    digests: list[StackDigest] = field(default_factory=list)


@dataclass
class NodeState:
    """``state``: connecting | live | stale | lost | refused. ``age_s``: since the last sample, None before it."""

    node: str
    state: str
    reason: str = ""
    age_s: float | None = None


def to_json(value: Any) -> str:
    """JSON text of model objects, lists and dicts of them. Non-finite floats raise ValueError."""
    return json.dumps(value, default=vars, separators=(",", ":"), allow_nan=False)
