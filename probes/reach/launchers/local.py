"""This machine: the agent as a child process, with the very interpreter and packages that run mltop."""

from __future__ import annotations

from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.system.spawn import python_command


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One agent per name; several names give several agents of the same machine (tests, demo)."""
    return [
        Channel(
            argv=tuple(
                python_command(
                    "mltop.probes.agent.__main__",
                    "--node",
                    node,
                    "--interval",
                    str(options.interval_s),
                    python=options.python,
                )
            ),
            nodes=(node,),
        )
        for node in nodes
    ]
