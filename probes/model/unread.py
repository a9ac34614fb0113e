"""Whether a node's ranks and GPUs are known: none that are listed may mean that they could not be read."""

from __future__ import annotations

from mltop.probes.model.gap import Gap
from mltop.probes.model.sample import Sample


def unread_ranks(sample: Sample) -> Gap | None:
    """Why no rank is listed although there may be some; None where they are known. Processes that only other users may
    read do not count: there are some on every machine.
    """
    gaps = () if sample.ranks else sample.gaps
    return next((gap for gap in gaps if gap.source == "ranks" and gap.code in ("unread", "limit")), None)


def unread_gpus(sample: Sample) -> Gap | None:
    """Why no GPU is listed although there may be some; None where they are known: there are some, or neither a driver
    nor an NVIDIA device on the PCI bus.
    """
    on_bus = any(device.kind == "gpu" for device in sample.pci)
    gaps = () if sample.gpus else sample.gaps
    return next((gap for gap in gaps if is_about_all_gpus(gap) and (on_bus or not _says_none(gap))), None)


def is_about_all_gpus(gap: Gap) -> bool:
    return gap.source == "gpus" or (gap.source == "nvml" and gap.fields in ([], ["starting"]))


def _says_none(gap: Gap) -> bool:
    return gap.kind == "unsupported" or gap.code == "no_driver"
