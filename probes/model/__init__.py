"""What travels: samples, findings, digests and verdicts.

These dataclasses are the wire format and the JSON output (same names). Units stand in the names:
``_bytes``, ``_w``, ``_c``, ``_mhz``, ``_s``, ``_bytes_per_s``; fractions are 0..1. A value is a number or
``None``; why it is ``None`` stands in the sample's ``gaps``. Unknown is never 0.

Runs on every node: Python 3.9, standard library only.
"""

from __future__ import annotations

import json
from typing import Any

from mltop.probes.model.gpu import (
    Ecc,
    Fabric,
    GpuProcess,
    GpuSample,
    MigInstance,
    Nvlink,
    NvlinkLink,
    Pcie,
    Remap,
    RemapBanks,
)
from mltop.probes.model.sample import (
    MAX_KERNEL_EVENTS,
    UNLIMITED,
    BlockedProcess,
    CgroupSample,
    FilesystemSample,
    Gap,
    HostSample,
    KernelEvent,
    LinkSample,
    NodeState,
    PciDevice,
    Pressure,
    RankSample,
    Sample,
)
from mltop.probes.model.verdict import (
    Culprit,
    Finding,
    Frame,
    JobReport,
    RankStacks,
    StackClass,
    StackDigest,
    Unknown,
    Verdict,
    Waiting,
)

__all__ = [
    "MAX_KERNEL_EVENTS",
    "SCHEMA",
    "UNLIMITED",
    "BlockedProcess",
    "CgroupSample",
    "Culprit",
    "Ecc",
    "Fabric",
    "FilesystemSample",
    "Finding",
    "Frame",
    "Gap",
    "GpuProcess",
    "GpuSample",
    "HostSample",
    "JobReport",
    "KernelEvent",
    "LinkSample",
    "MigInstance",
    "NodeState",
    "Nvlink",
    "NvlinkLink",
    "PciDevice",
    "Pcie",
    "Pressure",
    "RankSample",
    "RankStacks",
    "Remap",
    "RemapBanks",
    "Sample",
    "StackClass",
    "StackDigest",
    "Unknown",
    "Verdict",
    "Waiting",
    "to_json",
]

SCHEMA = 1


def to_json(value: Any) -> str:
    """JSON text of model objects, lists and dicts of them. Non-finite floats raise ValueError."""
    return json.dumps(value, default=vars, separators=(",", ":"), allow_nan=False)
