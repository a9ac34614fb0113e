"""The line that runs an agent which is already on the node: for carriers that bring nothing there (pdsh).

Like stage 0 of the bootstrap it means the same to bash, dash, zsh, tcsh and fish: everything in single quotes, and
within them no newline, no single quote and no ``!``; a backslash only before a ``u``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from mltop.probes.agent.protocol import VERSION

NO_AGENT_EXIT = 96
ENDED_EXIT = 95  # the agent ended although nobody told it to: 0 would look like nothing at all to the carrier
MISSING = "the agent is not on this node"
MISSING_FIX = "once: mltop snapshot -w {node} (by ssh) puts it into ~/.cache/mltop, or pip install mltop there"

_HASH = (
    "for word in $hashes; do case $word in "
    '"$(uname -m)":*) hash=${word#*:};; :*) hash=${hash:-${word#:}};; esac; done; '
)
# The caches in the order in which the bootstrap tries them. The folder is entered before it is judged, so that
# nobody can exchange it in between: a real one of this user's, closed to everybody else.
_CACHE = (
    'for root in "${XDG_CACHE_HOME:-$HOME/.cache}/mltop" "${XDG_RUNTIME_DIR:-/run/none}/mltop" '
    "/tmp/mltop-$u /var/tmp/mltop-$u /dev/shm/mltop-$u; do "
    '[ -z "$code" ] && [ -n "$hash" ] && cd -P "$root" 2>/dev/null && [ -O . ] && [ -f "$hash/agent" ] || continue; '
    "case $(ls -ldn .) in drwx------+*) ;; "
    'drwx------*) sh "$PWD/$hash/agent" "$@"; code=$?;; esac; done; '
)
_PACKAGE = (
    'if [ -z "$code" ] && cd / && "$python" -c "import sys; from mltop.probes.agent.protocol import VERSION; '
    f'sys.exit(VERSION - {VERSION})" </dev/null >/dev/null 2>&1; then '
    '"$python" -m mltop.probes.agent "$@"; code=$?; fi; '
)
_MISSING = f'if [ -z "$code" ]; then echo "@MLT1 ${{#missing}} $missing"; exit {NO_AGENT_EXIT}; fi; '
_SCRIPT = f"missing=$0 hashes=$1 python=$2 u=$(id -u) hash= code=; shift 2; {_HASH}{_CACHE}{_PACKAGE}{_MISSING}"


def installed_agent(
    node: str, agent_args: Sequence[str], hashes: Mapping[str, str], python: str = "", one_shot: bool = False
) -> str:
    """The command for a node's login shell.

    ``hashes``: sha256 of this mltop's bundle by machine type, "" for any other; ``python``: the interpreter that has
    mltop where there is no bundle, "" for python3; ``one_shot``: an end with exit code 0 is what is expected. A node
    without an agent answers with one error frame and exit code 96. Raises ValueError for a word that not every login
    shell takes.
    """
    end = "exit $code" if one_shot else f"[ $code = 0 ] && code={ENDED_EXIT}; exit $code"
    missing = {"kind": "error", "node": node, "error": MISSING, "fix": MISSING_FIX.format(node=node)}
    by_machine = " ".join(f"{machine}:{sha256}" for machine, sha256 in hashes.items())
    words = [_SCRIPT + end, plain_json(missing), by_machine, python or "python3", *agent_args]
    return " ".join(["exec /bin/sh -c", *map(_quoted, words)])


def plain_json(value: object) -> str:
    """JSON without a character that any login shell treats specially inside single quotes."""
    text = re.sub(r'\\(["\\bfnrt])', lambda found: _code(json.loads(f'"{found[0]}"')), json.dumps(value))
    return text.replace("'", _code("'")).replace("!", _code("!"))


def _code(character: str) -> str:
    return f"\\u{ord(character):04x}"


def _quoted(word: str) -> str:
    found = re.search(r"['!\x00-\x1f]|\\(?!u)", word)
    if found:
        raise ValueError(f"{word!r}: has {found.group()!r}, which not every login shell takes (leave it out)")
    return f"'{word}'"
