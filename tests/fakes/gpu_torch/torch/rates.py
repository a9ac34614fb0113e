"""How fast this GPU is, in its own time: whatever is asked twice takes as long twice.

MLTOP_FAKE_TORCH_LIES (JSON, a path) may bend it, in processes of mltop's probes only: ``probe_slower``: by this factor;
``shallow``: shallow GEMMs seem the better ones; ``wrong_from``: the first GEMM with a wrong bit; ``torn``: what is
copied arrives with wrong bits.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MEMORY_B_PER_S = 3e12
TO_DEVICE_B_PER_S, TO_HOST_B_PER_S, PEER_B_PER_S = 50e9, 48e9, 380e9
TFLOPS = {"bf16": 760.0, "fp16": 750.0, "tf32": 420.0, "fp32": 52.0, "fp8": 1400.0, "fp64": 30.0}
_IS_PROBE = "mltop-probe" in sys.argv


def lies() -> dict[str, Any]:
    path = os.environ.get("MLTOP_FAKE_TORCH_LIES", "")
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        found: dict[str, Any] = json.load(file)
    return found


_LIES = lies()
SLOWER = float(_LIES.get("probe_slower", 1.0)) if _IS_PROBE else 1.0
WRONG_FROM = int(_LIES.get("wrong_from", 0)) if _IS_PROBE else 0
SHALLOW = bool(_LIES.get("shallow")) and _IS_PROBE
TORN = bool(_LIES.get("torn")) and _IS_PROBE


def gemm_s(kind: str, m: int, n: int, k: int) -> float:
    """Nearly flat, better for deep ones: a scan that breaks off anywhere finds nearly the best."""
    share = 4096 / (k + 4096) if SHALLOW else k / (k + 64)
    return SLOWER * 2 * m * n * k / (TFLOPS[kind] * 1e12 * share)


def copy_s(source: str, target: str, size_bytes: int) -> float:
    if source == "cpu":
        rate = TO_DEVICE_B_PER_S
    elif target == "cpu":
        rate = TO_HOST_B_PER_S
    else:
        rate = MEMORY_B_PER_S / 2 if source == target else PEER_B_PER_S
    return SLOWER * size_bytes / rate
