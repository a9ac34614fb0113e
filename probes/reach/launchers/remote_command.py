"""Stage 0 of the bootstrap: the one line that a node's login shell is given.

It looks for a Python that is new enough and hands it stdin, from where stage 1 comes (``bundle.opening()``). The line
means the same to bash, dash, zsh, tcsh and fish: one pair of single quotes around everything, and within it no
newline, no single quote, no ``!`` and no backslash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

NO_PYTHON_EXIT = 97
OLDEST = (3, 9)
# Names first, newest first; then where clusters keep a Python that is not on a login shell's PATH.
CANDIDATES = (
    "python3",
    *(f"python3.{minor}" for minor in (14, 13, 12, 11, 10, 9)),
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/conda/bin/python3",
    "/opt/miniconda3/bin/python3",
    "/usr/libexec/platform-python",
)
_DEADLINE_S = 20  # for stage 1 to come; then it has its own. A caller or a link that dies meanwhile leaves nothing
_EOF_EXIT = 98

# One byte per read, so that what follows stage 1 stays in the pipe for whoever reads next. It stands in double
# quotes inside single quotes: no quotes of its own, no dollar sign.
_READER = (
    f"import os,_signal;_signal.alarm({_DEADLINE_S});"
    f"exec(bytes().join(iter(lambda:os.read(0,1)or os._exit({_EOF_EXIT}),bytes(1))))"
)
_SCRIPT = (
    "e=$1; shift; c=$1; shift; "
    "for p in $c; do "
    f'"$p" -I -S -c "import sys; sys.exit(sys.version_info < {OLDEST})" </dev/null >/dev/null 2>&1 '
    f'&& exec "$p" -I -S -u -c "{_READER}" "$@"; '
    "done; "
    f'n=${{SLURMD_NODENAME-}}; echo "@MLT1 $((%d+${{#n}})) $0$n$e"; exit {NO_PYTHON_EXIT}'
)
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+-]+")  # "=" alone is special at a word's start in zsh
_UNQUOTABLE = re.compile(r"['!\\\x00-\x1f]")


def remote_command(agent_args: Sequence[str], python: str = "") -> str:
    """The command for ``ssh HOST '...'`` or ``sh -c``; the agent gets ``agent_args``.

    ``python``: the only interpreter to try. Without a suitable one it prints an error frame and exits 97.
    Raises ValueError for a word that not every login shell takes.
    """
    error, fix = no_python(python)
    head = f'{{"kind":"error","error":{_json(error)},"fix":{_json(fix)},"node":"'
    tail = '"}'
    script = _SCRIPT.replace("$c; do", '"$c"; do') if python else _SCRIPT
    words = [script % (len(head) + len(tail)), head, tail, python or " ".join(CANDIDATES), *agent_args]
    return " ".join(["exec /bin/sh -c", *map(_quoted, words)])


def no_python(python: str = "") -> tuple[str, str]:
    """What is wrong on a node where stage 0 ended with 97, and the fix."""
    version = ".".join(map(str, OLDEST))
    if python:
        return f"{python} is no Python {version} or newer on this node", "name another one with --python PATH"
    return f"no Python {version} or newer on this node", "name one with --python PATH"


def _json(text: str) -> str:
    """Without what no shell would keep, and without backslashes."""
    return json.dumps(re.sub(r"[^ -~]|[\"'!\\]", "?", text))


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    found = _UNQUOTABLE.search(word)
    if found:
        raise ValueError(f"{word!r}: has {found.group()!r}, which not every login shell takes (leave it out)")
    return f"'{word}'"
