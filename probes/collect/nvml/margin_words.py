"""Why a margin to a limit of temperature cannot be told (limits.py)."""

from __future__ import annotations

T_LIMIT_ALONE = (
    "this driver tells its temperature limits only relative to a reading that it does not give: driver 570 gives it"
)
GPU_OR_MEMORY = "the GPU or its memory is above its limit: the driver tells only what is left to the nearer of the two"
