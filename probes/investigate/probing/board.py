"""What a running probe has said so far: one line per device or rank, results, failures, notes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from mltop.probes.investigate.probing.wanted import DeviceProgress
from mltop.probes.model.probe import DEVICE_RESULTS, DeviceResult, ProbeDevice, ProbeEvent, ProbeFailure
from mltop.probes.model.receipt import MOST_RANK_NUMBERS, Refused, admit_result
from mltop.probes.model.text import plain_text
from mltop.probes.model.vocabulary import ProbeKind

MOST_NOTES = 400  # lines of NCCL and of the probes themselves; a broken node must not fill our memory
MOST_CHARS = 600
MOST_UUID_CHARS = 120
_NO_UUID = re.compile(r"[^\w:.,/() -]")
_REFUSAL = ("code", "who", "pids")  # fields of ProbeFailure
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


def failure_of(node: str, event: ProbeEvent, gpu: int | None) -> ProbeFailure:
    """With what the data tell about why a device is not measured (active/supervisor/gate.py), where they are fit."""
    failure = ProbeFailure(node, event.why or "it did not say why", gpu, event.rank, event.stage, event.fix)
    failure.refused = event.event == "refused"
    fields: dict[str, Any] = vars(failure) | {name: event.data[name] for name in _REFUSAL if name in event.data}
    try:
        failure = msgspec.convert(fields, ProbeFailure)
    except msgspec.ValidationError:
        return failure
    failure.who = plain_text(failure.who, MOST_CHARS)
    failure.pids = [pid for pid in failure.pids[:MOST_OF_A_NODE] if 0 < pid <= MOST_PID]
    return failure


class Board:
    """What the nodes of one run have said. It lives in the run's thread; what it hands out is frozen or copied."""

    def __init__(self, kind: ProbeKind = "matmul") -> None:
        self._kind = kind
        self._devices: dict[tuple[str, str], DeviceProgress] = {}
        self.failures: list[ProbeFailure] = []
        self.results: list[DeviceResult] = []
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
            self.pythons[node] = event.data
            self._take_devices(node, event.data.get("devices", ()))
        elif event.event == "stage":
            self._update(node, event, stage=event.stage, fraction=event.fraction)
        elif event.event == "result":
            if self._count("result", node):
                self._take_result(node, event)
        elif event.event in ("failed", "refused"):
            self.fail(node, event)
        elif event.event == "note" and event.data.get("remark") is True and self._count("remark", node):
            self.remarks.setdefault(event.text, []).append(node)
        elif event.event == "note" and len(self.notes) < MOST_NOTES:
            self.notes.append((node, event.text or str(event.data.get("settings", ""))))

    def _take_result(self, node: str, event: ProbeEvent) -> None:
        """What is no such result is a failure of its node."""
        try:
            result = msgspec.convert(event.data, DEVICE_RESULTS[self._kind])
            admit_result(result)
        except (msgspec.ValidationError, Refused, KeyError) as error:
            why, fix = f"its result cannot be read: {error}", "the same version of mltop on all nodes"
            self.failures.append(ProbeFailure(node, why, fix=fix))
            self._update(node, event, problem=why, fraction=None)
            return
        result.node = node
        result.uuid = _NO_UUID.sub("_", result.uuid)[:MOST_UUID_CHARS]  # sentences to copy name it
        self.results.append(result)
        self._update(node, event, stage="done", fraction=1.0, result=result)

    def fail(self, node: str, event: ProbeEvent) -> None:
        if event.device and (node, event.device) not in self._devices:
            self._take_devices(node, [event.data.get("device")])  # refused before the devices are told
        device = self._devices.get((node, event.device))
        if self._count("failure", node):
            self.failures.append(failure_of(node, event, device.gpu if device else None))
        self._update(node, event, problem=event.why, fraction=None)

    def fail_node(self, node: str, why: str, fix: str = "", stage: str = "") -> None:
        """The whole node has failed: it could not be asked, or did not answer."""
        self.failures.append(ProbeFailure(node, why, stage=stage, fix=fix))
        for key, device in self._devices.items():
            if key[0] == node and device.result is None and not device.problem:
                self._devices[key] = replace(device, problem=why, fraction=None)

    def has_failed(self, node: str) -> bool:
        return any(failure.node == node for failure in self.failures)

    def _take_devices(self, node: str, described: Any) -> None:
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
