"""The matmul probe's process: ``main()`` of child.py, which goes through the stages.

gemm.py   the GEMM of each data type and its operands, and what does the work; shapes.py which ones are tried
timing.py a burst of GEMMs, one by one, and a sustained load; corruption.py whether all results have the same bits
"""

from mltop.probes.active.matmul.child import main

__all__ = ["main"]
