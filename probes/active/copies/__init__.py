"""The copies probe's process: between host memory and the GPUs of a node, and from GPU to GPU.

child.py    its order, stages and results
measure.py  the measurement over an interface (Node), which gpus.py has for CUDA
timing.py   batches, budgets, and what hangs
pcie.py     NVML by ctypes: the PCIe link during a copy; near.py the CPUs and memory beside a GPU
"""

from mltop.probes.active.copies.child import main

__all__ = ["main"]
