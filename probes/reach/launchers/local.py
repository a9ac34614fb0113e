"""This machine: the agent as a child process, with the interpreter and packages that run mltop, or as on a node with
another interpreter, which may have none of them.
"""

from __future__ import annotations

from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.launchers.remote_command import remote_command
from mltop.probes.system.spawn import python_command


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One agent per name; several names give several agents of the same machine (tests, demo)."""
    return [_channel(node, options) for node in nodes]


def _channel(node: str, options: LaunchOptions) -> Channel:
    agent_args = ("--node", node, *options.agent_args)
    if options.python:
        from mltop.probes.reach.bundle import opening_soon  # takes a while to import; our own interpreter needs none

        return Channel(
            ("/bin/sh", "-c", remote_command(agent_args, options.python)),
            (node,),
            opening=opening_soon(options.read_only),
        )
    return Channel(tuple(python_command("mltop.probes.agent.__main__", *agent_args)), (node,))
