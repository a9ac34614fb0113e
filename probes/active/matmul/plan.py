"""What is to be measured, and for how long: from the order, with everything that it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.active.child import Order

GIB = 2**30
_SECONDS = {"warm": 2.0, "scan": 3.0, "burst": 1.0, "sustained": 3.0}
_LONGEST_OF_CPUS_S = {"warm": 1.0, "scan": 1.5, "burst": 1.5, "sustained": 2.0}


@dataclass
class Plan:
    """``least_burst``: GEMMs of the burst at least; ``scan_iterations``: of each shape."""

    dtype: str = "bf16"
    first_shapes: Sequence[Sequence[int]] = ()
    seconds: dict[str, float] = field(default_factory=lambda: dict(_SECONDS))
    memory_cap_bytes: int = 4 * GIB
    seed: int = 1
    least_burst: int = 100
    scan_iterations: int = 10


def plan(order: Order) -> Plan:
    """Raises ValueError and TypeError for options that are none."""
    options: dict[str, Any] = order.options
    is_cpu = order.devices[0].kind == "cpu"
    seconds = {**_SECONDS, **{name: float(value) for name, value in (options.get("seconds") or {}).items()}}
    if is_cpu:
        seconds = {name: min(value, _LONGEST_OF_CPUS_S.get(name, value)) for name, value in seconds.items()}
    return Plan(
        dtype=str(options.get("dtype") or "bf16"),
        # Shapes known from GPUs would keep processors busy for minutes.
        first_shapes=options.get("shapes" if is_cpu else "first_shapes") or (),
        seconds=seconds,
        memory_cap_bytes=int(options.get("memory_cap_bytes") or 4 * GIB),
        seed=int(options.get("seed") or 1),
        least_burst=10 if is_cpu else 100,
        scan_iterations=3 if is_cpu else 10,
    )
