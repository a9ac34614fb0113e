"""The matmul probe: how many TFLOPS one device does, in bursts and sustained, and whether it computes right.

A process of its own with the Python that has torch: order on stdin, events on stdout (``child``). The device is the
only one that CUDA_VISIBLE_DEVICES shows, or the CPUs. Stages: import torch, device, warm, scan, burst, sustained,
check. ``main`` is the whole program; nothing here imports torch but that.
"""

from __future__ import annotations

import sys
from typing import Any

from mltop.probes.active.child import Order, end_with_stdin, failed, read_order
from mltop.probes.active.matmul.child import Progress, measure, plan
from mltop.probes.active.phase_meter import PhaseMeter
from mltop.probes.active.torch_support import in_words


def main() -> None:
    order = read_order()
    end_with_stdin()
    meter = PhaseMeter(order.devices[0])  # NVML starts while torch is imported
    if not _measured(order, meter):
        sys.exit(1)
    meter.close()


def _measured(order: Order, meter: PhaseMeter) -> bool:
    device = order.devices[0]
    progress = Progress(device.uuid, order.deadlines_s)
    try:
        wanted = plan(order)
        progress.begin("import torch")
        return measure(_torch(), order, wanted, meter, progress)
    except ImportError as error:
        why, fix = f"{sys.executable} cannot import torch: {error}", "--torch-python with torch"
    # What torch raises: RuntimeError for nearly all, out of memory included; AssertionError without CUDA.
    except (RuntimeError, ValueError, TypeError, AssertionError, MemoryError, OSError) as error:
        why, fix = in_words(error)
        if progress.stage == "import torch":
            why, fix = f"{sys.executable} cannot import torch: {why}", fix or "--torch-python with torch"
    failed(why, device.uuid, progress.stage, fix)
    return False


def _torch() -> Any:
    import torch

    torch.set_grad_enabled(False)
    return torch
