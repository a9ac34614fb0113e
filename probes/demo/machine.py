"""What a simulated H100 node says of itself beside its GPUs: host, PCI devices, kernel log, network ports.

All of it is fixed but for what goes through the ports: one of InfiniBand per GPU, and one of Ethernet for the rest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from mltop.probes.model import FilesystemSample, HostSample, KernelEvent, LinkSample, PciDevice, PciKind, Pressure

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

    kind: PciKind
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


IB_BITS_PER_S = 400e9
ETHERNET_BITS_PER_S = 100e9
WORD_BYTES = 4  # port_xmit_data and port_rcv_data count in words of four bytes
DOWN_PORT = 4
# One Gb/s of gradients and more per port while training; hardly anything while all ranks wait.
TRAINING_BYTES_PER_S, WAITING_BYTES_PER_S = 14e9, 2e4
MOVING = ("rx_bytes_per_s", "tx_bytes_per_s", "port_rcv_data", "port_xmit_data")


def links_of(number: int, gpus: int, faulty: bool = False) -> list[LinkSample]:
    """All ports as they are when nothing moves; ``faulty``: one InfiniBand port is down."""
    source = random.Random(number * 7919)
    ports = [_infiniband(index, gpus, source, faulty and index == DOWN_PORT) for index in range(gpus)]
    return [*ports, _ethernet(source)]


def is_moving(link: LinkSample) -> bool:
    return link.kind == "infiniband" and link.state == "ACTIVE"


def moving(t: float, trained_s: float, training: bool, port: int) -> dict[str, int]:
    """The values of MOVING ``t`` seconds after the counters were 0, of which ``trained_s`` were spent training."""
    per_s = (TRAINING_BYTES_PER_S if training else WAITING_BYTES_PER_S) * (1 + 0.01 * port)
    total = int(trained_s * TRAINING_BYTES_PER_S + (t - trained_s) * WAITING_BYTES_PER_S)
    values = (int(per_s), int(per_s * 0.998), total // WORD_BYTES, int(total * 0.998) // WORD_BYTES)
    return dict(zip(MOVING, values))


def _infiniband(index: int, gpus: int, source: random.Random, is_down: bool) -> LinkSample:
    # What happened when cables were plugged in, long ago: only growth means something.
    old = source.choice((0, 0, 0, 1, 2))
    return LinkSample(
        device=f"mlx5_{index}",
        kind="infiniband",
        state="DOWN" if is_down else "ACTIVE",
        physical_state="Polling" if is_down else "LinkUp",
        rate_bits_per_s=10e9 if is_down else IB_BITS_PER_S,
        rx_bytes_per_s=0.0,
        tx_bytes_per_s=0.0,
        netdev=f"ibp{0x1A + 0x18 * index}s0",
        mtu=4096,
        firmware="28.43.1014",
        pci_bus_id=nic_bus(index),
        numa_node=int(index >= gpus / 2),
        has_chardev=True,
        counters={
            "port_rcv_data": 0,
            "port_xmit_data": 0,
            "symbol_error": old * 3,
            "link_error_recovery": 0,
            "link_downed": old + (1 if is_down else 0),
            "port_rcv_errors": 0,
            "port_xmit_discards": 0,
            "port_xmit_wait": source.randrange(10**8, 10**9),
            "local_link_integrity_errors": 0,
            "excessive_buffer_overrun_errors": 0,
            "local_ack_timeout_err": old,
            "packet_seq_err": 0,
            "out_of_sequence": old * 11,
            "rnr_nak_retry_err": 0,
            "req_transport_retries_exceeded": 0,
        },
    )


def _ethernet(source: random.Random) -> LinkSample:
    return LinkSample(
        device="eno1",
        kind="ethernet",
        state="UP",
        physical_state="LinkUp",
        rate_bits_per_s=ETHERNET_BITS_PER_S,
        rx_bytes_per_s=2.1e6,
        tx_bytes_per_s=0.4e6,
        netdev="eno1",
        mtu=9000,
        pci_bus_id="0000:c1:00.0",
        numa_node=0,
        counters={
            "rx_errors": 0,
            "tx_errors": 0,
            "rx_crc_errors": 0,
            "rx_missed_errors": 0,
            "rx_dropped": source.randrange(50, 400),
            "carrier_changes": 2,
        },
    )
