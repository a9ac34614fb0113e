"""One OpenSSH per node: the user's own program, configuration, keys and jump hosts; the agent installs itself.

The options that are set here: no terminal, no forwarding, no questions, no command but ours, deadlines for connecting
and for silence, and no master connection of ours (the user's own is used, unless it is stuck). Everything else is the
user's: ssh_config(5).
"""

from __future__ import annotations

import functools
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from mltop.probes.reach.bundle import opening
from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.launchers.remote_command import remote_command
from mltop.probes.reach.launchers.ssh_ending import ssh_ended
from mltop.probes.reach.launchers.ssh_login import login_ended
from mltop.probes.reach.launchers.ssh_options import plain_session

SILENCE_S = 20  # an agent ends after so long without a word from the hub
_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=8",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "LogLevel=INFO",  # at ERROR what the server says in a refusal is not shown (pam_slurm_adopt)
    "ControlMaster=no",
)
_ASK_AT_ONCE = 8
_ASK_DEADLINE_S = 5.0  # `Match exec` runs programs of the user's


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One channel per node. Raises UsageProblem for a name that ssh would take for an option, and for words that cannot
    be passed on.
    """
    for node in nodes:
        if node.startswith("-"):
            raise UsageProblem(node, "a node's name cannot begin with a dash", "check the node list")
    routes = routes_to(nodes, options.user)
    try:
        return [_channel(node, options, route) for node, route in zip(nodes, routes, strict=True)]
    except ValueError as error:
        raise UsageProblem("--via ssh", str(error)) from None


def _channel(node: str, options: LaunchOptions, route: Route) -> Channel:
    agent_args = ["--node", node, "--interval", f"{options.interval_s:g}", "--silence", str(SILENCE_S)]
    command = ssh_command(options)
    target = ("--", node, remote_command(agent_args, options.python))
    channel = Channel(
        argv=(*command, *target),
        nodes=(node,),
        via="ssh",
        opening=opening(),
        gate=route.jump,
        ending=functools.partial(ssh_ended, host=node, python=options.python, user=options.user),
        login_ending=functools.partial(login_ended, host=node, python=options.python, user=options.user),
    )
    if not route.shared:
        return channel
    login = ("-l", options.user) if options.user else ()
    return replace(
        channel,
        fallback=replace(channel, argv=(*command, "-o", "ControlPath=none", *target)),
        fallback_fix=f"a stuck ControlMaster: {' '.join(('ssh', '-O', 'exit', *login, node))}",
    )


def ssh_command(options: LaunchOptions) -> list[str]:
    """ssh with everything but the host and the command."""
    command = ["ssh", "-T", "-x", "-a"]
    for option in (*_OPTIONS, *plain_session()):
        command += ["-o", option]
    if options.accept_new:
        command += ["-o", "StrictHostKeyChecking=accept-new"]
    if options.user:
        command += ["-l", options.user]
    return command


@dataclass(frozen=True)
class Route:
    """What the user's configuration says of the way to a node: ``jump``: its jump host, "" for none; ``shared``: a
    master connection of the user's may be used.
    """

    jump: str = ""
    shared: bool = False


def routes_to(nodes: tuple[str, ...], user: str = "") -> list[Route]:
    """One for each node.

    Asking ssh takes 5 ms per name, so names that differ in their digits only are asked about once. A wrong guess
    costs pacing, or a try without a master connection, nothing else.
    """
    kinds = {re.sub(r"\d+", "0", node): node for node in nodes}
    with ThreadPoolExecutor(_ASK_AT_ONCE, thread_name_prefix="mltop-ssh-config") as pool:
        found = dict(zip(kinds, pool.map(lambda node: _route_to(node, user), kinds.values()), strict=True))
    return [found[re.sub(r"\d+", "0", node)] for node in nodes]


def _route_to(node: str, user: str) -> Route:
    command = ["ssh", "-G", *(["-l", user] if user else []), "--", node]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Route()  # connecting says it better
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    jump = settings.get("proxyjump") or settings.get("proxycommand") or ""
    return Route("" if jump.lower() == "none" else jump, settings.get("controlpath", "none").lower() != "none")
