"""One OpenSSH per node: the user's own program, configuration, keys and jump hosts; the agent installs itself.

The options that are set here: no terminal, no forwarding, no questions, no command but ours, deadlines for connecting
and for silence, and no master connection of ours (the user's own is used, unless it is stuck). Everything else is the
user's: ssh_config(5).

What ssh's last words mean: they are OpenSSH's (sshconnect.c, sshconnect2.c, packet.c, clientloop.c) and
pam_slurm_adopt's. Authentication and host keys are not tried again: since OpenSSH 9.8 a server shuts out an address
that fails often (PerSourcePenalties in sshd_config(5)).
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.bundle import opening
from mltop.probes.reach.channel import (
    CONNECT_S,
    SILENCE_S,
    Channel,
    Ending,
    LaunchOptions,
    Meaning,
    agent_ended,
    exit_words,
    meant,
)
from mltop.probes.reach.launchers.remote_command import NO_PYTHON_EXIT, no_python, remote_command

# One that is told to listen on a port, or to start tmux, is for one session of the user's, not for every node.
NO_FORWARDS = "ClearAllForwardings=yes"
_ALIVE_S, _MOST_SILENT = 5, 3  # ssh asks a server that says nothing every so many seconds, and so many times
OPTIONS = (
    "BatchMode=yes",
    f"ServerAliveInterval={_ALIVE_S}",
    f"ServerAliveCountMax={_MOST_SILENT}",
    "LogLevel=INFO",  # at ERROR what the server says in a refusal is not shown (pam_slurm_adopt)
    "ControlMaster=no",  # one that an ssh of ours starts would hold its pipes open
)
_SINCE_7_6 = ("RemoteCommand=none",)
_SINCE_8_7 = ("SessionType=default", "StdinNull=no", "ForkAfterAuthentication=no")
_DEADLINE_S = 5.0


def plain_session() -> tuple[str, ...]:
    """The options that make every host's session a command with stdin, as far as the ssh of this machine has them."""
    program = shutil.which("ssh")
    return (NO_FORWARDS, *(_known(program) if program else ()))


@functools.cache
def _known(program: str) -> tuple[str, ...]:
    """An ssh refuses options that it does not know. IgnoreUnknown would hide the user's mistakes too."""
    for options in ((*_SINCE_7_6, *_SINCE_8_7), _SINCE_7_6):
        words = [word for option in options for word in ("-o", option)]
        try:
            done = subprocess.run(
                [program, "-G", "-F", "/dev/null", *words, "--", "localhost"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_DEADLINE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ()
        if done.returncode == 0:
            return options
    return ()


SSH_FAILED = 255


# The first one that fits: those that say why stand before those that only say that the connection is gone.
_MEANINGS = tuple(
    Meaning(*row)
    for row in (
        (
            r"Access denied by pam_slurm_adopt|you have no active jobs on this node",
            "Slurm admits only users with a job on this node",
            "--via srun, from inside the job",
            False,
        ),
        (
            r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed",
            "its host key is not the known one",
            "if it was reinstalled: ssh-keygen -R {host}",
            False,
        ),
        (
            r"Host key verification failed|No \S+ host key is known for",
            "its host key is not known here",
            "ssh {login} once by hand, or --accept-new",
            False,
        ),
        (
            r"channel \d+: open failed: (?:administratively prohibited|connect failed): (.*)",
            "its jump host cannot reach it: {1}",
        ),
        (r"Permission denied \(([^)]*)\)", "login refused ({1})", "ssh {login} once by hand; ssh-add -l", False),
        (r"Too many authentication failures", "login refused: too many keys were tried", "IdentitiesOnly=yes", False),
        (r"User .* not allowed|[Aa]ccess denied", "login refused", "ssh {login} shows why", False),
        (r"Bad configuration option|[Bb]ad owner or permissions|terminating, \d+ bad", "ssh: {line}", "", False),
        (r"Could not resolve hostname|Name or service not known", "unknown host name", "check the name"),
        (r"Unable to negotiate|no matching .* found", "ssh: {line}", "ssh -v {login}", False),
        (r"[Cc]onnection timed out|Operation timed out", "no answer to a connection (timed out)"),
        (r"Connection refused", "connection refused: no sshd is listening"),
        (r"No route to host|Network is unreachable", "no route to it"),
        (
            r"kex_exchange_identification|Exceeded MaxStartups|[Cc]onnection (?:closed|reset).*(?:banner|preauth)",
            "sshd closed the connection before the login (too many at once?)",
        ),
        (r"Timeout, server .* not responding", f"the link is dead: it did not answer for {_ALIVE_S * _MOST_SILENT} s"),
        (r"Connection to .* closed|[Cc]onnection (?:closed|reset)|Broken pipe", "the connection was closed"),
    )
)


def ssh_ended(code: int | None, words: str, *, host: str, python: str = "", user: str = "") -> Ending:
    """An ssh process's end. 255 is ssh's own failure; everything else is the remote command's.

    ``words``: all that it said last, not one line only: what the server gives as its reason stands before ssh's line
    that the connection is closed. ``user``: the login name that was given.
    """
    login = f"-l {user} {host}" if user else host
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if code == NO_PYTHON_EXIT:
        return Ending(*no_python(python))
    if code != SSH_FAILED:
        return agent_ended(code, lines[-1] if lines else "")
    ending = meant(_MEANINGS, words, host=host, login=login)
    if ending is not None:
        return ending
    reason = f"ssh failed: {lines[-1]}" if lines else "the agent was killed, or ssh failed without a word"
    return Ending(reason, f"ssh {login} shows why")


_NO_ACCOUNT = re.compile(r"[Tt]his account is (?:currently )?not available")  # nologin(8)


def login_ended(code: int | None, words: str, *, host: str, python: str = "", user: str = "") -> Ending:
    """As ``ssh_ended``, where neither the bootstrap nor the agent was heard: exit codes are the login shell's."""
    if code is None or code < 0 or code in (SSH_FAILED, NO_PYTHON_EXIT):
        return ssh_ended(code, words, host=host, python=python, user=user)
    last = ([line.strip() for line in words.splitlines() if line.strip()] or [""])[-1]
    login = f"-l {user} {host}" if user else host
    locked_out = _NO_ACCOUNT.search(words)
    reason_said = locked_out[0] if locked_out else last
    reason = f"its login shell ended ({exit_words(code)})" + (f": {reason_said}" if reason_said else "")
    return Ending(reason, f"ssh {login} true shows why", retry=not locked_out)


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
    for option in (*OPTIONS, f"ConnectTimeout={CONNECT_S}", *plain_session()):
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
        route_of_kind = dict(zip(kinds, pool.map(lambda node: _route_to(node, user), kinds.values()), strict=True))
    return [route_of_kind[re.sub(r"\d+", "0", node)] for node in nodes]


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
