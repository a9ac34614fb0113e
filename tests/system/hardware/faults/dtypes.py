"""Faults for each check of the slice `dtypes`: a type that mltop leaves out, and rates that are 8 % too low."""

from __future__ import annotations

from tests.system.hardware.faults.fault import Fault, fault

DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")
BURST = {"bf16": "720", "fp16": "710", "tf32": "390", "fp32": "45", "fp8": "1290"}
SUSTAINED = {"bf16": "600", "fp16": "590", "tf32": "368", "fp32": "45", "fp8": "1100"}
FAULTS: dict[str, Fault] = {
    **{
        # Without a rate there is none to compare.
        dtype: fault("result", f"{dtype}.sustained_tflops", "null", f"{dtype} (sustained)")
        for dtype in DTYPES
    },
    **{f"{dtype} (burst)": fault("result", f"{dtype}.burst_tflops", BURST[dtype]) for dtype in DTYPES},
    **{f"{dtype} (sustained)": fault("result", f"{dtype}.sustained_tflops", SUSTAINED[dtype]) for dtype in DTYPES},
}
