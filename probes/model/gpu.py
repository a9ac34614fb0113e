"""One GPU at one moment. Units stand in the names; None is unknown, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field

from mltop.probes.model.encoding import slow
from mltop.probes.model.vocabulary import Absence, ActivitySource, FaultCode, GpuState, ProcessKind

# A GPU is in use above these: no probe puts a load on it. More than telemetry itself makes; driver 510 and newer do not
# count the memory that they keep for themselves, older ones keep less than this.
IN_USE_BUSY, IN_USE_BYTES = 0.05, 1 << 30
# Below it no kernel runs. One of one block, or NCCL's of one channel, keeps one multiprocessor busy, 0.0071 of an H100:
# this is half of one of the largest chip (GB202: 192).
IDLE_SM = 0.5 / 192
# A rank that waits in a collective: its kernel is resident all the time and does next to nothing.
SPINNING_BUSY, SPINNING_TENSOR = 0.95, 0.02


@dataclass
class GpuProcess:
    """One process that holds a GPU context. ``pid`` is NVML's (the host's), or that of our /proc where this is known.

    What /proc says of it: ``user``, ``name`` (the kernel's, 15 characters), ``state`` (R S D T Z as the kernel prints
    it, "" when there is no such process here: it has ended, or NVML's pid is of another namespace), ``ppid`` and
    ``started_at`` (unix s). None or "" is unknown; of one that has ended it is what was last known.

    ``absent``: why not all of it can be seen. ``probe``: of mltop's own probes the kind, else "".
    """

    pid: int
    memory_bytes: int | None = None
    kind: ProcessKind = "compute"
    gpu_instance: int | None = None  # of a GPU in MIG mode: the instance it runs in
    user: str = ""
    name: str = ""
    state: str = ""
    ppid: int | None = None
    started_at: float | None = None
    absent: Absence = ""
    probe: str = ""

    @property
    def is_dead(self) -> bool:
        return self.state in ("Z", "X") or self.absent == "ended"


@dataclass
class Ecc:
    """ECC error counts since the last reset (volatile) or over the board's life (aggregate)."""

    enabled: bool | None = None
    enabled_pending: bool | None = None  # what it will be after the next reset
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
    """Row remapping (Ampere and newer): rows remapped, and whether a reset is pending or repair failed.

    ``repair_pending``: a memory channel or TPC will be repaired at the next reset (nvmlDeviceGetRepairStatus).
    """

    corrected: int | None = None
    uncorrected: int | None = None
    pending: bool | None = None
    failed: bool | None = None
    repair_pending: bool | None = None
    banks: RemapBanks = field(default_factory=RemapBanks)


@dataclass
class Pcie:
    """The link as it is and as GPU and slot could have it. ``errors``: NVML's PCIe error counters by name."""

    gen: int | None = None
    gen_max: int | None = slow(None)
    width: int | None = None
    width_max: int | None = slow(None)
    replay_count: int | None = slow(None)
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None
    errors: dict[str, int] = slow(factory=dict)


@dataclass
class NvlinkLink:
    """One NVLink. ``version``: as NVIDIA counts generations (4 on Hopper, 5 on Blackwell); ``remote``: "switch",
    or the PCI bus id of the GPU at the other end. ``errors``: replay, recovery, crc up to Hopper; from Blackwell on
    recovery_ok, recovery_failed, effective, symbol, … ; a counter that cannot be read is not in it.
    """

    index: int
    active: bool | None = None
    version: int | None = None
    speed_bytes_per_s: float | None = None
    remote: str | None = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class Nvlink:
    links: list[NvlinkLink] = slow(factory=list)
    rx_bytes_per_s: float | None = None
    tx_bytes_per_s: float | None = None


@dataclass
class Fabric:
    """NVLink fabric (nvmlGpuFabricInfoV). ``state``: not_supported | not_started | in_progress | completed.

    ``health``: ok | unhealthy | limited; ``problems``: of degraded_bandwidth, route_recovery, route_unhealthy,
    access_timeout, misconfigured those that the health mask holds.
    """

    state: str | None = None
    health: str | None = None
    problems: list[str] = field(default_factory=list)
    clique_id: int | None = None
    cluster_uuid: str | None = None


@dataclass
class MigInstance:
    """One MIG device of a GPU. ``name``: its profile, e.g. "1g.10gb"; activity is of the instance alone."""

    index: int
    uuid: str | None = None
    name: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None


@dataclass
class GpuSample:
    """One GPU at one moment. ``error`` says what and where while ``state`` is lost or error.

    ``error_code``: the Fault behind ``error``, "" while the state is ok. ``last_seen_at`` (unix s) is when NVML last
    answered for it; a lost GPU keeps its identity and this time, and in ``processes`` those that held it then and still
    live. ``temperature_margin_c``: to the nearer of the GPU's and its memory's limit, where the driver says so, else to
    the GPU's slowdown. ``memory_temperature_margin_c``: to the memory's own limit, or at least so much where the driver
    does not say that (see collect/nvml/readers/limits.py).
    """

    index: int
    uuid: str | None = None
    name: str | None = slow(None)
    pci_bus_id: str | None = slow(None)
    minor: int | None = slow(None)  # of its device file /dev/nvidiaN, which need not be its index
    state: GpuState = "ok"
    error: str | None = None
    error_code: FaultCode = ""
    last_seen_at: float | None = None
    busy: float | None = None  # NVML's GPU-Util: share of time a kernel was resident
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    fp64_active: float | None = None
    fp32_active: float | None = None
    fp16_active: float | None = None
    activity_source: ActivitySource | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    unified_memory: bool | None = slow(None)  # it shares the host's memory and has none of its own
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    temperature_margin_c: float | None = None  # °C left until the GPU slows itself down
    temperature_slowdown_c: float | None = slow(None)
    memory_temperature_max_c: float | None = slow(None)
    memory_temperature_margin_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = slow(None)
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = slow(None)
    throttle_reasons: list[str] | None = None  # [] is "none holds"; None is unknown
    throttle_ns: dict[str, int] = field(default_factory=dict)
    throttle_share: dict[str, float] = field(default_factory=dict)  # of the time since the sample before
    ecc: Ecc = slow(factory=Ecc)
    remap: Remap = slow(factory=Remap)
    retired_pages: int | None = slow(None)
    retired_pages_double_bit: int | None = slow(None)  # those of them retired for double bit errors
    retired_pages_pending: bool | None = slow(None)
    recovery_action: str | None = slow(None)  # none | gpu_reset | node_reboot | drain_p2p | drain_and_reset | …
    pcie: Pcie = field(default_factory=Pcie)
    nvlink: Nvlink = field(default_factory=Nvlink)
    fabric: Fabric = slow(factory=Fabric)
    mig_enabled: bool | None = slow(None)
    mig_pending: bool | None = slow(None)  # what it will be after the next reset
    mig_instances: list[MigInstance] = field(default_factory=list)
    persistence: bool | None = slow(None)
    compute_mode: str | None = slow(None)  # default | exclusive_process | exclusive_thread | prohibited
    performance_state: int | None = slow(None)  # P0 is the fastest
    driver: str | None = slow(None)
    cuda: str | None = slow(None)  # the newest CUDA that the driver supports, "13.0"
    gsp_firmware: str | None = slow(None)
    vbios: str | None = slow(None)
    serial: str | None = slow(None)
    processes: list[GpuProcess] | None = slow(None)  # [] is "none"; None is unknown
