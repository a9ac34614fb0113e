"""Name, kernel, processors, uptime and load. Source: /proc/sys/kernel, /proc/stat, /proc/loadavg,
clock_gettime(2).

Frequency governors. Source: /sys/devices/system/cpu/cpufreq/policy*/scaling_governor.

Whether the clock is synchronised. Source: adjtimex(2) with modes=0, which needs no privilege and changes nothing.

Kernel modules that training needs and the NVIDIA driver's version. Source: /sys/module, /proc/driver/nvidia.

Fields that are one small file each, and the count of open files.

Whether this is a virtual machine, a container or a job's cgroup.

Sources: the processors' hypervisor flag (cpuid leaf 1), DMI, systemd-detect-virt(1) for the names; for containers the
marks that docker, podman and Kubernetes leave, and the fixed inode numbers of the first namespaces (linux/proc_ns.h).
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.collect.host.part import Reading, unreadable, unsupported
from mltop.probes.collect.sysfile import MALFORMED, KeptFile, finite, read_file, read_text
from mltop.probes.model import Gap, RankSample


class Facts:
    """``hostname``, ``kernel``, ``cpu_count``."""

    def __init__(self, root: str) -> None:
        self._proc = root + "/proc"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        stat = (read_text(f"{self._proc}/stat") or "").splitlines()
        count = sum(line.startswith("cpu") and line[3:4].isdigit() for line in stat)
        values = {
            "hostname": read_text(f"{self._proc}/sys/kernel/hostname") or "",
            "kernel": read_text(f"{self._proc}/sys/kernel/osrelease") or "",
            "cpu_count": count or None,
        }
        missing = [name for name, value in values.items() if not value]
        return Reading(values, [Gap(f"host.{name}", f"cannot be read from {self._proc}") for name in missing])


class Uptime:
    """``uptime_s``: this machine's own clock tells it without a file."""

    def __init__(self, root: str) -> None:
        self._file = KeptFile(root, "/proc/uptime")
        self._is_here = not root

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        if self._is_here:
            return Reading({"uptime_s": round(time.clock_gettime(time.CLOCK_BOOTTIME), 2)})
        try:
            return Reading({"uptime_s": finite(self._file.read().split(None, 1)[0])})
        except (OSError, *MALFORMED):
            return Reading(gaps=[Gap("host.uptime", f"{self._file.path} cannot be read")])


class Load:
    """The three loads, which the kernel computes every five seconds."""

    def __init__(self, root: str) -> None:
        self._file = KeptFile(root, "/proc/loadavg")

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            one, five, fifteen = (finite(word) for word in self._file.read().split()[:3])
        except (OSError, *MALFORMED):
            return Reading(gaps=[Gap("host.load", f"{self._file.path} cannot be read")])
        return Reading({"load_1m": one, "load_5m": five, "load_15m": fifteen})


# From the one that saves most power to the one that saves none; what is not in it stands before "performance".
_ORDER = ("powersave", "conservative", "ondemand", "schedutil", "userspace")


class Governor:
    """``governor``: of all cores' governors the one that saves most: "performance" only where all are set so."""

    def __init__(self, root: str) -> None:
        self._folder = root + "/sys/devices/system/cpu/cpufreq"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        try:
            policies = [name for name in os.listdir(self._folder) if name.startswith("policy")]
        except OSError:
            policies = []
        if not policies:
            return Reading(gaps=[unsupported("host.governor", "no control of the processors' frequency here")])
        # The policy of processors that are switched off cannot be read.
        found = {read_text(f"{self._folder}/{policy}/scaling_governor") for policy in policies} - {None, ""}
        if not found:
            return Reading(gaps=[Gap("host.governor", f"no scaling_governor below {self._folder} can be read")])
        return Reading({"governor": min((name for name in found if name), key=_thrift)})


def _thrift(governor: str) -> tuple[int, str]:
    if governor == "performance":
        return len(_ORDER) + 1, governor
    return _ORDER.index(governor) if governor in _ORDER else len(_ORDER), governor


_STA_UNSYNC = 0x40  # linux/timex.h
_ADJTIMEX_BYTES = 512  # struct timex is 208 bytes on 64-bit machines
_BOTH = "host.{clock_synchronized,clock_error_s}"
_LIBC = ctypes.CDLL(None, use_errno=True)


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


class Clock:
    """``clock_synchronized`` and ``clock_error_s``.

    ``in_container``: there "not synchronised" is no news: who keeps the clock may do so without telling the kernel
    that is asked here.
    """

    def __init__(self, root: str, in_container: Callable[[], bool]) -> None:
        self._root = root
        self._in_container = in_container

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        if self._root:
            return Reading(gaps=[unsupported(_BOTH, "files of another machine tell nothing of its clock")])
        timex = _Timex()
        if _LIBC.adjtimex(ctypes.byref(timex)) < 0:
            why = f"adjtimex: {os.strerror(ctypes.get_errno())}"
            return Reading(gaps=[Gap(_BOTH, why)])
        return judged(timex.status, timex.esterror, self._in_container())


def judged(status: int, estimated_error_us: int, in_container: bool) -> Reading:
    """What adjtimex's answer means."""
    if not status & _STA_UNSYNC:
        return Reading({"clock_synchronized": True, "clock_error_s": estimated_error_us / 1e6})
    if in_container:
        why = "in a container the kernel's word that the clock is not synchronised may be wrong"
        return Reading(gaps=[Gap(_BOTH, why, "chronyc tracking   (on the host)")])
    # The error is then a constant of 16 s.
    gap = unsupported("host.clock_error_s", "the clock is not synchronised: nothing estimates its error")
    return Reading({"clock_synchronized": False}, [gap])


# nv_peer_mem is what nvidia_peermem was called before it came with the driver.
MODULES = ("nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "mlx5_core", "ib_uverbs")
# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu …", "… Open Kernel Module for x86_64  570.86.15 …"
_VERSION = re.compile(r"Kernel Module\D.*?\s(\d+(?:\.\d+)+)\s")


class Modules:
    """``modules`` and ``nvidia_driver``."""

    def __init__(self, root: str) -> None:
        self._modules = root + "/sys/module"
        self._version = root + "/proc/driver/nvidia/version"

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        if os.path.isdir(self._modules):
            reading.values["modules"] = {name: os.path.isdir(f"{self._modules}/{name}") for name in MODULES}
        else:
            reading.gaps.append(Gap("host.modules", f"{self._modules} is not there"))
        driver = read_text(f"{self._modules}/nvidia/version") or driver_version(read_text(self._version) or "")
        if driver:
            reading.values["nvidia_driver"] = driver[:40]
        else:
            reading.gaps.append(unsupported("host.nvidia_driver", "the nvidia kernel module is not loaded"))
        return reading


def driver_version(text: str) -> str | None:
    """Out of /proc/driver/nvidia/version."""
    match = _VERSION.search(text.partition("\n")[0] + " ")
    return match.group(1) if match else None


@dataclass(frozen=True)
class SmallFile:
    """``absent``: what it means that there is no such file; "" where every machine has it."""

    field: str
    path: str
    parse: Callable[[str], Any]
    absent: str = ""


SMALL_FILES = (
    SmallFile("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource", str),
    # Documentation/admin-guide/LSM/Yama.rst
    SmallFile("ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope", int, "Yama is not built into this kernel"),
    # "healthy" or "NOT HEALTHY"; LBUG where it has crashed (lustre/obdclass/obd_sysfs.c)
    SmallFile("lustre_health", "/sys/fs/lustre/health_check", lambda text: text[:100], "no Lustre here"),
)


class SmallFiles:
    """``clocksource``, ``ptrace_scope``, ``lustre_health``."""

    def __init__(self, root: str, files: Sequence[SmallFile] = SMALL_FILES) -> None:
        self._root = root
        self._files = files

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        for file in self._files:
            what = f"host.{file.field}"
            try:
                text = read_file(self._root + file.path).decode("utf-8", "replace").strip()
                reading.values[file.field] = file.parse(text)
            except FileNotFoundError as error:
                reading.gaps.append(unsupported(what, file.absent) if file.absent else unreadable(what, error))
            except OSError as error:
                reading.gaps.append(unreadable(what, error))
            except MALFORMED:
                reading.gaps.append(Gap(what, f"{self._root}{file.path} is not as expected"))
        return reading


class OpenFiles:
    """``open_files`` and ``open_files_max`` of the whole machine. Source: /proc/sys/fs/file-nr (proc_sys_fs(5))."""

    def __init__(self, root: str) -> None:
        self._file = KeptFile(root, "/proc/sys/fs/file-nr")

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        what = "host.{open_files,open_files_max}"
        try:
            allocated, unused, most = (int(word) for word in self._file.read().split())
        except OSError as error:
            return Reading(gaps=[unreadable(what, error)])
        except MALFORMED:
            return Reading(gaps=[Gap(what, f"{self._file.path} is not as expected")])
        return Reading({"open_files": allocated - unused, "open_files_max": most})


_FIRST_NAMESPACES = {"cgroup": "cgroup:[4026531835]", "pid": "pid:[4026531836]"}
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
_CONTAINER = re.compile(
    r"/(docker|kubepods|lxc|libpod|garden|crio|containerd)[-/_.]|/(docker|libpod|crio)-[0-9a-f]{12,}"
)
# docker.service is the daemon and no container, but containers may lie below containerd.service.
_SERVICE = re.compile(r"/[^/]*\.service(?=/|$)")
_JOB = re.compile(r"slurm.*/job_?\d+|/(pbs_jobs|pbspro|lsf|htcondor|flux)[-/_.]", re.IGNORECASE)
# Amazon's and Google's vendor names stand on their bare metal machines, too: there only the processor's flag tells.
_VIRTUAL = re.compile(
    r"\b(KVM|QEMU|VMware|VirtualBox|innotek|Xen|Bochs|Parallels|OpenStack|BHYVE|Cloud Hypervisor|HVM domU)\b"
    r"|Google Compute Engine|Alibaba Cloud ECS|Microsoft Corporation Virtual Machine",
    re.IGNORECASE,
)
_DMI = ("sys_vendor", "product_name", "board_vendor", "bios_vendor")


class Surroundings:
    """``is_virtual`` and ``is_confined``; they do not change."""

    def __init__(self, root: str) -> None:
        self._root = root

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        virtual = is_virtual(self._root)
        if virtual is None:
            reading.gaps.append(Gap("host.is_virtual", "neither DMI nor the processor's flags tell"))
        else:
            reading.values["is_virtual"] = virtual
        own = read_text(f"{self._root}/proc/self/cgroup")
        if in_container(self._root):
            reading.values["is_confined"] = True
        elif own is None:
            reading.gaps.append(Gap("host.is_confined", f"{self._root}/proc/self/cgroup cannot be read"))
        else:
            reading.values["is_confined"] = _JOB.search(own) is not None
        return reading


def is_virtual(root: str) -> bool | None:
    """None where nothing tells."""
    if read_text(f"{root}/sys/hypervisor/type"):
        return True
    dmi = " ".join(read_text(f"{root}/sys/class/dmi/id/{name}") or "" for name in _DMI).strip()
    if _VIRTUAL.search(dmi) or os.path.exists(f"{root}/proc/device-tree/hypervisor"):
        return True
    flags = _processor_flags(root)
    if flags:
        return "hypervisor" in flags
    return False if dmi else None


def in_container(root: str) -> bool:
    """Whether our own view is that of a container: its files, its cgroup's name or namespaces of its own."""
    if any(os.path.exists(root + path) for path in _CONTAINER_FILES):
        return True
    for process in ("self", "1"):
        lines = (read_text(f"{root}/proc/{process}/cgroup") or "").splitlines()
        if any(_CONTAINER.search(_SERVICE.sub("", line)) for line in lines):
            return True
    return any(_namespace(root, name) not in (first, None) for name, first in _FIRST_NAMESPACES.items())


def _namespace(root: str, name: str) -> str | None:
    try:
        return os.readlink(f"{root}/proc/self/ns/{name}")
    except OSError:
        return None


def _processor_flags(root: str) -> list[str]:
    """Of the first processor; [] on machines whose processors have no such line (ARM calls it Features)."""
    try:
        text = read_file(f"{root}/proc/cpuinfo").decode("ascii", "replace")
    except OSError:
        return []
    for line in text.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return flags.split()
    return []
