"""The matmul probe's process: ``main()`` of child.py, which goes through the stages.

gemm.py   the GEMM of each data type and its operands; shapes.py which ones are tried
timing.py a burst of GEMMs, one by one, and a sustained load; corruption.py whether all results have the same bits
code_path.py  which library and instructions did the work
"""

from mltop.probes.active.matmul.child import main

__all__ = ["main"]
