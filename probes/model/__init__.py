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
    Nvlink,
    NvlinkLink,
    Pcie,
    Remap,
    RemapBanks,
)
from mltop.probes.model.sample import (
    Gap,
    HostSample,
    KernelEvent,
    LinkSample,
    NodeState,
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
    Verdict,
    Waiting,
)

__all__ = [
    "SCHEMA",
    "Culprit",
    "Ecc",
    "Fabric",
    "Finding",
    "Frame",
    "Gap",
    "GpuProcess",
    "GpuSample",
    "HostSample",
    "JobReport",
    "KernelEvent",
    "LinkSample",
    "NodeState",
    "Nvlink",
    "NvlinkLink",
    "Pcie",
    "RankSample",
    "RankStacks",
    "Remap",
    "RemapBanks",
    "Sample",
    "StackClass",
    "StackDigest",
    "Verdict",
    "Waiting",
    "to_json",
]

SCHEMA = 1


def to_json(value: Any) -> str:
    """JSON text of model objects, lists and dicts of them. Non-finite floats raise ValueError."""
    return json.dumps(value, default=vars, separators=(",", ":"), allow_nan=False)
