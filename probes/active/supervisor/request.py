"""What a caller wants of the probes of one node."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.model.probe_kinds import CHILDREN, total_s
from mltop.probes.system.spawn import why_no_program

_IN = {"memory": "transfers", "copies": "transfers"}  # modules of another name than their kind's
_KEY = re.compile(r"[!-~]{1,100}", re.ASCII)  # it stands in command lines and sentences


@dataclass(frozen=True)
class ProbeRequest:
    """``key`` names the run, equal on all of its nodes; ``kind``: of CHILDREN; ``gpus``: indexes, GPU- or MIG-UUIDs,
    "cpu"; () means all. ``python``: that has torch, "" looks for one; ``trust_python``: root runs it whoever can change
    it. ``total_s``: from the first process on.
    """

    key: str
    kind: str
    gpus: tuple[str, ...] = ()
    force: bool = False
    python: str = ""
    trust_python: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    deadlines_s: dict[str, float] = field(default_factory=dict)
    total_s: float = 60.0


def request_from(args: Mapping[str, Any]) -> ProbeRequest:
    """Returns what a request's ``args`` ask for. ValueError says what is wrong with them."""
    kind, key = str(args.get("kind", "")), str(args.get("key", ""))
    if kind not in CHILDREN:
        raise ValueError(f"unknown probe {kind!r} (there are {', '.join(CHILDREN)})")
    if not _KEY.fullmatch(key):
        raise ValueError("a probe needs a key: 1 to 100 printable characters without blanks")
    gpus, options, deadlines = args.get("gpus") or [], args.get("options") or {}, args.get("deadlines_s") or {}
    if not isinstance(gpus, list) or not isinstance(options, dict) or not isinstance(deadlines, dict):
        raise ValueError("gpus must be a list, options and deadlines_s objects")
    python = str(args.get("python") or "")
    why = why_no_program(python) if python else ""
    if why or ("/" in python and not python.startswith("/")):
        raise ValueError(f"{python[:100]!r} {why or 'is no full path'}: name the Python with torch by one")
    deadlines_s = {str(stage): _seconds(value, f"deadlines_s of {stage}") for stage, value in deadlines.items()}
    return ProbeRequest(
        key=key,
        kind=kind,
        gpus=tuple(dict.fromkeys(str(gpu) for gpu in gpus)),
        force=bool(args.get("force", False)),
        python=python,
        trust_python=bool(args.get("trust_python", False)),
        options=options,
        deadlines_s=deadlines_s,
        total_s=_seconds(args.get("total_s") or total_s(kind, deadlines_s), "total_s"),
    )


def modules() -> dict[str, str]:
    """Where the ``main`` of each kind is: a module; MLTOP_PROBE_MODULES (JSON, by kind) may name others, or files."""
    chosen = json.loads(os.environ.get("MLTOP_PROBE_MODULES", "{}"))
    return {kind: str(chosen.get(kind, f"mltop.probes.active.{_IN.get(kind, kind)}")) for kind in CHILDREN}


def _seconds(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{what} must be seconds, not {value!r}")
    return float(value)
