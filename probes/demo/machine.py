"""What a simulated H100 node says of itself beside its GPUs: host, PCI devices, kernel log, network ports.

A healthy dual-socket node is described in healthy_node.json; here is in what one differs from the next. Everything
stays as it is but for what goes through the ports: one of InfiniBand per GPU, and one of Ethernet for the rest. Error
counters that are not 0 are of long ago: what counts is whether they grow.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from mltop.probes.model import FilesystemSample, HostSample, KernelEvent, LinkSample, PciDevice, PciKind, Pressure

HEALTHY: dict[str, Any] = json.loads(Path(__file__).with_name("healthy_node.json").read_text(encoding="utf-8"))
FULL_SHARE = 0.96
QUIET_LOAD, TRAINING_LOAD = 0.02, 0.31  # share of the CPUs in use
XID_GPU = 2
XID_AGO_S = 3300.0  # about an hour: events are listed for one


def gpu_bus(index: int) -> str:
    """The GPU's PCI address as sysfs names it."""
    return f"0000:{0x1B + 0x18 * index:02x}:00.0"


def nic_bus(index: int) -> str:
    return f"0000:{0x1A + 0x18 * index:02x}:00.0"


def host_of(name: str, faulty: bool = False) -> HostSample:
    """The host of one node; ``faulty``: its local disk is nearly full."""
    pressure = Pressure(**HEALTHY["host"]["pressure"])
    return HostSample(**{**HEALTHY["host"], "hostname": name, "pressure": pressure, "filesystems": filesystems(faulty)})


def moving_host(uptime_s: float, load: float, number: int, links: list[LinkSample]) -> dict[str, Any]:
    """The fields of a HostSample that change; ``load``: the share of its CPUs that is in use."""
    ports = [link for link in links if is_moving(link)]
    wave = 1 + 0.1 * math.sin(uptime_s / 9 + number)
    return {
        "uptime_s": round(uptime_s, 1),
        "cpu_fraction": round(load * wave, 3),
        "load_1m": round(HEALTHY["host"]["cpu_count"] * load * wave, 2),
        "network_rx_bytes_per_s": round(load * 4e8 * wave),
        "network_tx_bytes_per_s": round(load * 3e7 * wave),
        "disk_read_bytes_per_s": round(load * 2e8 * wave),
        "disk_write_bytes_per_s": round(load * 1e7 * wave),
        "ports_rx_bytes_per_s": sum(port.rx_bytes_per_s or 0 for port in ports),
        "ports_tx_bytes_per_s": sum(port.tx_bytes_per_s or 0 for port in ports),
    }


def filesystems(faulty: bool) -> list[FilesystemSample]:
    mounts = [FilesystemSample(**mount) for mount in HEALTHY["filesystems"]]
    for mount in mounts:
        if faulty and mount.mount == "/scratch":
            mount.available_bytes = int((mount.total_bytes or 0) * (1 - FULL_SHARE))
    return mounts


def cpus_of(gpu: int) -> str:
    """The CPUs that a rank on this GPU is bound to."""
    return f"{gpu * 12}-{gpu * 12 + 11}"


def numa_of(gpu: int, gpus: int) -> str:
    return str(int(gpu >= gpus / 2))


def pci_devices(gpus: int) -> list[PciDevice]:
    """GPUs, one NIC beside each, four NVSwitches and two disks, all at full speed."""
    devices = []
    for index in range(gpus):
        numa_node = int(index >= gpus / 2)
        devices += [_device(gpu_bus(index), "gpu", numa_node), _device(nic_bus(index), "nic", numa_node)]
    devices += [_device(f"0000:{0x05 + index:02x}:00.0", "nvswitch", 0) for index in range(4)]
    return devices + [_device(f"0000:{0x02 + index:02x}:00.0", "nvme", 0) for index in range(2)]


def _device(bus_id: str, kind: PciKind, numa_node: int) -> PciDevice:
    cpus, aer = "48-95" if numa_node else "0-47", {"correctable": 0, "nonfatal": 0, "fatal": 0}
    return PciDevice(bus_id, kind, numa_node=numa_node, local_cpus=cpus, aer=aer, **HEALTHY["pci"][kind])


def kernel_events(now: float) -> list[KernelEvent]:
    """The faulty node's kernel log at ``now`` (unix s): a memory error on one GPU, contained, about an hour ago."""
    bus = gpu_bus(XID_GPU).rpartition(".")[0]
    text = f"NVRM: Xid (PCI:{bus}): 94, pid=268911, name=python, Contained: SM (0x1). RST: No, D-RST: No (SIMULATED)"
    return [KernelEvent(now - XID_AGO_S, "xid", bus, 94, text, pid=268_911, process="python")]


WORD_BYTES = 4  # port_xmit_data and port_rcv_data count in words of four bytes
DOWN_PORT = 4
# One Gb/s of gradients and more per port while training; hardly anything while all ranks wait.
TRAINING_BYTES_PER_S, WAITING_BYTES_PER_S = 14e9, 2e4


def links_of(number: int, gpus: int, faulty: bool = False) -> list[LinkSample]:
    """All ports as they are when nothing moves; ``faulty``: one InfiniBand port is down."""
    source = random.Random(number * 7919)
    ports = [_infiniband(index, gpus, source) for index in range(gpus)]
    if faulty and len(ports) > DOWN_PORT:
        port = ports[DOWN_PORT]
        port.counters["link_downed"] += 1
        ports[DOWN_PORT] = replace(port, state="DOWN", physical_state="Polling", rate_bits_per_s=10e9)
    ethernet = HEALTHY["ethernet"]
    dropped = {"rx_dropped": source.randrange(50, 400)}
    return [*ports, LinkSample(**{**ethernet, "counters": {**ethernet["counters"], **dropped}})]


def is_moving(link: LinkSample) -> bool:
    return link.kind == "infiniband" and link.state == "ACTIVE"


def set_traffic(links: list[LinkSample], t: float, trained_s: float, training: bool) -> None:
    """What went through the ports ``t`` seconds after the counters were 0, of which ``trained_s`` were training."""
    total = int(trained_s * TRAINING_BYTES_PER_S + (t - trained_s) * WAITING_BYTES_PER_S)
    words = {"port_rcv_data": total // WORD_BYTES, "port_xmit_data": int(total * 0.998) // WORD_BYTES}
    for port, link in enumerate(links):
        if is_moving(link):
            per_s = (TRAINING_BYTES_PER_S if training else WAITING_BYTES_PER_S) * (1 + 0.01 * port)
            link.rx_bytes_per_s, link.tx_bytes_per_s = int(per_s), int(per_s * 0.998)
            link.counters.update(words)


def _infiniband(index: int, gpus: int, source: random.Random) -> LinkSample:
    old = source.choice((0, 0, 0, 1, 2))  # what happened when cables were plugged in
    errors = {"symbol_error": old * 3, "link_downed": old, "local_ack_timeout_err": old, "out_of_sequence": old * 11}
    counters = {**HEALTHY["infiniband"]["counters"], **errors, "port_xmit_wait": source.randrange(10**8, 10**9)}
    port = LinkSample(**{**HEALTHY["infiniband"], "device": f"mlx5_{index}", "counters": counters})
    port.netdev, port.pci_bus_id = f"ibp{0x1A + 0x18 * index}s0", nic_bus(index)
    port.numa_node = int(index >= gpus / 2)
    return port
