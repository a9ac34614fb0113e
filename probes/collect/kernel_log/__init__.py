"""The kernel's log of this node: what it reported (Xids, OOM kills, hung tasks, …), and every kind of line it has."""

from mltop.probes.collect.kernel_log.scan import kernel_lines
from mltop.probes.collect.kernel_log.source import KernelLogSource, with_nvml_events

__all__ = ["KernelLogSource", "kernel_lines", "with_nvml_events"]
