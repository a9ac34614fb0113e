"""What happens to processors, memory, disks and clocks, for every rule about them."""

from __future__ import annotations

from tests.driven.node import CORES, Node
from tests.driven.scene import Scene
from tests.driven.scenes_gpu import says

RESTARTED = ("limits",)


def _throttled(node: Node, seconds: float, _turn: int) -> None:
    """A tenth of a second is a period; from ``act`` on every third one is paused in."""
    node.cpu_stat(periods=int(10 * node.uptime()), throttled=max(0, int(10 * seconds / 3)))


def _swaps(node: Node, seconds: float, _turn: int) -> None:
    node.vmstat(swapped_in=max(0, int(10_000 * seconds)))


def _blocks(node: Node) -> None:
    node.proc.change(node.pid(3), state="D", wchan="rpc_wait_bit_killable")


def _has_more_memory_errors(node: Node) -> None:
    node.sys.write("devices/system/edac/mc/mc0/ue_count", "3")


CPU = (
    Scene("cpu.load", "host", f"load 900 on {CORES} cores", lambda node: node.load(900), apart_s=10),
    Scene("cpu.cgroup", "host", "the cgroup is throttled", lambda node: None, moves=_throttled),
    Scene("cpu.dstate", "host", "rank 3 hangs in the kernel", _blocks, apart_s=10),
    Scene(
        "cpu.governor",
        "limits",
        "the governor is powersave",
        lambda node: node.sys.write("devices/system/cpu/cpufreq/policy0/scaling_governor", "powersave"),
    ),
    Scene(
        "cpu.hung",
        "log",
        "the kernel finds a task that is blocked",
        says("INFO: task pt_main_thread:4711 blocked for more than 120 seconds."),
    ),
)
MEMORY = (
    Scene("mem.pressure", "host", "some task waits for memory", lambda node: node.pressure("memory", 35.0, 12.0)),
    Scene("mem.swap", "host", "pages come back from disk", lambda node: None, moves=_swaps),
    Scene("mem.shm", "host", "/dev/shm is 97 % full", lambda node: node.libc.fill(node.root / "dev" / "shm", 97)),
    Scene("mem.hugepages", "limits", "400 GiB are set aside as huge pages", lambda node: node.meminfo(huge_pages=400)),
    Scene("mem.mce", "limits", "3 uncorrected errors of host memory", _has_more_memory_errors),
    Scene(
        "mem.oom",
        "log",
        "the kernel kills a process for memory",
        says(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm/job_7,"
            "task_memcg=/slurm/job_7/step_0,task=pt_data,pid=4711,uid=0"
        ),
    ),
)
DISKS = (
    Scene("disk.full", "limits", "/scratch is 97 % full", lambda node: node.libc.fill(node.root / "scratch", 97)),
    Scene(
        "disk.ro",
        "host",
        "/scratch becomes read-only",
        lambda node: node.edit_proc("self/mounts", "/scratch xfs rw", "/scratch xfs ro"),
    ),
    Scene(
        "disk.io", "log", "I/O errors of sda", says("Buffer I/O error on dev sda1, logical block 1234, async page read")
    ),
    Scene("fs.stall", "host", "5000 NFS requests are sent again", lambda node: node.nfs(retransmissions=5000)),
)
SYSTEM = (
    Scene("time.sync", "host", "the clock is 12 s ahead", lambda node: node.libc.set_clock(12)),
    Scene(
        "host.ptrace",
        "limits",
        "ptrace_scope is 2",
        lambda node: node.proc_file("sys/kernel/yama/ptrace_scope", "2\n"),
    ),
    Scene(
        "host.memlock",
        "limits",
        "rank 0 may lock 64 KiB",
        lambda node: node.proc.change(node.pid(0), memlock="65536"),
    ),
    Scene(
        "host.fds",
        "limits",
        "9.2 of 9.2 million files are open",
        lambda node: node.proc_file("sys/fs/file-nr", "9220000\t0\t9223372\n"),
    ),
    Scene(
        "host.clocksource",
        "limits",
        "the clock source is hpet",
        lambda node: node.sys.write("devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
    ),
)
SCENES = (*CPU, *MEMORY, *DISKS, *SYSTEM)
