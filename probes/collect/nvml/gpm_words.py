"""Why there are no GPM values. What to do about a lack of permission: words.GPM_PERMISSION."""

from __future__ import annotations

from mltop.probes.collect.nvml.device import starting, unsupported

STARTING = starting("an average between two samples: it comes with one of the next")
NEEDS_HOPPER = unsupported("GPM needs Hopper or newer: GPU-Util only says that a kernel was resident")


def fields(*names: str) -> str:
    """Several fields as one: "{sm_active,tensor_active}"."""
    return names[0] if len(names) == 1 else f"{{{','.join(names)}}}"
