"""What a simulated H100 node says of itself beside its GPUs: host, PCI devices, kernel log. All of it is fixed."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.model import FilesystemSample, HostSample, KernelEvent, PciDevice, Pressure

GIB = 1024**3
TIB = 1024**4
FULL_SHARE = 0.96
XID_GPU = 2
XID_AGO_S = 3300.0  # about an hour: events are listed for one
NVIDIA, MELLANOX, SAMSUNG = 0x10DE, 0x15B3, 0x144D


def gpu_bus(index: int) -> str:
    """As sysfs names it."""
    return f"0000:{0x1B + 0x18 * index:02x}:00.0"


def nic_bus(index: int) -> str:
    return f"0000:{0x1A + 0x18 * index:02x}:00.0"


def host_of(name: str, faulty: bool = False) -> HostSample:
    """A healthy dual-socket node; ``faulty``: its local disk is nearly full."""
    return HostSample(
        hostname=name,
        kernel="6.8.0-simulated",
        cpu_count=96,
        memory_total_bytes=2048 * GIB,
        memory_available_bytes=1900 * GIB,
        swap_total_bytes=0,
        swap_used_bytes=0,
        shm_total_bytes=1024 * GIB,
        shm_used_bytes=GIB,
        pressure=Pressure(0.0, 0.0, 0.0, 0.0, 0.0),
        swap_in_bytes_per_s=0.0,
        swap_out_bytes_per_s=0.0,
        oom_kills=0,
        huge_pages_total_bytes=0,
        huge_pages_free_bytes=0,
        memory_errors_corrected=2,  # long ago: what counts is whether it grows
        memory_errors_uncorrected=0,
        open_files=31_840,
        open_files_max=9_223_372,
        zombies=0,
        filesystems=filesystems(faulty),
        lustre_health="healthy",
        governor="performance",
        clocksource="tsc",
        clock_synchronized=True,
        clock_error_s=0.0004,
        ptrace_scope=0,
        services={"nvidia-fabricmanager": "active", "nvidia-persistenced": "active"},
        modules={"nvidia": True, "nvidia_peermem": True, "mlx5_core": True},
        nvidia_driver="570.124.06",
        is_virtual=False,
        is_confined=False,
    )


def filesystems(faulty: bool) -> list[FilesystemSample]:
    scratch = FULL_SHARE if faulty else 0.38
    return [
        _mount("/", "/dev/nvme0n1p2", "ext4", used=0.41, total_bytes=int(0.9 * TIB)),
        _mount("/scratch", "/dev/nvme1n1", "xfs", used=scratch, total_bytes=7 * TIB),
        _mount("/data", "10.0.4.11@o2ib:/data", "lustre", used=0.63, total_bytes=900 * TIB, is_network=True),
        _mount("/home", "10.0.4.20:/home", "nfs4", used=0.57, total_bytes=40 * TIB, is_network=True),
    ]


def _mount(
    mount: str, device: str, kind: str, *, used: float, total_bytes: int, is_network: bool = False
) -> FilesystemSample:
    return FilesystemSample(
        mount=mount,
        device=device,
        kind=kind,
        is_network=is_network,
        read_only=False,
        total_bytes=total_bytes,
        available_bytes=int(total_bytes * (1 - used)),
        inodes_total=488_000_000,
        inodes_free=451_000_000,
    )


@dataclass(frozen=True)
class _Model:
    """A kind of device and the link it has."""

    kind: str
    vendor_id: int
    device_id: int
    driver: str
    speed_gt_per_s: float
    width: int


_GPU = _Model("gpu", NVIDIA, 0x2330, "nvidia", 32.0, 16)
_NIC = _Model("nic", MELLANOX, 0x1021, "mlx5_core", 32.0, 16)
_NVSWITCH = _Model("nvswitch", NVIDIA, 0x22A3, "nvidia-nvswitch", 5.0, 2)
_DISK = _Model("nvme", SAMSUNG, 0xA80A, "nvme", 16.0, 4)


def pci_devices(gpus: int) -> list[PciDevice]:
    """GPUs, one NIC beside each, four NVSwitches and two disks, all at full speed."""
    devices = []
    for index in range(gpus):
        numa_node = int(index >= gpus / 2)
        devices += [_device(gpu_bus(index), _GPU, numa_node), _device(nic_bus(index), _NIC, numa_node)]
    devices += [_device(f"0000:{0x05 + index:02x}:00.0", _NVSWITCH, 0) for index in range(4)]
    return devices + [_device(f"0000:{0x02 + index:02x}:00.0", _DISK, 0) for index in range(2)]


def _device(bus_id: str, model: _Model, numa_node: int) -> PciDevice:
    return PciDevice(
        bus_id=bus_id,
        kind=model.kind,
        vendor_id=model.vendor_id,
        device_id=model.device_id,
        driver=model.driver,
        link_speed_gt_per_s=model.speed_gt_per_s,
        link_speed_max_gt_per_s=model.speed_gt_per_s,
        link_width=model.width,
        link_width_max=model.width,
        numa_node=numa_node,
        local_cpus="48-95" if numa_node else "0-47",
        aer={"correctable": 0, "nonfatal": 0, "fatal": 0},
        acs=False,
    )


def kernel_events(now: float) -> list[KernelEvent]:
    """Of the faulty node at ``now`` (unix s): a memory error on one GPU, contained, about an hour ago."""
    bus = gpu_bus(XID_GPU).rpartition(".")[0]
    text = f"NVRM: Xid (PCI:{bus}): 94, pid=268911, name=python, Contained: SM (0x1). RST: No, D-RST: No (SIMULATED)"
    return [KernelEvent(now - XID_AGO_S, "xid", bus, 94, text, pid=268_911, process="python")]
