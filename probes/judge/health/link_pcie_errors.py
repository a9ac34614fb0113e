"""PCIe errors: replays and AER counters, told once for each device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from mltop.probes.judge.health.gpu_slots import owners
from mltop.probes.judge.health.link_growth import HOUR_S, MINUTE_S, grown, has_grown
from mltop.probes.judge.health.link_pcie import GT_PER_S
from mltop.probes.judge.health.link_ports import bus_id, gpu_key, gpu_name
from mltop.probes.judge.health.rule import Hit, Moment
from mltop.probes.model import PciDevice, Sample

ERROR_RATE = 0.001  # DCGM: 1e-12 errors per bit = 0.001 per second at 1 GT/s and one lane
_FASTEST_GT_PER_S, _WIDEST = 32.0, 16  # where a link's own are unknown: the highest limit in use
_AER = {name: f"aer {name}" for name in ("correctable", "nonfatal", "fatal")}
_REPLAY = "pcie replay"
_NVML_FATAL = "fatal_error"
_WATCH, _ERRORS = "pci", "errors"


def replay_limit_per_min(gt_per_s: float | None, lanes: int | None) -> int:
    """What a healthy link may have in a minute, rounded up: 31 for generation 5 with 16 lanes."""
    return math.ceil(ERROR_RATE * (gt_per_s or _FASTEST_GT_PER_S) * MINUTE_S * (lanes or _WIDEST))


@dataclass
class _Trouble:
    texts: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    critical: bool = False


def replays(moment: Moment) -> Iterator[Hit]:
    found: dict[str, _Trouble] = {}
    if has_grown(moment, _WATCH, _ERRORS, HOUR_S):
        _of_devices(moment, found)
        _of_gpus(moment, found)
    _of_kernel(moment, found)
    for name, trouble in found.items():
        text = f"{' and '.join(trouble.texts)} on {name}"
        severity = "critical" if trouble.critical else "warning"
        yield Hit(name, text, tuple(trouble.evidence), severity=severity)


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    whole = 0  # told even while it is 0: what is first seen has not grown
    for gpu in sample.gpus:
        if gpu.pcie.replay_count is not None and gpu.state == "ok":
            whole += gpu.pcie.replay_count
            yield gpu_key(gpu), _REPLAY, gpu.pcie.replay_count
        if _NVML_FATAL in gpu.pcie.errors and gpu.state == "ok":
            whole += gpu.pcie.errors[_NVML_FATAL]
            yield gpu_key(gpu), _NVML_FATAL, gpu.pcie.errors[_NVML_FATAL]
    for device in sample.pci:
        if device.kind != "nvme":  # a disk's errors are the disks' rules' business
            for name, value in device.aer.items():
                whole += value
                yield device.bus_id, _AER.get(name, name), value
    yield _WATCH, _ERRORS, whole


def _of_gpus(moment: Moment, found: dict[str, _Trouble]) -> None:
    for gpu in moment.now.gpus:
        rate = grown(moment, gpu_key(gpu), _REPLAY, MINUTE_S).per(MINUTE_S)
        limit = replay_limit_per_min(GT_PER_S.get(gpu.pcie.gen or 0), gpu.pcie.width)
        if rate > limit:
            trouble = found.setdefault(gpu_name(gpu), _Trouble())
            trouble.texts.append(f"{rate:.0f} PCIe replays/min")
            trouble.evidence.append(f"its link may have {limit}/min")
        fatal = grown(moment, gpu_key(gpu), _NVML_FATAL, HOUR_S).amount
        if fatal:
            _add_fatal(found.setdefault(gpu_name(gpu), _Trouble()), f"{fatal:.0f} fatal PCIe errors", "counted by NVML")


def _of_devices(moment: Moment, found: dict[str, _Trouble]) -> None:
    names: dict[str, str] = {}
    for device in moment.now.pci:
        if not device.aer:
            continue
        texts, critical = _aer_texts(moment, device)
        if texts:
            names = names or owners(moment)
            name = names.get(bus_id(device.bus_id), f"{device.kind} {device.bus_id}")
            trouble = found.setdefault(name, _Trouble())
            trouble.texts += texts
            trouble.critical |= critical
            trouble.evidence.append(f"aer_dev_* of {device.bus_id}")


def _aer_texts(moment: Moment, device: PciDevice) -> tuple[list[str], bool]:
    texts = []
    corrected = grown(moment, device.bus_id, _AER["correctable"], MINUTE_S).per(MINUTE_S)
    if corrected > replay_limit_per_min(device.link_speed_gt_per_s, device.link_width):
        texts.append(f"{corrected:.0f} corrected PCIe errors/min")
    lost = grown(moment, device.bus_id, _AER["nonfatal"], MINUTE_S).amount
    if lost:
        texts.append(f"{lost:.0f} uncorrected PCIe errors")
    fatal = grown(moment, device.bus_id, _AER["fatal"], HOUR_S).amount
    if fatal:
        texts.append(f"{fatal:.0f} fatal PCIe errors")
    return texts, bool(fatal)


def _of_kernel(moment: Moment, found: dict[str, _Trouble]) -> None:
    """Fatal errors as the kernel's log has them: counters of a device that is reset start anew."""
    oldest = moment.now.sampled_at - HOUR_S
    for event in moment.now.kernel_events:
        if event.kind == "aer" and event.severity == "fatal" and event.at >= oldest:
            name = owners(moment).get(bus_id(event.subject), event.subject or "PCIe")
            _add_fatal(found.setdefault(name, _Trouble()), "fatal PCIe error", event.text)


def _add_fatal(trouble: _Trouble, text: str, evidence: str) -> None:
    """Once, from whoever tells of it first: sysfs, NVML or the kernel's log."""
    if not trouble.critical:
        trouble.texts.append(text)
    trouble.critical = True
    trouble.evidence.append(evidence)
