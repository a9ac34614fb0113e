"""One fault for each check of the slice `probes` (hardware_probed.py)."""

from __future__ import annotations

from tests.system.hardware.faults.fault import Fault, fault

FINALS = '[{"shape": [2048, 2048, 13312], "library": "cublaslt", "tflops": 770}]'
FAULTS: dict[str, Fault] = {
    "refused (agent)": fault("refused", "why", '"in use by ada: python train.py (pid 1)"'),
    "refused (command line)": fault("refused", "code", "0"),
    "burst": fault("result", "burst_tflops", "775"),
    "burst (time)": fault("events", "device", "1.9"),
    "burst (its shape)": fault("plain", "scan.finals", FINALS),
    "burst (same shape)": fault("plain", "rates.means", "[740, 740]"),
    "sustained": fault("result", "sustained_tflops", "600"),
    "sustained (power)": fault("watch", "power.draw.instant", '"620.00"'),
    "sustained (power limit)": fault("watch", "enforced.power.limit", '"650.00"'),
    "sustained (clock)": fault("phase", "sm_clock_mhz", "1980"),
    "upload_intact": fault("result", "upload_intact", "false"),
}
