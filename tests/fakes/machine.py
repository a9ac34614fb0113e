"""A whole healthy 8 x H100 node made of fakes: NVML, /proc, /sys, the kernel's log. Programs run on it by ``env``."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.fakes.kmsg import FakeKmsg
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import shape
from tests.fakes.proctree import ProcTree
from tests.fakes.sysfs import GPU_BUSES, SysTree

CORES = 192
BOOTED_S = 100_000.0  # ago
FIRST_RANK_PID = 4000
MIB = 1024**2


class FakeMachine:
    """``nvml``, ``proc``, ``sys`` and ``kmsg`` can be changed while programs run (``nvml.write()`` makes it seen).

    ``name``: the host's. ``ranks``: of a job, one a GPU; it is led by the host ``job``, and ``first`` of ``world`` is
    the first rank that runs here.
    """

    def __init__(
        self,
        directory: Path,
        gpus: int = 8,
        ranks: bool = True,
        name: str = "n1",
        job: str = "n1",
        first: int = 0,
        world: int = 0,
    ) -> None:
        self.directory = directory
        self.name = name
        root = directory / "root"
        self.nvml = FakeNvml(directory / "nvml", count=gpus)
        shape("h100", self.nvml, gpus)
        for index in range(gpus):
            self.nvml.set(f"gpu.{index}.temperature_memory_max_c", 95)
            self.nvml.set(f"gpu.{index}.pci_bus_id", f"00000000:{GPU_BUSES[index].upper()}:00.0")
        self.sys = SysTree(root)
        self.sys.h100_node(acs=False)
        for module in ("nvidia", "nvidia_peermem", "nvidia_uvm", "mlx5_core", "ib_uverbs"):
            self.sys.write(f"module/{module}/refcnt", "1")
        self.sys.write("devices/system/clocksource/clocksource0/current_clocksource", "tsc")
        self.proc = ProcTree(root)
        self.proc.pid_namespace()
        self._proc_files()
        (root / "dev" / "shm").mkdir(parents=True)
        self.kmsg = FakeKmsg(root / "dev")
        self.root = root
        if ranks:
            self._start_job(gpus, job, first, world or gpus)
        self.nvml.write()

    def env(self, state: bool = True) -> dict[str, str]:
        """Variables for a child; ``state``: mltop's own files go below this directory."""
        found = {**os.environ, **self.nvml.env(), "MLTOP_SYSROOT": str(self.root)}
        if state:
            found["MLTOP_STATE_DIR"] = str(self.directory / "state")
        return found

    def say(self, text: str, ago_s: float = 0.0) -> None:
        """A line in the kernel's log, so many seconds ago."""
        self.kmsg.write(text, BOOTED_S - ago_s)

    def become_virtual(self, gpus: int) -> None:
        """A virtual machine of KVM with so many GPUs and a virtio NIC: nothing of the PCIe bus above them is shown."""
        self.write_proc("cpuinfo", "flags : fpu tsc hypervisor\n")
        self.sys.write("class/dmi/id/sys_vendor", "QEMU")
        for folder in ("bus/pci/devices", "class/net", "class/infiniband", "class/infiniband_verbs"):
            self.sys.remove(folder)
        for folder in ("bus/pci/devices", "class/net"):
            (self.sys.root / folder).mkdir()
        for index in range(gpus):
            bus_id = f"0000:00:{6 + index:02x}.0"
            self.sys.pci(bus_id, 0x10DE, 0x2330, 0x030200, "nvidia", numa_node=-1, speed=None)
            self.nvml.set(f"gpu.{index}.pci_bus_id", f"0000{bus_id}")
        self.sys.pci("0000:00:03.0", 0x1AF4, 0x1000, 0x020000, "virtio-pci", numa_node=-1, speed=None)
        self.sys.ethernet("eth0", "0000:00:03.0", speed=-1)
        self.nvml.set("count", gpus)
        self.nvml.write()

    def become_container(self) -> None:
        """Of docker, which leaves the kernel's log to it; no init, no sysfs but for PCI and network."""
        self.proc.pid_namespace(4026533321)
        (self.root / ".dockerenv").touch()
        for folder in ("module", "devices/system"):
            self.sys.remove(folder)

    def write_proc(self, name: str, text: str) -> None:
        path = self.proc.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def work(self, gpus: range, **values: int) -> None:
        """These GPUs are busy; ``values`` replace scenario keys."""
        busy = {
            "busy_percent": 99,
            "power_mw": 560_000,
            "power_average_mw": 560_000,
            "sm_clock_mhz": 1980,
            "temperature_c": 61,
            "memory_temperature_c": 69,
        }
        for index in gpus:
            for key, value in {**busy, **values}.items():
                self.nvml.set(f"gpu.{index}.{key}", value)
            self.nvml.set(f"gpu.{index}.throttle_mask", values.get("throttle_mask", 0))

    def _start_job(self, gpus: int, leader: str, first: int, world: int) -> None:
        for index in range(gpus):
            pid = FIRST_RANK_PID + index
            environ = {
                "RANK": str(first + index),
                "LOCAL_RANK": str(index),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(gpus),
                "MASTER_ADDR": leader,
                "MASTER_PORT": "29500",
            }
            self.proc.python(pid, "train.py", environ=environ)
            self._bind(pid, index)
            memory = 70 * 1024 * MIB
            self.nvml.set(f"gpu.{index}.processes", [(pid, memory, "compute")])
            self.nvml.set(f"gpu.{index}.memory_used_bytes", memory)
        self.work(range(gpus))

    def _bind(self, pid: int, gpu: int) -> None:
        """To the cores near its GPU."""
        near = (self.sys.root / f"bus/pci/devices/0000:{GPU_BUSES[gpu]}:00.0/local_cpulist").read_text().strip()
        self.proc.change(pid, cpus=near)

    def _proc_files(self) -> None:
        cpu = "100 0 100 800 0 0 0 0 0 0"
        cores = "".join(f"cpu{core} {cpu}\n" for core in range(CORES))
        boot = int(time.time() - BOOTED_S)
        write = {
            "stat": f"cpu  {cpu}\n{cores}btime {boot}\nprocesses 1\n",
            "loadavg": "41.00 40.00 40.00 9/2000 12345\n",
            "uptime": f"{BOOTED_S:.2f} 1000.00\n",
            "meminfo": _meminfo(2_000_000),
            "vmstat": "pswpin 0\npswpout 0\noom_kill 2\n",
            "sys/kernel/hostname": f"{self.name}\n",
            "sys/kernel/osrelease": "6.8.0-45-generic\n",
            "sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
            "sys/fs/file-nr": "31000\t0\t9223372\n",
            "net/dev": "Inter-| Receive | Transmit\n face |bytes\n",
            "diskstats": "",
            "self/mountstats": "",
            "self/cgroup": "0::/\n",
            "cpuinfo": "flags : fpu tsc\n",
            **{f"pressure/{what}": _pressure() for what in ("cpu", "memory", "io")},
        }
        for name, text in write.items():
            self.write_proc(name, text)


def _meminfo(mib: int) -> str:
    values = {
        "MemTotal": mib,
        "MemFree": mib // 2,
        "MemAvailable": mib * 4 // 5,
        "Buffers": 0,
        "Cached": mib // 4,
        "Shmem": 0,
        "Active": 0,
        "Inactive": 0,
        "Slab": 0,
        "SReclaimable": 0,
        "SwapTotal": 0,
        "SwapFree": 0,
    }
    lines = "".join(f"{name}: {value * 1024} kB\n" for name, value in values.items())
    return lines + "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n"


def _pressure() -> str:
    return "".join(f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total=1\n" for kind in ("some", "full"))
