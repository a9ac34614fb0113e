"""A /sys on disk: the network ports and PCI devices of a machine, shaped as the kernel shows them.

    tree = SysTree(tmp_path).h100_node()
    tree.set_port("mlx5_3", state="1: DOWN", phys_state="2: Polling")
    tree.count("mlx5_3", link_downed=1)             # adds to its counters
    tree.refuse("class/infiniband/mlx5_4/ports/1/counters/symbol_error")     # reading it answers EIO
    tree.set_pci("0000:1b:00.0", current_link_width="8")
    tree.remove_infiniband("mlx5_7"); tree.remove_pci("0000:9d:00.0")

Give the program ``MLTOP_SYSROOT=tmp_path``, or a source ``root=str(tree.root)``. Texts are as in the files, without the
newline. Folders are at their place below devices/, with the kernel's symbolic links in bus/pci and class/. A value is
changed in place: whoever has the file open sees it, and never sees it empty.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.fakes.sysfs_counters import (
    EFA_DEVICE_COUNTERS,
    EFA_PORT_COUNTERS,
    HW_COUNTERS,
    IB_COUNTERS,
    NET_STATISTICS,
    ROCE_COUNTERS,
)

GPU_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_NDR = "400 Gb/sec (4X NDR)"


class SysTree:
    """``root`` is the /sys itself. Devices are added, changed and removed while a reader looks at it."""

    def __init__(self, sysroot: Path) -> None:
        self.root = sysroot / "sys"
        for folder in ("devices/virtual/net", "bus/pci/devices", "bus/pci/drivers", "class/net"):
            (self.root / folder).mkdir(parents=True)

    def write(self, path: str, content: str | bytes) -> None:
        """Set a file below /sys, in place. Text gets a newline, bytes are taken as they are."""
        data = content if isinstance(content, bytes) else f"{content}\n".encode()
        file = f"{self.root}/{path}"
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(file))
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def refuse(self, path: str) -> None:
        """Reading this file answers EIO from now on: there is no memory at address 0.

        Give the path below class/ or devices/. A reader that has the old file open goes on reading that one.
        """
        file = (self.root / path).parent.resolve() / Path(path).name
        file.unlink(missing_ok=True)
        file.symlink_to("/proc/self/mem")

    def remove(self, path: str) -> None:
        """A file, a link or a folder with all that is in it; nothing if it is not there."""
        target = self.root / path
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.exists():
            shutil.rmtree(target)

    def pci(
        self,
        bus_id: str,
        vendor: int,
        device: int,
        pci_class: int,
        driver: str | None = None,
        below: str | None = None,
        numa_node: int = 0,
        cpus: str = "0-55",
        speed: str | None = "32.0 GT/s PCIe",
        lanes: int = 16,
        config: bytes | None = None,
    ) -> None:
        """A PCI function. ``below``: bus id of the bridge above it. ``speed`` None: no PCIe link is shown (a VM).

        ``config``: its configuration space; by default the 64 bytes that users without root get.
        """
        home = self._pci_home(below) if below else self.root / f"devices/pci{bus_id[:7]}"
        folder = home / bus_id
        folder.mkdir(parents=True)
        (self.root / "bus/pci/devices" / bus_id).symlink_to(_relative(folder, self.root / "bus/pci/devices"))
        header = struct.pack("<HHHHI", vendor, device, 0x0547, 0x0010, pci_class << 8 | 0xA1)
        self.set_pci(
            bus_id,
            vendor=f"0x{vendor:04x}",
            device=f"0x{device:04x}",
            **{"class": f"0x{pci_class:06x}"},
            revision="0xa1",
            numa_node=str(numa_node),
            local_cpulist=cpus,
            config=config if config is not None else header.ljust(64, b"\0"),
        )
        if speed is not None:
            self.set_pci(bus_id, current_link_speed=speed, max_link_speed=speed)
            self.set_pci(bus_id, current_link_width=str(lanes), max_link_width=str(lanes))
            self.pci_errors(bus_id)
        if driver:
            self.bind(bus_id, driver)

    def set_pci(self, bus_id: str, **files: str | bytes) -> None:
        """Change files of a PCI function, e.g. ``current_link_width="8"``."""
        for name, content in files.items():
            self.write(f"bus/pci/devices/{bus_id}/{name}", content)

    def pci_errors(self, bus_id: str, correctable: int = 0, nonfatal: int = 0, fatal: int = 0) -> None:
        """Set its PCIe error counters (aer_dev_*)."""
        totals = (("correctable", "COR", correctable), ("nonfatal", "NONFATAL", nonfatal), ("fatal", "FATAL", fatal))
        for name, short, total in totals:
            lines = f"RxErr {total}\nBadTLP 0\nBadDLLP 0\nTOTAL_ERR_{short} {total}"
            self.set_pci(bus_id, **{f"aer_dev_{name}": lines})

    def bind(self, bus_id: str, driver: str | None) -> None:
        """To a kernel driver; None: to none."""
        folder = self._pci_home(bus_id)
        (folder / "driver").unlink(missing_ok=True)
        if driver is not None:
            home = self.root / "bus/pci/drivers" / driver
            home.mkdir(exist_ok=True)
            (folder / "driver").symlink_to(_relative(home, folder))

    def fall_off(self, bus_id: str) -> None:
        """The device does not answer any more: what is read from it is all ones; what the kernel knows stays."""
        self.set_pci(bus_id, config=b"\xff" * 64, current_link_width="63", current_link_speed="Unknown")

    def remove_pci(self, bus_id: str) -> None:
        """The function vanishes from the bus, with its network and RDMA devices."""
        folder = self._pci_home(bus_id)
        for kind in ("infiniband", "infiniband_verbs", "net"):
            for name in os.listdir(folder / kind) if (folder / kind).is_dir() else ():
                (self.root / "class" / kind / name).unlink()
        (self.root / "bus/pci/devices" / bus_id).unlink()
        shutil.rmtree(folder)

    def bridge(self, bus_id: str, below: str | None = None, acs: bool | None = None) -> None:
        """A root port or a switch port. ``acs``: what root reads of its ACSCtl (SrcValid); None: no root, 64 bytes."""
        config = None if acs is None else acs_config(acs)
        self.pci(bus_id, 0x1000, 0xC030, 0x060400, driver="pcieport", below=below, config=config)

    def gpu(self, bus_id: str, below: str | None = None, numa_node: int = 0) -> None:
        """An H100 SXM."""
        self.pci(bus_id, 0x10DE, 0x2330, 0x030200, "nvidia", below, numa_node, _cpus(numa_node))

    def virtual_function(self, bus_id: str, of: str) -> None:
        """Of a NIC; add its RDMA device or interface with ``infiniband`` or ``ethernet``."""
        self.pci(bus_id, 0x15B3, 0x101E, 0x020000, "mlx5_core")
        folder = self._pci_home(bus_id)
        (folder / "physfn").symlink_to(_relative(self._pci_home(of), folder))

    def infiniband(
        self,
        name: str,
        bus_id: str,
        ports: Iterable[int] = (1,),
        link_layer: str = "InfiniBand",
        state: str = "4: ACTIVE",
        phys_state: str = "5: LinkUp",
        rate: str = _NDR,
        fw_ver: str = "28.39.2048",
        counters: Mapping[str, int] | None = IB_COUNTERS,
        hw_counters: Mapping[str, int] | None = HW_COUNTERS,
        device_counters: Mapping[str, int] | None = None,
        netdev: str | None = None,
    ) -> None:
        """An RDMA device on an existing PCI function. Counters None: it has no such folder.

        ``netdev``: the interface at its addresses (see ``ethernet``, which makes it).
        """
        home = self._pci_home(bus_id)
        folder = home / "infiniband" / name
        self._class_link("infiniband", name, folder)
        (folder / "device").symlink_to(_relative(home, folder))
        at = f"class/infiniband/{name}"
        self.write(f"{at}/node_type", "1: CA")
        self.write(f"{at}/fw_ver", fw_ver)
        self._counters(f"{at}/hw_counters", device_counters)
        for port in ports:
            self.write(f"{at}/ports/{port}/link_layer", link_layer)
            self.set_port(name, port, state=state, phys_state=phys_state, rate=rate)
            self._counters(f"{at}/ports/{port}/counters", counters)
            self._counters(f"{at}/ports/{port}/hw_counters", hw_counters)
            if netdev is not None:
                self.write(f"{at}/ports/{port}/gid_attrs/ndevs/0", netdev)
        self.chardev(name)

    def roce(self, name: str, bus_id: str, netdev: str, rate: str = "100 Gb/sec (4X EDR)", **more: object) -> None:
        """An RDMA device over Ethernet with its interface on the same PCI function."""
        self.ethernet(netdev, bus_id)
        hw_counters = {**HW_COUNTERS, **ROCE_COUNTERS}
        options = {"link_layer": "Ethernet", "rate": rate, "hw_counters": hw_counters, "netdev": netdev, **more}
        self.infiniband(name, bus_id, **options)  # type: ignore[arg-type]

    def efa(self, name: str, bus_id: str, **more: object) -> None:
        """An AWS adapter, with its PCI function: no ``counters``, its state always reads ACTIVE."""
        self.pci(bus_id, 0x1D0F, 0xEFA2, 0x020000, "efa", speed=None)
        options = {"link_layer": "Unspecified", "rate": "100 Gb/sec (4X EDR)", "fw_ver": "0.0.0.0", "counters": None}
        options |= {"hw_counters": EFA_PORT_COUNTERS, "device_counters": EFA_DEVICE_COUNTERS, **more}
        self.infiniband(name, bus_id, **options)  # type: ignore[arg-type]

    def chardev(self, name: str, present: bool = True) -> None:
        """Whether programs can open an RDMA device (its uverbs)."""
        folder = self.root / "class/infiniband_verbs"
        folder.mkdir(exist_ok=True)
        for entry in folder.iterdir():
            if (entry / "ibdev").read_text().strip() == name:
                shutil.rmtree(entry)
        if present:
            number = next(n for n in range(1024) if not (folder / f"uverbs{n}").exists())
            self.write(f"class/infiniband_verbs/uverbs{number}/ibdev", name)

    def set_port(self, name: str, port: int = 1, **files: str) -> None:
        """Change ``state`` ("1: DOWN"), ``phys_state`` ("2: Polling"), ``rate`` ("200 Gb/sec (4X HDR)") of a port."""
        for file, content in files.items():
            self.write(f"class/infiniband/{name}/ports/{port}/{file}", content)

    def set_counters(self, name: str, port: int = 1, **counters: int | str) -> None:
        """Set counters of a port, wherever they are."""
        for counter, value in counters.items():
            self.write(self._counter_path(name, port, counter), str(value))

    def count(self, name: str, port: int = 1, **increases: int) -> None:
        """Add to counters of a port, e.g. ``link_downed=1``; a narrow one goes on beyond its maximum: set that."""
        for counter, increase in increases.items():
            path = self._counter_path(name, port, counter)
            self.write(path, str(int((self.root / path).read_text()) + increase))

    def remove_infiniband(self, name: str) -> None:
        """The RDMA device goes (its driver was unloaded); its PCI function stays."""
        link = self.root / "class/infiniband" / name
        shutil.rmtree(link.resolve())
        link.unlink()
        self.chardev(name, present=False)

    def ethernet(
        self,
        name: str,
        bus_id: str | None = None,
        state: str = "up",
        speed: int = 100_000,
        mtu: int = 9000,
        statistics: Mapping[str, int] = NET_STATISTICS,
        arp_type: int = 1,
    ) -> None:
        """An interface on an existing PCI function, or (None) a virtual one: docker0, veth…, a VLAN."""
        home = self.root / "devices/virtual" if bus_id is None else self._pci_home(bus_id)
        folder = home / "net" / name
        self._class_link("net", name, folder)
        if bus_id is not None:
            (folder / "device").symlink_to(_relative(home, folder))
        is_up = state == "up"
        self.set_net(name, type=arp_type, dev_port=0, ifindex=len(os.listdir(self.root / "class/net")) + 1, mtu=mtu)
        self.set_net(name, carrier_changes=1 + is_up, carrier_up_count=int(is_up), carrier_down_count=1)
        self.set_net(name, operstate=state, speed=speed if is_up else -1, flags="0x1003", carrier=int(is_up))
        self._counters(f"class/net/{name}/statistics", statistics)

    def ipoib(self, name: str, bus_id: str) -> None:
        """IP over InfiniBand on an InfiniBand device's PCI function."""
        self.ethernet(name, bus_id, mtu=2044, arp_type=32)

    def bond(self, name: str, *members: str, state: str = "up", speed: int = 200_000) -> None:
        """A bond of existing interfaces."""
        self.ethernet(name, state=state, speed=speed)
        self.write(f"class/net/{name}/bonding/slaves", " ".join(members))
        self.write(f"class/net/{name}/bonding/mii_status", state)

    def set_net(self, name: str, **files: str | int) -> None:
        """Change files of an interface: ``operstate="down"``, ``carrier_down_count=3``, ``speed=10000`` (Mb/s)."""
        for file, content in files.items():
            self.write(f"class/net/{name}/{file}", str(content))

    def set_statistics(self, name: str, **counters: int) -> None:
        for counter, value in counters.items():
            self.write(f"class/net/{name}/statistics/{counter}", str(value))

    def remove_net(self, name: str) -> None:
        """The interface goes; its PCI function stays (moved to a container, or driver unloaded)."""
        link = self.root / "class/net" / name
        shutil.rmtree(link.resolve())
        link.unlink()

    def h100_node(self, acs: bool | None = None) -> SysTree:
        """8 H100 with 8 NDR400 ports (mlx5_0 … mlx5_7, one beside each GPU), 4 NVSwitches, 8 NVMe disks and a NIC with
        2 Ethernet ports: eth0 is up, eth1 never had a carrier. ``acs``: of the bridges, see ``bridge``.

        ``gpu_at(i)`` and ``nic_of(i)`` are below the same switch; 0 to 3 are on NUMA node 0, 4 to 7 on 1.
        """
        for index, bus in enumerate(GPU_BUSES):
            node, number = index // 4, int(bus, 16)
            root_port, switch = f"0000:{number - 3:02x}:01.0", f"0000:{number - 2:02x}:00.0"
            self.bridge(root_port, acs=acs)
            self.bridge(switch, below=root_port, acs=acs)
            self.gpu(f"0000:{bus}:00.0", below=switch, numa_node=node)
            nic = self.nic_of(index)
            self.pci(nic, 0x15B3, 0x1021, 0x020700, "mlx5_core", switch, node, _cpus(node))
            self.infiniband(f"mlx5_{index}", nic)
            self.ipoib(f"ib{index}", nic)
            self.pci(
                f"0000:{number - 1:02x}:00.0", 0x144D, 0xA80A, 0x010802, "nvme", switch, node, _cpus(node), lanes=4
            )
        for number in range(4):
            self.pci(f"0000:{number + 7:02x}:00.0", 0x10DE, 0x22A3, 0x068000, "nvidia-nvswitch", lanes=2)
        for number in range(2):
            bus_id = f"0000:31:00.{number}"
            self.pci(bus_id, 0x8086, 0x1593, 0x020000, "ice", speed="16.0 GT/s PCIe", lanes=8)
            self.ethernet(f"eth{number}", bus_id, state="down" if number else "up")
        return self

    def nic_of(self, gpu_index: int) -> str:
        """Bus id of the InfiniBand NIC beside a GPU of ``h100_node``."""
        return f"0000:{int(GPU_BUSES[gpu_index], 16) + 1:02x}:00.0"

    def gpu_at(self, index: int) -> str:
        """Bus id of a GPU of ``h100_node``."""
        return f"0000:{GPU_BUSES[index]}:00.0"

    def _pci_home(self, bus_id: str) -> Path:
        return (self.root / "bus/pci/devices" / bus_id).resolve(strict=True)

    def _class_link(self, kind: str, name: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        home = self.root / "class" / kind
        home.mkdir(exist_ok=True)
        (home / name).symlink_to(_relative(folder, home))

    def _counters(self, folder: str, counters: Mapping[str, int] | None) -> None:
        for name, value in (counters or {}).items():
            self.write(f"{folder}/{name}", str(value))

    def _counter_path(self, name: str, port: int, counter: str) -> str:
        at = f"class/infiniband/{name}"
        for folder in (f"{at}/ports/{port}/counters", f"{at}/ports/{port}/hw_counters", f"{at}/hw_counters"):
            if (self.root / folder / counter).exists():
                return f"{folder}/{counter}"
        raise KeyError(counter)


def acs_config(on: bool) -> bytes:
    """A bridge's configuration space as root reads it: Advanced Error Reporting, then ACS. ``on``: SrcValid+."""
    data = bytearray(4096)
    struct.pack_into("<I", data, 0x100, 0x148 << 20 | 1 << 16 | 0x0001)
    struct.pack_into("<IHH", data, 0x148, 1 << 16 | 0x000D, 0x005F, 0x001D if on else 0x0000)
    return bytes(data)


def _cpus(numa_node: int) -> str:
    return "56-111" if numa_node else "0-55"


def _relative(target: Path, folder: Path) -> str:
    return os.path.relpath(target, folder)
