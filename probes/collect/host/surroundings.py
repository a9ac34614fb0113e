"""Whether this is a virtual machine, a container or a job's cgroup.

Sources: the processors' hypervisor flag (cpuid leaf 1), DMI, systemd-detect-virt(1) for the names; for containers the
marks that docker, podman and Kubernetes leave, and the fixed inode numbers of the first namespaces (linux/proc_ns.h).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from mltop.probes.collect.host.files import read_file, read_text
from mltop.probes.collect.host.part import Reading
from mltop.probes.model import Gap, RankSample

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
