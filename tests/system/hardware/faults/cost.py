"""One fault for each check of the slice `cost`, in a record of made-up figures in which all agree."""

from __future__ import annotations

import json

from tests.hardware.cost_checks import EFFECT, EVERY_SECOND, SLOWER, WHEN
from tests.system.hardware.faults.fault import Fault, fault

# The agent takes 2 % of the GEMM's rate.
SLOWED = [{"with_agent": number % 4 in (1, 2), "rate": 98.0 if number % 4 in (1, 2) else 100.0} for number in range(12)]
FAULTS: dict[str, Fault] = {
    **{
        f"NVML calls per GPU and second ({when})": fault("record", f"calls/{when}/per_gpu", "[700, 800]")
        for when in WHEN
    },
    **{f"NVML time of a poll ({when})": fault("record", f"calls/{when}/polls_s", "[0.1, 0.6]") for when in WHEN},
    **{
        f"NVML time of {tier}": fault("record", f"calls/idle/seconds/{tier}", "[0.001, 0.3]")
        for tier in (*EVERY_SECOND, *SLOWER)
    },
    **{f"agent CPU ({when})": fault("record", f"usage/{when}/cpu_share", "0.02") for when in WHEN},
    **{f"agent memory ({when})": fault("record", f"usage/{when}/pss_mib", "64.5") for when in WHEN},
    EFFECT: fault("record", "windows", json.dumps(SLOWED)),
}
