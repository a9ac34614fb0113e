"""The frames that carry files to a node."""

from __future__ import annotations

import base64
import zlib
from functools import cache

from mltop.probes.agent.protocol import Request
from mltop.probes.reach.bundle import wheels
from mltop.probes.reach.bundle.archive import sha256
from mltop.probes.reach.bundle.content import bundle, machines

_GZIP = 31  # zlib's name for it; the header it writes has no time of making
_BEST, _QUICK = 9, 3  # py-spy, 8 MB: 0.13 s and 3.0 MB at 3; 1.2 s and 2.8 MB at 9


def file_for(name: str, machine: str) -> Request:
    """The frame for a node of this machine type (platform.machine()): ``name`` is "bundle" or "py-spy".

    args: sha256 (of the unpacked bytes) and data (base64 of gzip); or error and fix, when there is none. Takes 0.1 to
    0.3 s, and nothing is kept: the caller keeps the frame when it has many such nodes.
    """
    if name not in ("bundle", "py-spy"):
        return Request("file", op=name, args={"error": f"there is no file {name!r}"})
    args = _bundle(machine if machine in machines() else "") if name == "bundle" else _py_spy(machine)
    return Request("file", op=name, args=dict(args))


@cache
def py_spy_sha256(machine: str) -> str:
    """Of the py-spy that ``file_for`` has for this machine type, "" when it has none."""
    program = wheels.py_spy(machine)
    return sha256(program) if program else ""


def _bundle(machine: str) -> dict[str, str]:
    archive = bundle(machine)
    return {"sha256": archive.sha256, "data": _packed(archive.content, _BEST)}


def _py_spy(machine: str) -> dict[str, str]:
    program = wheels.py_spy(machine)
    if program is None:
        return {"error": f"no py-spy for {machine} at hand to send there", "fix": wheels.how_to_get(machine)}
    return {"sha256": sha256(program), "data": _packed(program, _QUICK)}


def _packed(content: bytes, level: int) -> str:
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP)
    return base64.b64encode(compressor.compress(content) + compressor.flush()).decode()
