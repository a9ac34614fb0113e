"""Activity of GPUs older than Hopper, from a DCGM that runs anyway: dcgm-exporter, else nv-hostengine through dcgmi.

source (what the agent calls, and its thread), exporter (HTTP), prometheus (its text), dcgmi (the tool as a child),
rows (what both yield, and which GPU a row belongs to), words.

Never an embedded DCGM: the profiling counters have one owner per machine (NVIDIA/DCGM#56).
"""

from mltop.probes.collect.dcgm.source import DcgmSource, Patience, without_filled

__all__ = ["DcgmSource", "Patience", "without_filled"]
