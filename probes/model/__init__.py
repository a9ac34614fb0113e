"""What travels: samples, findings, digests and verdicts.

These dataclasses are the wire format and the JSON output (same names). Units stand in the names:
``_bytes``, ``_w``, ``_c``, ``_mhz``, ``_s``, ``_bytes_per_s``; fractions are 0..1. A value is a number or
``None``; why it is ``None`` stands in the sample's ``gaps``. Unknown is never 0.

Runs on every node: Python 3.9, standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mltop.probes.model.encoding import (
        SCHEMA,
        all_fields,
        to_json,
        well_formed,
    )
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
        JobKey,
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
    from mltop.probes.model.vocabulary import (
        CONFIDENCES,
        COUNTER_KINDS,
        PROBE_KINDS,
        REMEDIES,
        SEVERITIES,
        VERDICT_KINDS,
        ActivitySource,
        Confidence,
        CounterKind,
        DeviceKind,
        Fault,
        FaultCode,
        GapCode,
        GapKind,
        GpuState,
        NodePhase,
        ProbeKind,
        Remedy,
        Severity,
        VerdictKind,
        Via,
        gravity,
    )

__all__ = [
    "CONFIDENCES",
    "COUNTER_KINDS",
    "MAX_KERNEL_EVENTS",
    "PROBE_KINDS",
    "REMEDIES",
    "SCHEMA",
    "SEVERITIES",
    "UNLIMITED",
    "VERDICT_KINDS",
    "ActivitySource",
    "BlockedProcess",
    "CgroupSample",
    "Confidence",
    "CounterKind",
    "Culprit",
    "DeviceKind",
    "Ecc",
    "Fabric",
    "Fault",
    "FaultCode",
    "FilesystemSample",
    "Finding",
    "Frame",
    "Gap",
    "GapCode",
    "GapKind",
    "GpuProcess",
    "GpuSample",
    "GpuState",
    "HostSample",
    "JobKey",
    "JobReport",
    "KernelEvent",
    "LinkSample",
    "MigInstance",
    "NodePhase",
    "NodeState",
    "Nvlink",
    "NvlinkLink",
    "PciDevice",
    "Pcie",
    "Pressure",
    "ProbeKind",
    "RankSample",
    "RankStacks",
    "Remap",
    "RemapBanks",
    "Remedy",
    "Sample",
    "Severity",
    "StackClass",
    "StackDigest",
    "Unknown",
    "Verdict",
    "VerdictKind",
    "Via",
    "Waiting",
    "all_fields",
    "gravity",
    "to_json",
    "well_formed",
]

_MODULES = ("gpu", "sample", "verdict", "vocabulary", "encoding")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What a name stands for is loaded when somebody asks for it (PEP 562): NVML's reader process, which has to
        stay small, needs tables of this package and none of its dataclasses.
        """
        from importlib import import_module

        for module in _MODULES if name in __all__ else ():
            found = vars(import_module(f"{__name__}.{module}")).get(name)
            if found is not None:
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
