"""One fault for each check of the slice `copies` (hardware_probed.py), between two GPUs."""

from __future__ import annotations

from tests.system.hardware.faults.fault import Fault, fault

FAULTS: dict[str, Fault] = {
    # Once is what plain torch counts, twice what mltop does.
    "memory": fault("result", "memory.copy_bytes_per_s", "1.45e12"),
    "memory (intact)": fault("result", "memory.intact", "false"),
    "to_device": fault("result", "to_device_bytes_per_s", "4.6e10"),
    "to_host": fault("plain", "rate to_host.bytes_per_s", "4e10"),
    "host (intact)": fault("result", "intact", "false"),
    "pcie_gen": fault("watch", "pcie.link.gen.gpucurrent", '"4"'),
    "pcie_width": fault("phase", "pcie_width", "8"),
    "peer": fault("result", "peer", '{"bytes_per_s": 3e11}'),
    "peer (direct)": fault("plain", "direct.value", "false"),
    "peer (intact)": fault("result", "peer", '{"intact": false}'),
}
