"""One OpenSSH per node: the user's own program, configuration, keys and jump hosts; the agent installs itself.

The options that are set here: no terminal, no forwarding, no questions, no command but ours, deadlines for connecting
and for silence, and no master connection of ours (the user's own is used, unless it is stuck). Everything else is the
user's: ssh_config(5).

What ssh's last output means: the words are OpenSSH's (sshconnect.c, sshconnect2.c, packet.c, clientloop.c) and
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
from mltop.probes.reach.bundle import opening_soon
from mltop.probes.reach.channel import (
    CONNECT_S,
    SILENCE_S,
    Channel,
    Ending,
    LaunchOptions,
    Meaning,
    agent_ended,
    ending_by,
    exit_words,
)
from mltop.probes.reach.launchers.remote_command import EOF_EXIT, NO_PYTHON_EXIT, no_python, remote_command
from mltop.probes.reach.programs import run_program

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
_DEADLINE_S = 5.0  # to say its options: `Match exec` runs programs of the user's


def plain_session() -> tuple[str, ...]:
    """The options that make every host's session a command with stdin, as far as the ssh of this machine has them."""
    program = shutil.which("ssh")
    return (NO_FORWARDS, *(_supported(program) if program else ()))


@functools.cache
def _supported(program: str) -> tuple[str, ...]:
    """Those that this ssh takes: it refuses options that it does not know. IgnoreUnknown would hide the user's mistakes
    too.
    """
    for options in ((*_SINCE_7_6, *_SINCE_8_7), _SINCE_7_6):
        words = [word for option in options for word in ("-o", option)]
        try:
            command = (program, "-G", "-F", "/dev/null", *words, "--", "localhost")
            if run_program(command, _DEADLINE_S).returncode == 0:
                return options
        except (OSError, subprocess.TimeoutExpired):
            return ()
    return ()


SSH_FAILED = 255


# The first one that fits: those that say why stand before those that only say that the connection is gone.
_MEANINGS = (
    Meaning(
        r"Access denied by pam_slurm_adopt|you have no active jobs on this node",
        "Slurm admits only users with a job on this node",
        "--via srun, from inside the job",
        False,
    ),
    Meaning(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed",
        "its host key is not the known one",
        "if it was reinstalled: ssh-keygen -R {host}",
        False,
    ),
    Meaning(
        r"Host key verification failed|No \S+ host key is known for",
        "its host key is not known here",
        "ssh {login} once by hand, or --accept-new",
        False,
    ),
    Meaning(
        r"channel \d+: open failed: (?:administratively prohibited|connect failed): (.*)",
        "its jump host cannot reach it: {1}",
    ),
    Meaning(r"Permission denied \(([^)]*)\)", "login refused ({1})", "ssh {login} once by hand; ssh-add -l", False),
    Meaning(
        r": Too many authentication failures", "login refused: too many keys were tried", "IdentitiesOnly=yes", False
    ),
    Meaning(r"(?m)^User .* not allowed|[Aa]ccess denied for", "login refused", "ssh {login} shows why", False),
    Meaning(r"Bad configuration option|[Bb]ad owner or permissions|terminating, \d+ bad", "ssh: {line}", "", False),
    Meaning(r"Could not resolve hostname|Name or service not known", "unknown host name", "check the name"),
    Meaning(r"Unable to negotiate|no matching .* found", "ssh: {line}", "ssh -v {login}", False),
    Meaning(r"[Cc]onnection timed out|Operation timed out", "no answer to a connection (timed out)"),
    Meaning(r"Connection refused", "connection refused: no sshd is listening"),
    Meaning(r"No route to host|Network is unreachable", "no route to it"),
    Meaning(
        r"kex_exchange_identification|Exceeded MaxStartups|[Cc]onnection (?:closed|reset).*(?:banner|preauth)",
        "sshd closed the connection before the login (too many at once?)",
    ),
    Meaning(
        r"Timeout, server .* not responding", f"the link is dead: it did not answer for {_ALIVE_S * _MOST_SILENT} s"
    ),
    Meaning(r"Connection to .* closed|[Cc]onnection (?:closed|reset)|Broken pipe", "the connection was closed"),
)


def ssh_ended(code: int | None, output: str, *, host: str, python: str = "", user: str = "") -> Ending:
    """The end of an ssh process. 255 is ssh's own failure; everything else is the remote command's.

    ``output``: all of it, not one line only: what the server gives as its reason stands before ssh's line that the
    connection is closed. ``user``: the login name that was given.
    """
    if code == NO_PYTHON_EXIT:
        return Ending(*no_python(python))
    if code == EOF_EXIT:
        return Ending("its stdin was closed before the agent had arrived", "look at its start-up files: exec, stdin")
    if code != SSH_FAILED:
        return agent_ended(code, output)
    login = f"-l {user} {host}" if user else host
    ending = ending_by(_MEANINGS, output, host=host, login=login)
    if ending is not None:
        return ending
    last = complaint(output)
    reason = f"ssh failed: {last}" if last else "ssh, or what it ran there, ended without a word (exit code 255)"
    return Ending(reason, f"ssh {login} shows why")


_ONLY_INTERACTIVE = "let start-up files do that in interactive shells only: [ -t 0 ] || return"
# What login shells and sshd say that run no command of ours.
_LOGINS = (
    Meaning(r"[Tt]his account is (?:currently )?not available.*", "no logins: {0}", "", False),
    Meaning(r"[Tt]his service allows sftp connections only", "its sshd allows nothing but sftp", "", False),
    Meaning(r"(?m)^fatal: .*(?:git shell|git-shell|unrecognized command)", "its login shell is git-shell", "", False),
    Meaning(r"(?m): restricted(?:: cannot .*)?$", "its login shell is restricted and runs no other", "", False),
    Meaning(
        r"(?m)^(?:open terminal failed|Must be connected to a terminal|the input device is not a TTY)",
        "a start-up file of its login shell starts tmux, screen or a container: {line}",
        _ONLY_INTERACTIVE,
    ),
)


def login_ended(
    code: int | None, output: str, of_eof: bool = False, *, host: str, python: str = "", user: str = ""
) -> Ending:
    """The end of an ssh process of which nothing of ours was heard: the code is the login shell's.

    ``of_eof``: it did nothing until its stdin was closed. Other shells end then with another code than stage 0, and
    what hangs does not end.
    """
    if code is None or code < 0 or code in (SSH_FAILED, NO_PYTHON_EXIT):
        return ssh_ended(code, output, host=host, python=python, user=user)
    ending = ending_by(_LOGINS, output)
    if ending is not None:
        return ending
    if code == EOF_EXIT:
        does = "starts what reads stdin (a shell, read, cat?)" if of_eof else "redirects stdout (exec >FILE?)"
        return Ending(f"a start-up file of its login shell {does}", _ONLY_INTERACTIVE)
    if of_eof:
        reason = (
            "its login shell runs another shell or program, not mltop's command (exec in ~/.bashrc, forced command?)"
        )
        return Ending(reason, _ONLY_INTERACTIVE)
    login = f"-l {user} {host}" if user else host
    last = complaint(output)
    reason = f"its login shell ended before mltop's command ran ({exit_words(code)})" + (f": {last}" if last else "")
    return Ending(reason, f"ssh {login} echo ok must print ok: look for exit, exec or a forced command")


# "bash: line 1: x: command not found", "client_loop: send disconnect: Broken pipe", "MemoryError", "Killed".
_COMPLAINT = re.compile(
    r"^(?:(?:ssh|[a-z]+(?:_[a-z]+)+)\S*: .+|(?:-?[a-z][\w.+-]*|/\S+):.*"
    r"(?:not found|[Nn]o such|[Cc]an(?:no|')t |denied|[Ff]ailed|[Ii]nvalid|[Ee]rror|not permitted|[Rr]ead-only"
    r"|[Nn]o space|exceeded|[Tt]oo many|not a |unavailable|mismatch).*"
    r"|\w+(?:Error|Exception)\b.*|Killed|Terminated|Aborted|Segmentation fault.*)$"
)


def complaint(output: str) -> str:
    """The last line in which a program says what went wrong, "" for none: a banner is no cause."""
    return next((line for line in map(str.strip, reversed(output.splitlines())) if _COMPLAINT.match(line)), "")


_ASK_AT_ONCE = 8


def launch(nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
    """One channel per node. Raises UsageProblem for a name that ssh would take for an option."""
    for node in nodes:
        if node.startswith("-"):
            raise UsageProblem(node, "a node's name cannot begin with a dash", "check the node list")
    routes = routes_to(nodes, options.user)
    return [_channel(node, options, route) for node, route in zip(nodes, routes, strict=True)]


def _channel(node: str, options: LaunchOptions, route: Route) -> Channel:
    agent_args = ["--node", node, *options.agent_args, "--silence", str(SILENCE_S)]
    command = ssh_command(options)
    target = ("--", node, remote_command(agent_args, options.python))
    ending = functools.partial(ssh_ended, host=node, python=options.python, user=options.user)
    channel = Channel(
        argv=(*command, *target),
        nodes=(node,),
        via="ssh",
        opening=opening_soon(options.read_only),
        gate=route.jump,
        ending=ending,
        login_ending=functools.partial(login_ended, **ending.keywords),
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
    """The route to each node, in their order.

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
        lines = run_program(command, _DEADLINE_S).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return Route()  # connecting says it better
    settings = dict(line.split(" ", 1) for line in lines if " " in line)
    jump = settings.get("proxyjump") or settings.get("proxycommand") or ""
    return Route("" if jump.lower() == "none" else jump, settings.get("controlpath", "none").lower() != "none")
