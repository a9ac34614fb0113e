"""What every probe process shares: its order on stdin, events as JSON lines on stdout.

A probe process runs with whatever Python has torch on the node (3.9 or newer): standard library and torch only.
The first line of stdin is the order; later lines are for probes that are told more while they run (all_reduce).
The end of stdin means that nobody waits for it any more: ``end_with_stdin`` ends the process group then.

What a probe process writes: lines of any length and kind, of which some are events.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field
from typing import Any, Callable

from mltop.probes.model.probe import ProbeDevice, ProbeEvent

_say_lock = threading.Lock()
_DEFAULTS = asdict(ProbeEvent(""))


@dataclass
class Order:
    """``kind``: matmul | memory | copies | all_reduce; ``options``: the kind's own; ``devices``: one, or of a
    launcher all of the node. ``deadlines_s``: most seconds of each stage, by its name.
    """

    kind: str
    node: str = ""
    devices: list[ProbeDevice] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    deadlines_s: dict[str, float] = field(default_factory=dict)


def to_line(order: Order) -> str:
    return json.dumps(asdict(order)) + "\n"


def read_order() -> Order:
    """From the first line of stdin. Raises ValueError for anything else than an order."""
    fields = json.loads(sys.stdin.readline())
    devices = [ProbeDevice(**device) for device in fields.pop("devices", [])]
    return Order(devices=devices, **fields)


def end_with_stdin(on_line: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """From now on a thread reads stdin: lines go to ``on_line``, its end kills this process's whole group."""

    def read() -> None:
        for line in sys.stdin:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict):
                on_line(told)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=read, name="stdin", daemon=True).start()


def say(event: ProbeEvent) -> None:
    """One line, whole, whichever thread or forked process says it (short lines to a pipe are not mixed: pipe(7))."""
    fields = {name: value for name, value in asdict(event).items() if name == "event" or value != _DEFAULTS[name]}
    data = (json.dumps(fields, separators=(",", ":")) + "\n").encode()
    with _say_lock:
        while data:
            data = data[os.write(1, data) :]


def stage(name: str, device: str = "", fraction: float | None = None, text: str = "", **rest: Any) -> None:
    """This stage begins (its deadline with it), or is so far done."""
    say(ProbeEvent("stage", device=device, stage=name, fraction=fraction, text=text, **rest))


def failed(why: str, device: str = "", stage: str = "", fix: str = "", **rest: Any) -> None:
    say(ProbeEvent("failed", device=device, stage=stage, why=why, fix=fix, **rest))


def event_from(fields: dict[str, Any]) -> ProbeEvent | None:
    """An event from a line of a probe process, None for what is none; unknown fields are ignored."""
    known = {name: value for name, value in fields.items() if name in _DEFAULTS}
    return ProbeEvent(**known) if isinstance(known.get("event"), str) else None


MOST_LINE_BYTES = 1_000_000
_UNSAID = vars(ProbeEvent(""))
_NUMBERS = ("rank", "fraction", "deadline_s")


class Lines:
    """Whole lines out of a stream. Of a line that is too long nothing is kept."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skips = False  # until the next newline

    def take(self, data: bytes) -> list[bytes]:
        *lines, rest = data.split(b"\n")
        found = []
        for line in lines:
            if not self._skips and len(self._rest) + len(line) <= MOST_LINE_BYTES:
                found.append(bytes(self._rest) + line)
            self._rest.clear()
            self._skips = False
        if self._skips or len(self._rest) + len(rest) > MOST_LINE_BYTES:
            self._rest.clear()
            self._skips = True
        else:
            self._rest += rest
        return found


def event_of(line: bytes) -> ProbeEvent | None:
    """An event whose fields have the types that they should, None for anything else that a line may hold."""
    if not line.startswith(b"{"):
        return None
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    event = event_from(fields) if isinstance(fields, dict) else None
    return event if event is not None and _has_types(event) else None


def fields_of(event: ProbeEvent) -> dict[str, Any]:
    """As it travels: without what holds its default."""
    return {name: value for name, value in vars(event).items() if name == "event" or value != _UNSAID[name]}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _has_types(event: ProbeEvent) -> bool:
    for name, value in vars(event).items():
        if name in _NUMBERS:
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                return False
        elif not isinstance(value, type(_UNSAID[name])):
            return False
    return event.rank is None or isinstance(event.rank, int)
