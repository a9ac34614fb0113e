"""One fault for each check of the slice `bits` (hardware_probed.py)."""

from __future__ import annotations

from tests.system.hardware.faults.fault import Fault, fault

FAULTS: dict[str, Fault] = {
    "corrupt_iterations": fault("result", "corrupt_iterations", "1"),
    "checked_iterations": fault("result", "checked_iterations", "400"),
    "seconds": fault("phase", "seconds", "3.0"),
    "busy (nvidia-smi)": fault("watch", "utilization.gpu", '"50"'),
    "checksum (again)": fault("result", "short.checksum", '"0000000000000001"'),
    "upload_intact": fault("result", "upload_intact", "false"),
}
