"""An `ssh` for the PATH whose hosts do what a test wants, one shell line each; nothing leaves this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.fakes import training_node

REFUSED = "echo ssh: connect to host $host port 22: Connection refused >&2; exit 255"
DENIED = "echo me@$host: Permission denied '(publickey)'. >&2; exit 255"
HANGS = "exec sleep 600"


def node(name: str, *options: str) -> str:
    """The shell line of a host that runs a made-up training node."""
    return "exec " + shlex.join(training_node.command(name, *options))


def login(home: Path, shell: str = "/bin/bash", force: str = "", banner: str = "") -> str:
    """The shell line of a host whose sshd gives our command to a login shell, or ``force`` in place of it."""
    said = f"printf '%b\\n' {shlex.quote(banner)} >&2; " if banner else ""
    clean = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SSH_CLIENT": "192.0.2.1 1 22"}
    words = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in clean.items())])
    command = shlex.quote(force) if force else '"${@: -1}"'
    return f'{said}cd {home}; exec {words} SSH_ORIGINAL_COMMAND="${{@: -1}}" {shell} -c {command}'


def fake_ssh(directory: Path, hosts: Mapping[str, str]) -> dict[str, str]:
    """An environment in which ``ssh`` runs the line of its host; $host is its name. Names may be shell patterns."""
    cases = "\n".join(f"{pattern}) {line} ;;" for pattern, line in hosts.items())
    program = directory / "ssh"
    program.write_text(
        "#!/bin/bash\n"
        '[ "$1" = -V ] && { echo "OpenSSH_9.9p9 (fake)" >&2; exit 0; }\n'
        '[ "$1" = -G ] && exit 0\n'
        'host="${@: -2:1}"\n'
        f'case "$host" in\n{cases}\n*) echo "no such host here: $host" >&2; exit 255 ;;\nesac\n'
    )
    program.chmod(0o755)
    (directory / "cache").mkdir(exist_ok=True)  # without it an agent's cache would be left in /tmp
    path = f"{directory}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **training_node.environment(), "PATH": path, "XDG_CACHE_HOME": str(directory / "cache")}
