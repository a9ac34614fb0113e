"""What passes between a probe's process and its supervisor: an order on stdin, events as JSON lines on stdout.

A probe process runs with whatever Python has torch on the node (3.9 or newer): standard library and torch only.
The first line of stdin is the order; collectives are told more while they run. The end of stdin means that nobody waits
for it any more: ``end_with_stdin`` ends the process group then.
It may write lines of any length and kind, of which some are events.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.probes.model.probe import ProbeDevice, ProbeEvent

MOST_LINE_BYTES = 1_000_000
_DEFAULTS = vars(ProbeEvent(""))
_NUMBERS = ("rank", "fraction", "deadline_s")
_say_lock = threading.Lock()


@dataclass
class Order:
    """``kind``: a row of CHILDREN (model.probe_kinds); ``options``: the kind's own; ``devices``: one, or of a launcher
    all of the node. ``deadlines_s``: most seconds of each stage, by its name.
    """

    kind: str
    node: str = ""
    devices: list[ProbeDevice] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    deadlines_s: dict[str, float] = field(default_factory=dict)

    def to_line(self) -> str:
        return to_line(asdict(self))

    def about(self, device: ProbeDevice) -> dict[str, Any]:
        """The fields of a DeviceResult that say whose it is."""
        return {
            "node": self.node,
            "gpu": device.index,
            **{name: getattr(device, name) for name in ("uuid", "name", "kind", "pci_device")},
        }


def to_line(fields: dict[str, Any]) -> str:
    """Raises ValueError for NaN and infinity, which are no JSON."""
    return json.dumps(fields, separators=(",", ":"), allow_nan=False) + "\n"


def read_order() -> Order:
    """The order in the first line of stdin. Raises ValueError for anything else."""
    fields = json.loads(sys.stdin.readline())
    devices = [ProbeDevice(**device) for device in fields.pop("devices", [])]
    return Order(devices=devices, **fields)


def end_with_stdin() -> None:
    """From now on a thread reads stdin, whose end kills this process's whole group."""

    def read() -> None:
        for _ in sys.stdin:
            pass
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=read, name="stdin", daemon=True).start()


def say(event: ProbeEvent) -> None:
    """One line, whole, whichever thread or forked process says it (short lines to a pipe are not mixed: pipe(7))."""
    data = (json.dumps(fields_of(event), separators=(",", ":")) + "\n").encode()
    with _say_lock:
        while data:
            data = data[os.write(1, data) :]


def stage(name: str, device: str = "", fraction: float | None = None, text: str = "", **rest: Any) -> None:
    """This stage begins (its deadline with it), or is so far done."""
    say(ProbeEvent("stage", device=device, stage=name, fraction=fraction, text=text, **rest))


def failed(why: str, device: str = "", stage: str = "", fix: str = "", **rest: Any) -> None:
    say(ProbeEvent("failed", device=device, stage=stage, why=why, fix=fix, **rest))


def fields_of(event: ProbeEvent) -> dict[str, Any]:
    """The event's fields as they travel: without those that hold their default."""
    return {name: value for name, value in vars(event).items() if name == "event" or value != _DEFAULTS[name]}


def event_of(line: bytes) -> ProbeEvent | None:
    """An event whose fields have the types that they should, None for anything else that a line may hold."""
    if not line.startswith(b"{"):
        return None
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    # Unknown fields are a newer mltop's.
    event_fields = {name: value for name, value in fields.items() if name in _DEFAULTS}
    if "event" in event_fields and all(_has_type(name, value) for name, value in event_fields.items()):
        return ProbeEvent(**event_fields)
    return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _has_type(name: str, value: Any) -> bool:
    if name not in _NUMBERS:
        return isinstance(value, type(_DEFAULTS[name]))
    kinds = int if name == "rank" else (int, float)
    return value is None or (isinstance(value, kinds) and not isinstance(value, bool))


class Lines:
    """Whole lines out of a stream; of a line that is too long nothing is kept."""

    def __init__(self) -> None:
        self._rest = b""
        self._skips = False  # until the next newline

    def take(self, data: bytes) -> list[bytes]:
        *ended, rest = (self._rest + data).split(b"\n")
        lines = [line for line in ended[self._skips :] if len(line) <= MOST_LINE_BYTES]
        self._skips = (self._skips and not ended) or len(rest) > MOST_LINE_BYTES
        self._rest = b"" if self._skips else rest
        return lines
