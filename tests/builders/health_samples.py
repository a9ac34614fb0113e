"""Healthy machines for tests of health rules: each test changes the one thing that it is about.

``gpu(3, temperature_c=91.0, ecc={"uncorrected_volatile": 2})``: names as in GpuSample, dicts change parts.
``sample(at, [gpu(0), gpu(1)])``: a sample of these GPUs and nothing else.
``node_h100(at)``: a whole 8 x H100 node in training: NICs, PCI, host, ranks and counters that move with ``at``;
``node_h100(at, {3: {"temperature_c": 91.0}}, host={"zombies": 3})`` changes GPU 3 and the host.
``judged(samples, "gpu.")``: the findings of the rules whose ids begin so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.rule import Expectations
from mltop.probes.model import (
    UNLIMITED,
    CgroupSample,
    Ecc,
    Fabric,
    FilesystemSample,
    Finding,
    Gap,
    GpuProcess,
    GpuSample,
    HostSample,
    KernelEvent,
    LinkSample,
    Nvlink,
    NvlinkLink,
    PciDevice,
    Pcie,
    Pressure,
    RankSample,
    Remap,
    RemapBanks,
    Sample,
)
from tests.builders.evaluated import evaluate

GIB = 1024**3
H100 = "NVIDIA H100 80GB HBM3"
GPU_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
NIC_BUSES = ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc")
SWITCH_BUSES = ("07", "08", "09", "0a")
LOCAL_CPUS = ("0-47,96-143", "48-95,144-191")
FIRST_PID = 4000
NVLINK_BYTES_PER_S = 26_562e6
STARTED_AT = -200_000.0  # the node has been up for days at any ``at``

# What each load does to a GPU. "capped": at its power limit, which is normal under full load. "spinning": waiting in
# a collective. "checkpoint": all ranks write, the GPUs do nothing and clock down.
LOADS: dict[str, dict[str, Any]] = {
    "training": {"busy": 0.98, "power_w": 560.0, "sm_clock_mhz": 1980, "temperature_c": 61.0, "throttle_reasons": []},
    "capped": {
        "busy": 1.0,
        "power_w": 699.0,
        "sm_clock_mhz": 1695,
        "temperature_c": 67.0,
        "throttle_reasons": ["sw_power_cap"],
    },
    "spinning": {"busy": 1.0, "power_w": 130.0, "sm_clock_mhz": 1980, "temperature_c": 40.0, "throttle_reasons": []},
    "checkpoint": {
        "busy": 0.0,
        "power_w": 112.0,
        "sm_clock_mhz": 1980,
        "temperature_c": 42.0,
        "throttle_reasons": ["gpu_idle"],
    },
    "idle": {
        "busy": 0.0,
        "power_w": 69.0,
        "sm_clock_mhz": 345,
        "temperature_c": 31.0,
        "throttle_reasons": ["gpu_idle"],
    },
}


def gpu(index: int, load: str = "training", at: float = 0.0, **fields: Any) -> GpuSample:
    """One healthy H100 SXM under ``load``; a dict for a part (ecc, remap, pcie, …) changes fields of that part."""
    whole = copy(_healthy_gpu(index, load))
    up_s = at - STARTED_AT
    whole.last_seen_at, whole.energy_j, whole.throttle_ns = at, up_s * 500.0, _throttle_ns(load, up_s)
    whole.nvlink = copy(whole.nvlink)
    own = fields.get("nvlink", {})
    if isinstance(own, Mapping) and "links" not in own:
        whole.nvlink.links = _nvlinks()
    return changed(whole, fields)


@cache
def _healthy_gpu(index: int, load: str) -> GpuSample:
    """Samples are made by the ten thousand: what does not move with time is made once, and shared by all of them."""
    state = LOADS[load]
    works = load in ("training", "capped")
    return GpuSample(
        index=index,
        uuid=f"GPU-{index}",
        name=H100,
        pci_bus_id=f"00000000:{GPU_BUSES[index % 8].upper()}:00.0",
        sm_active=0.74 if works else 0.0,
        sm_occupancy=0.31 if works else 0.0,
        tensor_active=0.46 if works else 0.0,
        dram_active=0.55 if works else 0.0,
        activity_source="gpm",
        memory_used_bytes=4 * 1024**2 if load == "idle" else 71 * GIB,
        memory_total_bytes=81_559 * 1024**2,
        memory_temperature_c=state["temperature_c"] + 8,
        temperature_margin_c=87.0 - state["temperature_c"],
        temperature_slowdown_c=87.0,
        memory_temperature_max_c=95.0,
        power_limit_w=700.0,
        power_limit_default_w=700.0,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=2619,
        memory_clock_max_mhz=2619,
        ecc=Ecc(True, True, 3, 0, 1_207, 0, 0, False),
        remap=Remap(2, 0, False, False, False, RemapBanks(2559, 1, 0, 0, 0)),
        recovery_action="none",
        pcie=Pcie(1 if load == "idle" else 5, 5, 16, 16, 14, 2.1e8, 0.9e8),
        nvlink=Nvlink([], 1.2e11 if works else 0.0, 1.2e11 if works else 0.0),
        fabric=Fabric("completed", "ok", [], 0, "6b1c4d2e"),
        mig_enabled=False,
        mig_pending=False,
        persistence=True,
        compute_mode="default",
        performance_state=0,
        driver="570.124.06",
        cuda="12.8",
        gsp_firmware="570.124.06",
        vbios="96.00.99.00.01",
        serial=f"16538230{index:05d}",
        processes=[] if load == "idle" else [GpuProcess(FIRST_PID + index, 70 * GIB)],
        **state,
    )


def sample(at: float, gpus: Sequence[GpuSample] = (), **fields: Any) -> Sample:
    """These GPUs on node "n1" and nothing else."""
    return changed(Sample("n1", at, boot_id="boot-1", gpus=list(gpus)), fields)


# What a real node of this kind does not have either.
NOT_HERE = (
    Gap("gpu.*.{retired_pages,retired_pages_double_bit,retired_pages_pending}", "before Ampere", kind="unsupported"),
    Gap("host.lustre_health", "no Lustre here", kind="unsupported"),
)


def node_h100(
    at: float,
    gpus: Mapping[int, Mapping[str, Any]] | None = None,
    load: str = "training",
    loads: Mapping[int, str] | None = None,
    **fields: Any,
) -> Sample:
    """A healthy node at ``at`` (unix s). ``gpus``: index → changed fields; ``loads``: index → another load.

    Ranks run unless the load is "idle". ``fields`` change the Sample; a dict for ``host`` changes parts of it.
    """
    found = []
    for index in range(8):
        own = (loads or {}).get(index, load)
        found.append(gpu(index, own, at, **dict((gpus or {}).get(index, {}))))
    whole = Sample(
        node="n1",
        sampled_at=at,
        boot_id="boot-1",
        gpus=found,
        ranks=[] if load == "idle" else [rank(index, at) for index in range(8)],
        host=host(at, load),
        links=links(at, load),
        pci=pci(load),
        gaps=list(NOT_HERE),
    )
    return changed(whole, fields)


def changed(record: Any, fields: Mapping[str, Any]) -> Any:
    """A copy of the record with ``fields``; a dict for a field that is a record changes that record's fields."""
    if not fields:
        return record
    unknown = fields.keys() - record.__dataclass_fields__.keys()
    if unknown:
        raise TypeError(f"{type(record).__name__} has no {', '.join(sorted(unknown))}")
    made = copy(record)
    for name, value in fields.items():
        old = getattr(record, name)
        setattr(made, name, changed(old, value) if is_dataclass(old) and isinstance(value, Mapping) else value)
    return made


def judged(samples: Iterable[Sample], *prefixes: str, asked: Expectations | None = None) -> list[Finding]:
    """What the rules whose ids begin with one of ``prefixes`` say, folded, the gravest first."""
    rules = [rule for rule in RULES if rule.id.startswith(prefixes)]
    return [one for one in evaluate(samples, rules, asked or Expectations()) if one.id.startswith(prefixes)]


def rank(index: int, at: float = 0.0, **fields: Any) -> RankSample:
    """Rank ``index`` of eight, on GPU ``index``, with its dataloader workers, bound to the GPU's socket."""
    whole, ran_s = copy(_working_rank(index)), at - STARTED_AT
    whole.voluntary_switches, whole.main_cpu_s = int(ran_s * 900), ran_s * 0.9
    whole.read_syscalls, whole.write_syscalls = int(ran_s * 400), int(ran_s * 40)
    return changed(whole, fields)


@cache
def _working_rank(index: int) -> RankSample:
    return RankSample(
        pid=FIRST_PID + index,
        rank=index,
        local_rank=index,
        world_size=8,
        local_world_size=8,
        job="1042",
        master_address="n1",
        launcher="torchrun",
        user="ml",
        command="python train.py",
        python="/usr/bin/python3.11",
        state="R",
        started_at=STARTED_AT + 600.0,
        gpus=[index],
        cpu_fraction=1.1,
        rss_bytes=18 * GIB,
        cpus_allowed=LOCAL_CPUS[index // 4],
        numa_nodes="0-1",
        children=[10_000 + 10 * index + worker for worker in range(4)],
        children_cpu_fraction=1.6,
        children_blocked=0,
        memlock_limit_bytes=UNLIMITED,
        open_files=400,
        open_files_limit=1_048_576,
        cgroup="/system.slice/slurmstepd.scope/job_1042",
        settings={"OMP_NUM_THREADS": "8"},
    )


def host(at: float = 0.0, load: str = "training", **fields: Any) -> HostSample:
    """Two sockets, 192 threads, 2 TiB, an NFS and a local file system, all services of an HGX board running."""
    whole = HostSample(
        hostname="n1",
        kernel="6.8.0-45-generic",
        uptime_s=at - STARTED_AT,
        cpu_count=192,
        cpu_fraction=0.02 if load == "idle" else 0.21,
        load_1m=1.2 if load == "idle" else 41.0,
        load_5m=1.1 if load == "idle" else 40.0,
        load_15m=1.1 if load == "idle" else 40.0,
        memory_total_bytes=2048 * GIB,
        memory_available_bytes=1700 * GIB,
        swap_total_bytes=0,
        swap_used_bytes=0,
        shm_total_bytes=1024 * GIB,
        shm_used_bytes=40 * GIB,
        network_rx_bytes_per_s=4e6,
        network_tx_bytes_per_s=3e6,
        disk_read_bytes_per_s=8e7,
        disk_write_bytes_per_s=2e6,
        pressure=Pressure(0.01, 0.0, 0.0, 0.02, 0.01),
        swap_in_bytes_per_s=0.0,
        swap_out_bytes_per_s=0.0,
        oom_kills=2,
        huge_pages_total_bytes=0,
        huge_pages_free_bytes=0,
        memory_errors_corrected=4,
        memory_errors_uncorrected=0,
        open_files=31_000,
        open_files_max=9_223_372,
        zombies=1,
        cgroups=[CgroupSample("/system.slice/slurmstepd.scope/job_1042", 192.0, 0.0, 300 * GIB, 2000 * GIB, 0)],
        filesystems=filesystems(),
        governor="performance",
        clocksource="tsc",
        clock_synchronized=True,
        clock_error_s=0.0008,
        ptrace_scope=0,
        services={"nvidia-fabricmanager": "active", "nvidia-imex": "absent"},
        modules={"nvidia_peermem": True, "nvidia": True},
        nvidia_driver="570.124.06",
        is_virtual=False,
        is_confined=False,
        sees_all_processes=True,
    )
    return changed(whole, fields)


def filesystems() -> list[FilesystemSample]:
    tib = 1024 * GIB
    local = FilesystemSample("/", "/dev/nvme8n1p2", "ext4", False, False, 2 * tib, tib, 10**8, 9 * 10**7)
    scratch = FilesystemSample("/scratch", "/dev/md0", "xfs", False, False, 28 * tib, 20 * tib, 10**9, 9 * 10**8)
    shared = FilesystemSample(
        "/home", "10.0.4.11:/home", "nfs4", True, False, 100 * tib, 34 * tib, counters={"retransmissions": 12}
    )
    return [local, scratch, shared]


def links(at: float = 0.0, load: str = "training") -> list[LinkSample]:
    """Eight busy HCAs with the counters of months, and Ethernet."""
    moved = int((at - STARTED_AT) * (2.5e9 if load in ("training", "capped") else 1e3))
    ethernet = LinkSample("eth0", 1, "ethernet", "UP", "UP", 100e9, 4e6, 3e6, "eth0", 9000, pci_bus_id="0000:2a:00.0")
    ethernet.counters = {
        "rx_crc_errors": 0,
        "rx_errors": 3,
        "rx_dropped": 170_221,
        "rx_missed_errors": 0,
        "tx_errors": 0,
        "carrier_changes": 3,
    }
    return [*(link(number, moved) for number in range(8)), ethernet]


def worn_links(at: float = 0.0, load: str = "training") -> list[LinkSample]:
    """As ``links``, with an unused port of an on-board card and a flap counter that stands at its maximum: context."""
    spare = LinkSample("mlx5_8", 1, "infiniband", "DOWN", "Polling", 10e9, netdev="ibs9", pci_bus_id="0000:29:00.0")
    spare.counters = {"link_downed": 0, "symbol_error": 0, "port_rcv_errors": 0, "port_xmit_wait": 0}
    spare.has_chardev = True
    found = links(at, load)
    found[5].counters["link_downed"], found[5].saturated = 255, ["link_downed"]
    return [*found, spare]


def link(number: int, moved_bytes: int = 0, **fields: Any) -> LinkSample:
    """``mlx5_NUMBER``, ACTIVE at 400 Gb/s; its error counters stand where months of work have left them."""
    bus = NIC_BUSES[number]
    whole = LinkSample(
        device=f"mlx5_{number}",
        port=1,
        kind="infiniband",
        state="ACTIVE",
        physical_state="LinkUp",
        rate_bits_per_s=400e9,
        rx_bytes_per_s=2.5e9,
        tx_bytes_per_s=2.5e9,
        netdev=f"ib{number}",
        mtu=4092,
        firmware="28.39.2048",
        pci_bus_id=f"0000:{bus}:00.0",
        numa_node=number // 4,
        has_chardev=True,
        counters={
            "link_downed": 2,
            "link_error_recovery": 0,
            "symbol_error": 0,
            "port_rcv_errors": 14,
            "port_xmit_discards": 0,
            "port_xmit_wait": 2_489_603_687 + moved_bytes // 1_000_000,
            "port_xmit_data": moved_bytes // 4,
            "port_rcv_data": moved_bytes // 4,
            "local_link_integrity_errors": 0,
            "excessive_buffer_overrun_errors": 0,
            "local_ack_timeout_err": 31,
            "packet_seq_err": 2,
            "out_of_sequence": 40,
            "rnr_nak_retry_err": 0,
            "roce_slow_restart": 0,
        },
    )
    return changed(whole, fields)


def pci(load: str = "training") -> list[PciDevice]:
    """GPUs, NICs, NVSwitches and NVMe disks; idle GPUs have clocked their PCIe link down."""
    return [copy(device) for device in _pci(load)]


@cache
def _pci(load: str) -> tuple[PciDevice, ...]:
    found = []
    for index in range(8):
        local = {"numa_node": index // 4, "local_cpus": LOCAL_CPUS[index // 4]}
        speed = 2.5 if load == "idle" else 32.0
        found.append(_device(GPU_BUSES[index], "gpu", 0x10DE, 0x2330, "nvidia", speed, 16, **local))
        found.append(_device(NIC_BUSES[index], "nic", 0x15B3, 0x1021, "mlx5_core", 32.0, 16, **local))
    found += [_device(bus, "nvswitch", 0x10DE, 0x22A3, "nvidia-nvswitch", 16.0, 2) for bus in SWITCH_BUSES]
    found.append(_device("29", "nic", 0x15B3, 0x101B, "mlx5_core", 16.0, 16))
    found.append(_device("2a", "nic", 0x15B3, 0x101D, "mlx5_core", 16.0, 16))
    found += [_device(bus, "nvme", 0x144D, 0xA80A, "nvme", 16.0, 4) for bus in ("2b", "2c", "a9", "aa")]
    return tuple(found)


def xid(at: float, code: int, gpu_index: int = 3, text: str = "", **fields: Any) -> KernelEvent:
    """The kernel log's line of an Xid, as the collector reads it: the bus id has no function digit."""
    bus = f"0000:{GPU_BUSES[gpu_index]}:00"
    line = f"NVRM: Xid (PCI:{bus}): {code}, {text}".rstrip(", ")
    return changed(KernelEvent(at, "xid", bus, code, line), fields)


def _device(
    bus: str, kind: str, vendor: int, device: int, driver: str, speed: float, width: int, **fields: Any
) -> PciDevice:
    top = 32.0 if kind == "gpu" else speed
    return PciDevice(
        f"0000:{bus}:00.0",
        kind,
        vendor,
        device,
        driver,
        speed,
        top,
        width,
        width,
        aer={"correctable": 3, "nonfatal": 0, "fatal": 0},
        acs=False,
        **fields,
    )


def _nvlinks() -> list[NvlinkLink]:
    errors = {"replay": 1, "recovery": 0, "crc": 4}
    return [NvlinkLink(index, True, 4, NVLINK_BYTES_PER_S, "switch", dict(errors)) for index in range(18)]


def _throttle_ns(load: str, up_s: float) -> dict[str, int]:
    """Old counters are never 0: the node has been throttled in its life."""
    capped_s = up_s if load == "capped" else 90_000.0
    return {
        "sw_power_cap": int(capped_s * 1e9),
        "sync_boost": 0,
        "sw_thermal": 40 * 10**9,
        "hw_thermal": 3 * 10**9,
        "power_brake": 2 * 10**9,
    }
