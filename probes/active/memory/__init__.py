"""The memory probe's process: how fast one device copies within its own memory.

child.py     its order, stages and result
measure.py   the measurement, the same for all devices; device.py what differs between CUDA and CPUs
pattern.py   what is copied, and whether it arrived
room.py      how much may be copied: free memory, caches
"""

from mltop.probes.active.memory.child import main

__all__ = ["main"]
