"""One fault for each check of the slice `screen`: a field of what was seen (``Measured``) is something else."""

from tests.system.hardware.faults.fault import Fault, fault

FAULTS: dict[str, Fault] = {
    "starts": fault("found", "started_s", "null"),
    "model": fault("found", "name", '"NVIDIA A100-SXM4-80GB"'),
    "rank": fault("found", "pid", "1"),
    "state": fault("found", "state", '"stalled 12s"'),
    "quits": fault("found", "code", "70"),
    "restores the terminal": fault("found", "left", '["mode 1049 on"]'),
}
