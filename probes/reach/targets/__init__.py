"""From what the user typed to the nodes that are meant, and to the processes that reach them."""

from mltop.probes.reach.targets.nodesets import expand, read_hostfile
from mltop.probes.reach.targets.resolve import TargetOptions, Targets, channels, check_numbers, options_from, resolve

__all__ = [
    "TargetOptions",
    "Targets",
    "channels",
    "check_numbers",
    "expand",
    "options_from",
    "read_hostfile",
    "resolve",
]
