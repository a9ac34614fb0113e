"""Activity of GPUs older than Hopper, from a DCGM that runs anyway: dcgm-exporter, else nv-hostengine through dcgmi.

``source`` is what the agent calls, with its thread; ``readers`` ask the exporter by HTTP, or the tool as a child, and
know which GPU each of their rows belongs to.

Never an embedded DCGM: the profiling counters have one owner per machine (NVIDIA/DCGM#56).
"""

from mltop.probes.collect.dcgm.source import DcgmSource, Patience, without_filled

__all__ = ["DcgmSource", "Patience", "without_filled"]
