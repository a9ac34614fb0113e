"""From what the user typed to the nodes that are meant, and to the processes that reach them."""

from mltop.probes.reach.targets.nodesets import expand, read_hostfile, split_user
from mltop.probes.reach.targets.resolve import (
    TargetOptions,
    Targets,
    channels,
    check_words,
    options_from,
    resolve,
)
from mltop.probes.reach.targets.slurm import job_id

__all__ = [
    "TargetOptions",
    "Targets",
    "channels",
    "check_words",
    "expand",
    "job_id",
    "options_from",
    "read_hostfile",
    "resolve",
    "split_user",
]
