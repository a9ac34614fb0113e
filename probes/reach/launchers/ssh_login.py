"""The end of an ssh whose remote side never said a word of ours: the login itself, or the login shell, failed."""

from __future__ import annotations

import re

from mltop.probes.reach.ending import Ending, exit_words
from mltop.probes.reach.launchers.remote_command import NO_PYTHON_EXIT
from mltop.probes.reach.launchers.ssh_ending import SSH_FAILED, ssh_ended

_NO_ACCOUNT = re.compile(r"[Tt]his account is (?:currently )?not available")  # nologin(8)


def login_ended(code: int | None, words: str, *, host: str, python: str = "", user: str = "") -> Ending:
    """As ``ssh_ended``, where neither the bootstrap nor the agent was heard: exit codes are the login shell's."""
    if code is None or code < 0 or code in (SSH_FAILED, NO_PYTHON_EXIT):
        return ssh_ended(code, words, host=host, python=python, user=user)
    last = ([line.strip() for line in words.splitlines() if line.strip()] or [""])[-1]
    login = f"-l {user} {host}" if user else host
    locked_out = _NO_ACCOUNT.search(words)
    said = locked_out[0] if locked_out else last
    reason = f"its login shell ended ({exit_words(code)})" + (f": {said}" if said else "")
    return Ending(reason, f"ssh {login} true shows why", retry=not locked_out)
