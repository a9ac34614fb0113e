"""The processes to start for what was resolved. A launcher is imported when a node needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.targets.options import TargetOptions
from mltop.probes.reach.targets.resolve import Targets


def channels(targets: Targets, options: TargetOptions) -> list[Channel]:
    """What the hub is to start. ``options`` are those that ``targets`` were resolved from."""
    launch_options = LaunchOptions(options.interval_s, options.python, targets.user, options.accept_new)
    found: list[Channel] = []
    for route in targets.routes:
        found += launcher(route.via)(route.nodes, replace(launch_options, job=route.job))
    return found


def launcher(via: str) -> Callable[[tuple[str, ...], LaunchOptions], list[Channel]]:
    """The ``launch`` of one launcher; only that one is imported."""
    if via == "local":
        from mltop.probes.reach.launchers import local

        return local.launch
    if via == "ssh":
        from mltop.probes.reach.launchers import ssh

        return ssh.launch
    if via == "pdsh":
        from mltop.probes.reach.launchers import pdsh

        return pdsh.launch
    from mltop.probes.reach.launchers import srun

    return srun.launch
