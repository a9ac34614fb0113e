"""Frames of stage 1, as in ``protocol.py``."""

import json
import os
import sys
from typing import Any

FAILED_EXIT = 98
MARK = b"\x00MLT1 "
TEXT_MARK = b"@MLT1 "
SILENCE_S = 60.0  # how long the caller may send nothing while the bundle is awaited
MOST_BOOT_BYTES = 700  # srun cuts lines at 1,024 bytes
LONGEST_NOTE = 160


class Refused(Exception):
    """Why the agent cannot start; ``fix`` is what to do."""

    def __init__(self, error: str, fix: str = "") -> None:
        super().__init__(error)
        self.fix = fix


class Options:
    """What stage 1 needs of the agent's arguments."""

    def __init__(self, argv: "list[str]") -> None:
        self.argv = argv
        self.node = self.value("--node", os.environ.get("SLURMD_NODENAME") or os.uname().nodename)
        self.silence_s = float(self.value("--silence", "0")) or SILENCE_S
        self.mark = TEXT_MARK if "--text" in argv else MARK

    def value(self, name: str, default: str) -> str:
        return self.argv[self.argv.index(name) + 1] if name in self.argv[:-1] else default


def send_boot(boot: "dict[str, Any]", options: "Options") -> None:
    """As many of its notes as a line of every carrier holds."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    notes = [note[:LONGEST_NOTE] for note in boot["notes"]]
    boot = dict(boot, python=f"{version} at {sys.executable}", notes=notes)
    while notes and len(json.dumps(boot)) > MOST_BOOT_BYTES:
        del notes[-1]
    send({"kind": "boot", "boot": boot}, options)


def send(message: "dict[str, Any]", options: "Options") -> None:
    payload = json.dumps(dict(message, node=options.node)).encode()
    data = b"%s%d %s\n" % (options.mark, len(payload), payload)
    while data:
        data = data[os.write(1, data) :]


def decode(line: bytes) -> "dict[str, Any]":
    """A frame, {} for noise. A damaged frame is refused: the caller would not send it again."""
    mark = MARK if MARK in line else TEXT_MARK
    if mark not in line:
        return {}
    size, _, payload = line[line.index(mark) + len(mark) :].partition(b" ")
    try:
        frame = json.loads(payload.decode())
    except ValueError:
        frame = None
    if size != b"%d" % len(payload) or not isinstance(frame, dict):
        raise Refused(f"a frame arrived damaged: {len(payload)} bytes of {size[:20].decode('ascii', 'replace')}")
    return frame
