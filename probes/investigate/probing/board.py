"""What a running probe has said so far: one line per device or rank, results, failures, notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from mltop.probes.investigate.probing.wanted import DeviceProgress
from mltop.probes.model.probe import ProbeDevice, ProbeEvent, ProbeFailure
from mltop.probes.model.receipt import MOST_RANK_NUMBERS, Refused, admit_result
from mltop.probes.model.text import plain_text
from mltop.probes.model.vocabulary import RefusalCode

MOST_NOTES = 400  # lines of NCCL and of the probes themselves; a broken node must not fill our memory
MOST_CHARS = 600
MOST_PID = 2**22  # the kernel's PID_MAX_LIMIT
MOST_OF_A_NODE = 512  # devices, results, failures and remarks of one node, each


def event_of(data: Mapping[str, Any]) -> ProbeEvent | None:
    """One event of a node, its words made fit for a terminal; None for what is none."""
    try:
        event = msgspec.convert({name: value for name, value in data.items() if value is not None}, ProbeEvent)
    except msgspec.ValidationError:
        return None
    for name in ("device", "stage", "text", "why", "fix"):
        setattr(event, name, plain_text(getattr(event, name), MOST_CHARS))
    if event.rank is not None and not 0 <= event.rank <= MOST_RANK_NUMBERS:
        event.rank = None
    if event.fraction is not None:
        event.fraction = min(max(event.fraction, 0.0), 1.0)
    return event


@dataclass
class _Refusal:
    """What the data of an event tell about why a device is not measured (active/supervisor/gate.py)."""

    code: RefusalCode = ""
    who: str = ""
    pids: list[int] = field(default_factory=list)


def _refusal_of(data: Mapping[str, Any]) -> _Refusal:
    """Without anything where a node's words are not fit."""
    try:
        refusal = msgspec.convert({name: data[name] for name in ("code", "who", "pids") if name in data}, _Refusal)
    except msgspec.ValidationError:
        return _Refusal()
    refusal.who = plain_text(refusal.who, MOST_CHARS)
    refusal.pids = [pid for pid in refusal.pids[:MOST_OF_A_NODE] if 0 < pid <= MOST_PID]
    return refusal


class Board:
    """What the nodes of one run have said. It lives in the run's thread; what it hands out is frozen or copied."""

    def __init__(self) -> None:
        self._devices: dict[tuple[str, str], DeviceProgress] = {}
        self.failures: list[ProbeFailure] = []
        self.results: list[tuple[str, dict[str, Any]]] = []  # node, a result's fields
        self.notes: list[tuple[str, str]] = []  # node, line
        self.remarks: dict[str, list[str]] = {}  # what the frame found worth saying → nodes
        self.pythons: dict[str, Mapping[str, Any]] = {}  # node → what its devices event said
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def simulated(self) -> bool:
        return any(data.get("simulated") for data in self.pythons.values())

    def devices(self) -> tuple[DeviceProgress, ...]:
        return tuple(self._devices.values())

    def kinds(self, node: str) -> set[str]:
        """What this node measures with: gpu | mig | cpu; empty while unknown."""
        devices = self.pythons.get(node, {}).get("devices", ())
        described = devices if isinstance(devices, list) else ()
        return {str(device.get("kind", "")) for device in described if isinstance(device, dict)}

    def take(self, node: str, event: ProbeEvent) -> None:
        if event.event == "devices":
            self._take_devices(node, event.data)
        elif event.event == "stage":
            self._update(node, event, stage=event.stage, fraction=event.fraction)
        elif event.event == "result":
            if self._count("result", node):
                self.results.append((node, event.data))
            self._update(node, event, stage="done", fraction=1.0, result=event.data)
        elif event.event in ("failed", "refused"):
            self.fail(node, event)
        elif event.event == "note" and event.data.get("remark") is True and self._count("remark", node):
            self.remarks.setdefault(event.text, []).append(node)
        elif event.event == "note" and len(self.notes) < MOST_NOTES:
            self.notes.append((node, event.text or str(event.data.get("settings", ""))))

    def fail(self, node: str, event: ProbeEvent) -> None:
        if event.device and (node, event.device) not in self._devices:
            self._take_devices_of(node, [event.data.get("device")])  # refused before the devices are told
        device = self._devices.get((node, event.device))
        if self._count("failure", node):
            self.failures.append(
                ProbeFailure(
                    node,
                    event.why or "it did not say why",
                    gpu=device.gpu if device else None,
                    rank=event.rank,
                    stage=event.stage,
                    fix=event.fix,
                    refused=event.event == "refused",
                    **vars(_refusal_of(event.data)),
                )
            )
        self._update(node, event, problem=event.why, fraction=None)

    def fail_node(self, node: str, why: str, fix: str = "", stage: str = "") -> None:
        """The whole node has failed: it could not be asked, or did not answer."""
        self.failures.append(ProbeFailure(node, why, stage=stage, fix=fix))
        for key, device in self._devices.items():
            if key[0] == node and device.result is None and not device.problem:
                self._devices[key] = replace(device, problem=why, fraction=None)

    def has_failed(self, node: str) -> bool:
        return any(failure.node == node for failure in self.failures)

    def _take_devices(self, node: str, data: dict[str, Any]) -> None:
        self.pythons[node] = data
        self._take_devices_of(node, data.get("devices", ()))

    def _take_devices_of(self, node: str, described: Any) -> None:
        for description in described if isinstance(described, list) else ():
            try:
                device = msgspec.convert(description, ProbeDevice)
                admit_result(device)
            except (msgspec.ValidationError, Refused):
                continue
            self._line_of(node, device.uuid, device.index, plain_text(device.name, MOST_CHARS))

    def _line_of(self, node: str, uuid: str, index: int | None, name: str = "", rank: int | None = None) -> None:
        if (node, uuid) not in self._devices and self._count("device", node):
            self._devices[node, uuid] = DeviceProgress(node, index, uuid, name, rank=rank)

    def _count(self, what: str, node: str) -> bool:
        """Whether there is room for one more of this node's."""
        self._counts[what, node] += 1
        return self._counts[what, node] <= MOST_OF_A_NODE

    def _update(self, node: str, event: ProbeEvent, **changed: Any) -> None:
        """Changes the line of the event's device; of an event for the whole node, all of its lines that still run."""
        keys = [(node, event.device)] if event.device else [key for key in self._devices if key[0] == node]
        if event.device:
            self._line_of(node, event.device, None, rank=event.rank)
        for key in keys:
            if key in self._devices and self._devices[key].result is None:
                self._devices[key] = replace(self._devices[key], **changed)
