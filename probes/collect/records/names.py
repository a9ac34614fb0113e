"""Which rank a record is of, and where a rank's records lie: by the names that writers give them. Python 3.9."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from mltop.probes.collect.records.values import rank_number

# torch's prefixes end where the rank's number begins, and the user may choose any; NVRx, Ray and people add an ending.
_NAME = re.compile(r"(?P<prefix>.*?)(?P<rank>\d{1,8})(?:\.(?:json|pickle|pkl|pt|trace))?", re.DOTALL)
_OLD_PREFIX = "/tmp/nccl_trace_rank_"  # where torch wrote until 2.8
_ASCEND_PREFIX = "/tmp/hccl_trace_rank_"
_IN_CACHE = "torch/comm_lib_trace_rank_"
_TORCHCOMMS_NAME = ".cache/torchcomm_fr_trace_"
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


class Place(NamedTuple):
    """Where a record of a rank may lie. ``chosen``: the job says so, rather than torch by itself."""

    path: str
    chosen: bool


def rank_of_name(name: str) -> int | None:
    """7 of ``comm_lib_trace_rank_7``, ``_dump_7.json``, ``rank_7.json``; None of a name without a number at its end."""
    match = _NAME.fullmatch(name)
    return rank_number(match["rank"]) if match is not None and match["prefix"] else None


def places_of(environ: Mapping[str, str], rank: int, cwd: str = "") -> list[Place]:
    """Where the records of a rank with these variables lie, the first that exists counts. Relative to ``cwd``."""
    chosen = [
        environ[name] for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE") if environ.get(name)
    ]
    places = [Place(f"{prefix}{rank}", True) for prefix in chosen[:1]]
    torchcomms = environ.get("TORCHCOMM_FR_DUMP_TEMP_FILE", "")
    places += [Place(f"{torchcomms}{rank}", True)] if torchcomms else []
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    usual = [f"{cache}/{_IN_CACHE}"] if cache and not chosen else []
    usual += [_OLD_PREFIX] if not chosen else []
    usual += [f"{home}/{_TORCHCOMMS_NAME}"] if home and not torchcomms else []
    usual += [_ASCEND_PREFIX]
    places += [Place(f"{prefix}{rank}", False) for prefix in usual]
    return [Place(os.path.join(cwd, place.path), place.chosen) for place in places if cwd or place.path.startswith("/")]


def pipe_of(environ: Mapping[str, str], rank: int) -> str:
    """The pipe by which a rank would write a record at once when asked, "" for none."""
    prefix = environ.get(PIPE, "")
    return f"{prefix}{rank}.pipe" if prefix else ""
