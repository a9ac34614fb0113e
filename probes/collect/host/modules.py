"""Kernel modules that training needs and the NVIDIA driver's version. Source: /sys/module, /proc/driver/nvidia."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from mltop.probes.collect.host.files import read_text
from mltop.probes.collect.host.part import Reading, unsupported
from mltop.probes.model import Gap, RankSample

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
