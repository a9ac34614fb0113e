"""What this machine is and how it is set up: its name, kernel, clock, modules, governor, and whether it is virtual.

Every part is a function of ``root``, which is put before /proc, /sys, /dev and /run; "" is this machine.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.collect.host.part import Part, Reading, kept_file
from mltop.probes.collect.sysfile import MALFORMED, finite, names_in, read_link, read_text
from mltop.probes.model import RankSample

# From the one that saves most power to the one that saves none; what is not in it stands before "performance".
_GOVERNORS = ("powersave", "conservative", "ondemand", "schedutil", "userspace")
_STA_UNSYNC = 0x40  # linux/timex.h
_ADJTIMEX_BYTES = 512  # struct timex is 208 bytes on 64-bit machines
CLOCK = ("clock_synchronized", "clock_error_s")
_LIBC = ctypes.CDLL(None, use_errno=True)
# nv_peer_mem is what nvidia_peermem was called before it came with the driver.
MODULES = ("nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "mlx5_core", "ib_uverbs")
# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu …", "… Open Kernel Module for x86_64  570.86.15 …"
_VERSION = re.compile(r"Kernel Module\D.*?\s(\d+(?:\.\d+)+)\s")
# The fixed inode numbers of the first namespaces (linux/proc_ns.h), and the marks that docker, podman and Kubernetes
# leave.
_FIRST_NAMESPACES = {"cgroup": "cgroup:[4026531835]", "pid": "pid:[4026531836]"}
_PARENT, _FLAGS, _KERNEL_THREAD = 1, 6, 0x00200000  # in /proc/PID/stat behind the name; PF_KTHREAD
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
_CONTAINER = re.compile(
    r"/(docker|kubepods|lxc|libpod|garden|crio|containerd)[-/_.]|/(docker|libpod|crio)-[0-9a-f]{12,}"
)
# docker.service is the daemon and no container, but containers may lie below containerd.service.
_SERVICE = re.compile(r"/[^/]*\.service(?=/|$)")
_JOB = re.compile(r"slurm.*/job_?\d+|/(pbs_jobs|pbspro|lsf|htcondor|flux)[-/_.]", re.IGNORECASE)
# Amazon's and Google's vendor names stand on their bare metal machines, too: there only the processor's flag tells.
# The names are systemd-detect-virt(1)'s.
_VIRTUAL = re.compile(
    r"\b(KVM|QEMU|VMware|VirtualBox|innotek|Xen|Bochs|Parallels|OpenStack|BHYVE|Cloud Hypervisor|HVM domU)\b"
    r"|Google Compute Engine|Alibaba Cloud ECS|Microsoft Corporation Virtual Machine",
    re.IGNORECASE,
)
_DMI = ("sys_vendor", "product_name", "board_vendor", "bios_vendor")


def read_facts(root: str) -> Reading:
    """``hostname``, ``kernel``, ``cpu_count``. Source: /proc/sys/kernel, /proc/stat."""
    stat = (read_text(f"{root}/proc/stat") or "").splitlines()
    count = sum(line.startswith("cpu") and line[3:4].isdigit() for line in stat)
    reading, why = Reading({"hostname": "", "kernel": ""}), f"cannot be read from {root}/proc"
    reading.put("hostname", read_text(f"{root}/proc/sys/kernel/hostname") or None, why)
    reading.put("kernel", read_text(f"{root}/proc/sys/kernel/osrelease") or None, why)
    reading.put("cpu_count", count or None, why)
    return reading


@dataclass(frozen=True)
class SmallFile:
    """A part that is one small file. ``fields`` are unknown where it cannot be read; ``absent``: what it means that
    there is no such file ("": every machine has it). ``parse``: from its text to the field's value, or to several.
    """

    fields: tuple[str, ...]
    path: str
    every_s: float
    parse: Callable[[str], Any]
    absent: str = ""

    def part(self, root: str) -> Part:
        file = kept_file(root, self.path)

        def read(_now: float, _ranks: Sequence[RankSample]) -> Reading:
            try:
                value = self.parse(file.read().decode("utf-8", "replace").strip())
                return Reading(value if isinstance(value, dict) else {self.fields[0]: value})
            except OSError as error:
                if self.absent and isinstance(error, FileNotFoundError):
                    return Reading().lack(*self.fields, why=self.absent, kind="unsupported")
                return Reading().lack_unreadable(*self.fields, error=error)
            except MALFORMED:
                return Reading().lack(*self.fields, why=f"{file.path} is not as expected")

        return read


def _loads(text: str) -> dict[str, float]:
    one, five, fifteen = map(finite, text.split()[:3])
    return {"load_1m": one, "load_5m": five, "load_15m": fifteen}


def _open_files(text: str) -> dict[str, int]:
    allocated, unused, most = map(int, text.split())
    return {"open_files": allocated - unused, "open_files_max": most}


SMALL_FILES = (
    SmallFile(("load",), "/proc/loadavg", 5, _loads),  # the kernel computes it every five seconds
    SmallFile(("open_files", "open_files_max"), "/proc/sys/fs/file-nr", 10, _open_files),  # proc_sys_fs(5)
    SmallFile(("clocksource",), "/sys/devices/system/clocksource/clocksource0/current_clocksource", 30, str),
    # Documentation/admin-guide/LSM/Yama.rst
    SmallFile(
        ("ptrace_scope",), "/proc/sys/kernel/yama/ptrace_scope", 30, int, absent="Yama is not built into this kernel"
    ),
    # "healthy" or "NOT HEALTHY"; LBUG where it has crashed (lustre/obdclass/obd_sysfs.c)
    SmallFile(("lustre_health",), "/sys/fs/lustre/health_check", 30, lambda text: text[:100], absent="no Lustre here"),
)


def read_uptime(root: str) -> Reading:
    """``uptime_s``: this machine's own clock gives it without a file (clock_gettime(2))."""
    if not root:
        return Reading({"uptime_s": round(time.clock_gettime(time.CLOCK_BOOTTIME), 2)})
    file = SmallFile(("uptime",), "/proc/uptime", 0, lambda text: {"uptime_s": finite(text.split()[0])})
    return file.part(root)(0.0, ())


def read_governor(root: str) -> Reading:
    """``governor``: of all cores' governors the one that saves most: "performance" only where all are set so.

    Source: /sys/devices/system/cpu/cpufreq/policy*/scaling_governor.
    """
    folder = f"{root}/sys/devices/system/cpu/cpufreq"
    policies = [name for name in names_in(folder) if name.startswith("policy")]
    if not policies:
        return Reading().lack("governor", why="no control of the processors' frequency here", kind="unsupported")
    # The policy of processors that are switched off cannot be read.
    governors = [read_text(f"{folder}/{policy}/scaling_governor") for policy in policies]
    named = [governor for governor in governors if governor]
    if not named:
        return Reading().lack("governor", why=f"no scaling_governor below {folder} can be read")

    def thrift(governor: str) -> tuple[bool, int, str]:
        place = _GOVERNORS.index(governor) if governor in _GOVERNORS else len(_GOVERNORS)
        return governor == "performance", place, governor

    return Reading({"governor": min(named, key=thrift)})


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),  # µs
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * _ADJTIMEX_BYTES),
    )


def read_clock(root: str, confined: bool) -> Reading:
    """Whether the clock is synchronised. Source: adjtimex(2) with modes=0: it needs no privilege and changes nothing.

    ``confined``: in a container "not synchronised" is no news: who keeps the clock may do so without telling the kernel
    that is asked here.
    """
    if root:
        return Reading().lack(*CLOCK, why="files of another machine say nothing about its clock", kind="unsupported")
    timex = _Timex()
    if _LIBC.adjtimex(ctypes.byref(timex)) < 0:
        return Reading().lack(*CLOCK, why=f"adjtimex: {os.strerror(ctypes.get_errno())}")
    return judged(timex.status, timex.esterror, confined)


def judged(status: int, estimated_error_us: int, confined: bool) -> Reading:
    """What adjtimex's answer means."""
    if not status & _STA_UNSYNC:
        return Reading({"clock_synchronized": True, "clock_error_s": estimated_error_us / 1e6})
    if confined:
        return Reading().lack(*CLOCK, why="it may be synchronised: a container cannot tell")
    # The error is then a constant of 16 s.
    why = "the clock is not synchronised: nothing estimates its error"
    return Reading({"clock_synchronized": False}).lack("clock_error_s", why=why, kind="unsupported")


def read_modules(root: str) -> Reading:
    """``modules`` that training needs and ``nvidia_driver``. Source: /sys/module, /proc/driver/nvidia."""
    reading, folder = Reading(), f"{root}/sys/module"
    modules = {name: os.path.isdir(f"{folder}/{name}") for name in MODULES}
    reading.put("modules", modules if os.path.isdir(folder) else None, f"{folder} is not there")
    words = read_text(f"{root}/proc/driver/nvidia/version") or ""
    driver = (read_text(f"{folder}/nvidia/version") or driver_version(words) or "")[:40]
    reading.put("nvidia_driver", driver or None, "the nvidia kernel module is not loaded", "unsupported")
    return reading


def driver_version(text: str) -> str | None:
    """The version in the text of /proc/driver/nvidia/version, None without one."""
    match = _VERSION.search(text.partition("\n")[0] + " ")
    return match.group(1) if match else None


def read_surroundings(root: str) -> Reading:
    """``is_virtual``, ``is_confined`` (to a container or a job's cgroup) and ``sees_all_processes``; they do not
    change.
    """
    reading, own = Reading(), read_text(f"{root}/proc/self/cgroup")
    in_job = None if own is None else _JOB.search(own) is not None
    is_confined = in_container(root) or in_job
    reading.put("is_virtual", is_virtual(root), "neither DMI nor the processor's flags say")
    reading.put("is_confined", is_confined, f"{root}/proc/self/cgroup cannot be read")
    reading.put("sees_all_processes", sees_all_processes(root), f"{root}/proc/self/ns/pid cannot be read")
    return reading


def sees_all_processes(root: str) -> bool | None:
    """Whether /proc is that of the machine's first PID namespace; None where nothing tells. A host's /proc that is
    mounted into a container shows all, too: the kernel's own threads are in no other one.
    """
    own = read_link(f"{root}/proc/self/ns/pid")
    if own == _FIRST_NAMESPACES["pid"]:
        return True
    second = (read_text(f"{root}/proc/2/stat") or "").rpartition(")")[2].split()
    with suppress(*MALFORMED):
        if second[_PARENT] == "0" and int(second[_FLAGS]) & _KERNEL_THREAD:
            return True
    return None if own is None else False


def is_virtual(root: str) -> bool | None:
    """Whether it is one, by the processors' hypervisor flag (cpuid leaf 1), DMI and the device tree (ARM); None where
    nothing tells.
    """
    if read_text(f"{root}/sys/hypervisor/type"):
        return True
    dmi = " ".join(read_text(f"{root}/sys/class/dmi/id/{name}") or "" for name in _DMI).strip()
    tree = read_text(f"{root}/proc/device-tree/compatible") or ""
    if _VIRTUAL.search(dmi) or "dummy-virt" in tree or os.path.exists(f"{root}/proc/device-tree/hypervisor"):
        return True
    flags = _processor_flags(root)
    if flags:
        return "hypervisor" in flags
    return False if dmi or tree else None


def in_container(root: str) -> bool:
    """Whether our own view is that of a container: its files, its cgroup's name or namespaces of its own."""
    if any(os.path.exists(root + path) for path in _CONTAINER_FILES):
        return True
    for process in ("self", "1"):
        lines = (read_text(f"{root}/proc/{process}/cgroup") or "").splitlines()
        if any(_CONTAINER.search(_SERVICE.sub("", line)) for line in lines):
            return True
    return any(
        read_link(f"{root}/proc/self/ns/{name}") not in (first, None) for name, first in _FIRST_NAMESPACES.items()
    )


def _processor_flags(root: str) -> list[str]:
    """The flags of the first processor; [] on machines whose processors have no such line (ARM calls it Features)."""
    for line in (read_text(f"{root}/proc/cpuinfo") or "").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return flags.split()
    return []
