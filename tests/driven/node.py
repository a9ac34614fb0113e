"""A healthy training node on which everything that a rule looks at can be broken while an agent watches it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from mltop.probes.reach.channel import Channel
from tests.fakes.libc import FakeLibc
from tests.fakes.machine import CORES, FIRST_RANK_PID, FakeMachine
from tests.fakes.proctree import put
from tests.fakes.sysfs import acs_config
from tests.fakes.systemd import FakeSystemd

INTERVAL_S = 1.0
GIB = 1024**3
_CGROUP = "system.slice/training.service"
_MOUNTS = """sysfs /sys sysfs rw 0 0
proc /proc proc rw,relatime 0 0
/dev/nvme0n1p2 / ext4 rw,relatime 0 0
/dev/md0 /scratch xfs rw,relatime 0 0
filer01:/home /home nfs4 rw,relatime 0 0
"""
# Words that one line of meminfo begins with → GiB.
_MEMINFO = {
    "MemTotal": 2000,
    "MemFree": 1000,
    "MemAvailable": 1600,
    "Cached": 500,
    "SwapTotal": 64,
    "SwapFree": 64,
}


class Node(FakeMachine):
    """8 × H100 with ranks at work, InfiniBand, NVSwitches, services, a cgroup, swap space and disks."""

    def __init__(self, directory: Path, libc: Path, name: str, **job: object) -> None:
        """``libc``: the library of ``tests.fakes.libc``; ``job``: see FakeMachine."""
        super().__init__(directory / name, name=name, **{"job": name, **job})  # type: ignore[arg-type]
        self.libc = FakeLibc(self.directory / "libc", self.root, libc)
        self.systemd = FakeSystemd(self.directory, self.root, fabricmanager="active", imex="active")
        self.began_s = time.monotonic()
        self.proc_file("self/mounts", _MOUNTS)
        self.proc_file("self/cgroup", f"0::/{_CGROUP}\n")
        self.proc_file("sys/kernel/yama/ptrace_scope", "0\n")
        self.meminfo()
        self.nfs(retransmissions=0)
        self.cpu_stat(periods=0, throttled=0)
        cgroup = f"fs/cgroup/{_CGROUP}"
        self.sys.write(f"{cgroup}/cpu.max", "9600000 100000")
        self.sys.write(f"{cgroup}/memory.max", str(1500 * GIB))
        self.sys.write(f"{cgroup}/memory.current", str(700 * GIB))
        self.sys.write(f"{cgroup}/memory.events", "oom 0\noom_kill 0")
        self.sys.write("devices/system/cpu/cpufreq/policy0/scaling_governor", "performance")
        for counter in ("ce_count", "ue_count"):
            self.sys.write(f"devices/system/edac/mc/mc0/{counter}", "0")
        self.set_gpus(range(8), fabric_cluster_uuid="4a2c9e60-1d5b-4f08-9b1e-7f8d3c5a6b01")
        self.set_gpus(range(8), retired_pages=0, retired_pages_single_bit=0, retired_pages_pending=0)
        self.nvml.write()

    def channel(self) -> Channel:
        """An agent on this machine; its connection counts as remote, so that its clock may be off."""
        path = f"{self.systemd.bin}:{os.environ['PATH']}"
        env = {**self.nvml.env(), **self.libc.env(), "MLTOP_SYSROOT": str(self.root), "PATH": path}
        agent = (sys.executable, "-m", "mltop.probes.agent", "--node", self.name, "--interval", str(INTERVAL_S))
        return Channel(("env", *(f"{key}={value}" for key, value in env.items()), *agent), (self.name,), via="ssh")

    def set_gpus(self, gpus: range | list[int], **values: Any) -> None:
        """Keys of the NVML scenario; nothing is seen of it before ``nvml.write()``."""
        for index in gpus:
            for key, value in values.items():
                self.nvml.set(f"gpu.{index}.{key}", value)

    def set_gpu(self, gpu: int, **values: Any) -> None:
        self.set_gpus([gpu], **values)

    def forget_gpu(self, index: int) -> None:
        """It has no lines in the scenario: the fake NVML refuses those of a GPU that it does not have."""
        self.nvml.unset_all(f"gpu.{index}.")

    def proc_file(self, path: str, text: str) -> None:
        file = self.proc.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        put(file, text)

    def edit_proc(self, path: str, old: str, new: str) -> None:
        text = (self.proc.root / path).read_text()
        assert old in text, (path, old)
        self.proc_file(path, text.replace(old, new))

    def meminfo(self, huge_pages: int = 0, **gib: float) -> None:
        lines = [f"{name}: {int(value * 1024**2)} kB\n" for name, value in {**_MEMINFO, **gib}.items()]
        rest = "".join(f"{name}: 0 kB\n" for name in ("Buffers", "Shmem", "Active", "Inactive", "Slab", "SReclaimable"))
        pages = f"HugePages_Total: {huge_pages}\nHugePages_Free: {huge_pages}\nHugepagesize: 1048576 kB\n"
        self.proc_file("meminfo", "".join(lines) + rest + pages)

    def vmstat(self, swapped_in: int = 0, oom_kills: int = 2) -> None:
        self.proc_file("vmstat", f"pswpin {swapped_in}\npswpout 0\noom_kill {oom_kills}\n")

    def pressure(self, of: str, some: float, full: float = 0.0) -> None:
        lines = (f"{kind} avg10={value:.2f} avg60=0.00 avg300=0.00 total=1\n" for kind, value in
                 (("some", some), ("full", full)))  # fmt: skip
        self.proc_file(f"pressure/{of}", "".join(lines))

    def cpu_stat(self, periods: int, throttled: int) -> None:
        text = f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 9"
        self.sys.write(f"fs/cgroup/{_CGROUP}/cpu.stat", text)

    def nfs(self, retransmissions: int) -> None:
        """The counters of /home: of 1000 requests so many were sent again."""
        transport = "\txprt:\ttcp 0 1 1 0 0 1000 1000 0 1000 0 2 1000 1000\n"
        operation = f"\t        READ: 1000 {1000 + retransmissions} 0 1 1 1 1 1 0\n"
        head = "device filer01:/home mounted on /home with fstype nfs4 statvers=1.1\n"
        self.proc_file("self/mountstats", f"{head}\topts:\trw\n{transport}\tper-op statistics\n{operation}")

    def pid(self, rank: int) -> int:
        """Of a local rank."""
        return FIRST_RANK_PID + rank

    def allow_cpus(self, rank: int, cpus: str) -> None:
        """Pin a local rank."""
        self.proc.change(self.pid(rank), cpus=cpus)

    def uptime(self) -> float:
        return time.monotonic() - self.began_s

    def load(self, average: float) -> None:
        self.proc_file("loadavg", f"{average:.2f} 40.00 40.00 9/2000 12345\n")

    def switch_acs_on(self) -> None:
        for folder in sorted((self.sys.root / "bus/pci/devices").iterdir()):
            if (folder / "class").read_text().startswith("0x0604"):
                self.sys.set_pci(folder.name, config=acs_config(True))

    def reboot(self) -> None:
        self.proc_file("sys/kernel/random/boot_id", "99999999-2222-3333-4444-555555555555\n")


__all__ = ["CORES", "GIB", "INTERVAL_S", "Node"]
