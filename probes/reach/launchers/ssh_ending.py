"""What ssh's last words mean, and whether trying again can help.

The words are OpenSSH's (sshconnect.c, sshconnect2.c, packet.c, clientloop.c) and pam_slurm_adopt's. Authentication
and host keys are not tried again: since OpenSSH 9.8 a server shuts out an address that fails often
(PerSourcePenalties in sshd_config(5)).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mltop.probes.reach.ending import Ending, agent_ended
from mltop.probes.reach.launchers.remote_command import NO_PYTHON_EXIT, no_python

SSH_FAILED = 255


@dataclass(frozen=True)
class _Meaning:
    """``pattern`` is searched for in ssh's words; {host} stands for the node's name, {login} for
    that and the user, {line} for the words' line, {1} for the first group.
    """

    pattern: str
    reason: str
    fix: str = ""
    retry: bool = True


# The first one that fits: those that say why stand before those that only say that the connection is gone.
_MEANINGS = tuple(
    _Meaning(*row)
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
        (r"Timeout, server .* not responding", "the link is dead: it did not answer for 15 s"),
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
    for meaning in _MEANINGS:
        match = re.search(meaning.pattern, words)
        if match:
            values = {"host": host, "login": login, "line": _line_of(words, match.start())}
            return Ending(_filled(meaning.reason, match, values), _filled(meaning.fix, match, values), meaning.retry)
    reason = f"ssh failed: {lines[-1]}" if lines else "the agent was killed, or ssh failed without a word"
    return Ending(reason, f"ssh {login} shows why")


def _filled(text: str, match: re.Match[str], values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text.replace("{1}", match.group(1)) if match.re.groups else text


def _line_of(words: str, at: int) -> str:
    return words[words.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()
