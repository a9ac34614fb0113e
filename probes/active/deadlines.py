"""How long each stage of a probe may take, in one table. An order's own ``deadlines_s`` is stronger."""

from __future__ import annotations

from collections.abc import Mapping

START = "start python"
_COMMON = {START: 10.0, "import torch": 30.0, "device": 40.0, "warm": 10.0}
_BY_KIND: dict[str, dict[str, float]] = {
    "matmul": {"scan": 15.0, "burst": 15.0, "sustained": 15.0, "check": 10.0},
    "memory": {"copy": 20.0},
    "copies": {"to device": 20.0, "to host": 20.0, "together": 30.0, "peers": 60.0},
    # "measure" is for one size; its rounds are the caller's, whose budget is in the order.
    "all_reduce": {"listen": 10.0, "join": 12.0, "init": 10.0, "measure": 30.0},
}
UNKNOWN_STAGE_S = 30.0
LAUNCHER_TOTAL_S = 600.0  # of all_reduce: it lives as long as the caller has rounds


def deadline_s(kind: str, stage: str, ordered_s: Mapping[str, float]) -> float:
    """Of one stage; "measure 256 MiB" takes that of "measure" where it has none of its own."""
    known = {**_COMMON, **_BY_KIND.get(kind, {}), **ordered_s}
    words = stage.split(" ")
    for count in range(len(words), 0, -1):
        found = known.get(" ".join(words[:count]))
        if found is not None:
            return found
    return UNKNOWN_STAGE_S


def total_s(kind: str, ordered_s: Mapping[str, float]) -> float:
    """Of all stages together."""
    if kind == "all_reduce":
        return LAUNCHER_TOTAL_S
    return sum({**_COMMON, **_BY_KIND.get(kind, {}), **ordered_s}.values())
