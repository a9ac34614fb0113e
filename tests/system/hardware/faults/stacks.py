"""One fault for each check of the slice `stacks`: at a path of what it found (``Found.to_json``) is something else."""

from __future__ import annotations

import json
from typing import Any

from tests.hardware.slices.stacks import HANGS
from tests.system.hardware.faults.fault import Fault, Lie

ALONE = [case for case, hang in HANGS.items() if hang.ranks == 1]
NOBODYS = [{"rank": 0, "where": "train (job.py:1)"}]
SPINS = "spins (spinning)"


def found(path: str, value: Any, *also: str) -> Fault:
    return Fault((Lie("found", path, json.dumps(value)),), frozenset(also))


def gpu(state: str, name: str, value: float, *also: str) -> Fault:
    return found(f"known.{state}.gpu.{name}", value, *also)


def rates(state: str, name: str, value: float, *also: str) -> Fault:
    return found(f"known.{state}.ranks.0.{name}", value, *also)


FAULTS: dict[str, Fault] = {
    "healthy: kind": found("looks.healthy.job.verdict.kind", "hang"),
    "healthy: pause": found("looks.healthy.pause_s", 0.5),
    "healthy: goes on": found("looks.healthy.goes_on", False),
    "healthy: pause (--native)": found("looks.healthy (--native).pause_s", 0.5),
    "healthy: goes on (--native)": found("looks.healthy (--native).goes_on", False),
    "healthy: native frames": found("looks.healthy (--native).job.digests", []),
    **{f"{case}: kind": found(f"looks.{case}.job.verdict.kind", "moving") for case in HANGS},
    **{f"{case}: culprits": found(f"looks.{case}.job.verdict.culprits", NOBODYS) for case in ALONE},
    **{f"{case}: culprits": found(f"looks.{case}.job.verdict.culprits.0.rank", 0) for case in ("collective", "gloo")},
    **{f"{case}: place": found(f"looks.{case}.job.digests", []) for case in ALONE},
    **{
        f"{case}: place": found(f"looks.{case}.job.verdict.culprits.0.where", "train (job.py:1)")
        for case in ("collective", "gloo")
    },
    **{
        f"{case}: waits in": found(f"looks.{case}.job.verdict.waiting", [{"ranks": "0", "where": "barrier, called"}])
        for case, hang in HANGS.items()
        if hang.waits_in
    },
    # A GPU that is a little busy without a kernel, and one whose spinning kernel does not count as busy.
    "IDLE_BUSY": gpu("idle", "busy", 0.3),
    "SPINNING_BUSY": gpu("collective", "busy", 0.9, SPINS),
    "SPINNING_POWER": gpu("collective", "power_w", 500.0, SPINS),
    "SPINNING_TENSOR": gpu("collective", "tensor_active", 0.1, SPINS),
    "IDLE_SM": gpu("collective", "sm_active", 0.001),
    "MOVE_PER_S": rates("dataloader", "switches", 2.0),
    "MOVE_PROCESS_CALLS_PER_S": rates("dataloader", "calls", 15.0),
    "WORKING_CALLS_PER_S": rates("healthy", "calls", 15.0),
    "BUSY_CPU": rates("kernel", "main_cpu", 0.3),
    "BUSY_MAIN_CPU": rates("dataloader", "main_cpu", 0.1, "MOVE_CPU_S_PER_S"),
    "MOVE_CPU_S_PER_S": rates("dataloader", "main_cpu", 0.01),
    "spins (idle)": Fault(
        (Lie("found", "known.idle.gpu.busy", "1.0"), Lie("found", "known.idle.gpu.power_w", "100.0")),
        frozenset({"IDLE_BUSY", "SPINNING_BUSY"}),
    ),
    "spins (spinning)": gpu("collective", "power_limit_w", 300.0, "SPINNING_POWER"),
    "spins (gemm)": Fault(
        (Lie("found", "known.gemm.gpu.power_w", "200.0"), Lie("found", "known.gemm.gpu.tensor_active", "0.01")),
        frozenset({"SPINNING_POWER", "SPINNING_TENSOR"}),
    ),
}
