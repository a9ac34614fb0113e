"""The line that runs an agent which is already on the node: for carriers that bring nothing there (pdsh).

Like stage 0 of the bootstrap it means the same to bash, dash, zsh, tcsh and fish: everything in single quotes, and
within them no newline, no single quote and no ``!``; a backslash only before a ``u``.

What lies in the node's cache is checked as the bootstrap does it: the command carries the MANIFEST's hash and the code
that imports by it (``agent/bootstrap/compiled.py``). A bundle that is not whole is passed by as if there were none; it
is repaired by the next run over ssh.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from mltop.probes.agent.protocol import VERSION
from mltop.probes.reach.launchers.remote_command import CANDIDATES, FITS, TRUST
from mltop.probes.spawn import run_text

NO_AGENT_EXIT = 96
ENDED_EXIT = 95  # the agent ended although nobody told it to: 0 would look like nothing at all to the carrier
MISSING = "the agent is not on this node"
MISSING_FIX = "once: mltop snapshot -w {node} (by ssh) puts it into ~/.cache/mltop, or pip install mltop there"

_HASHES = (
    "for word in $hashes; do case $word in "
    '"$(uname -m)":*) hash=${word#*:};; :*) hash=${hash:-${word#:}};; esac; done; '
    "manifest=${hash#*:} hash=${hash%%:*}; "
)
# The caches in the order in which the bootstrap tries them: a real folder of this user's, closed to everybody else,
# which nobody else can put another in place of.
_CACHE = (
    'for root in "${XDG_CACHE_HOME:-$HOME/.cache}/mltop" "${XDG_RUNTIME_DIR:-/run/none}/mltop" '
    "/tmp/mltop-$u /var/tmp/mltop-$u /dev/shm/mltop-$u; do "
    '[ -z "$code" ] && [ -n "$hash" ] && cd -P "$root" 2>/dev/null && [ -O . ] && [ -f "$hash/MANIFEST" ] || continue; '
    'case $(ls -ldn .) in drwx------+*) continue;; drwx------*) ours "$PWD" || continue;; *) continue;; esac; '
    # The one that installed it comes first.
    '[ -f "$hash/python" ] && { [ -h "$hash/python" ] || read -r found <"$hash/python"; }; '
    'for p in "$found" $pythons; do q=$(PATH=$P; command -v "$p") && may "$q" && "$q" @fits@ || continue; '
    'PATH=$P MLTOP_CACHE=$PWD "$q" -I -S -u -c "$start" "$hash" "$manifest" "$@"; code=$?; break; done; '
    f'[ "$code" = {NO_AGENT_EXIT} ] && code=; done; '
)
_PACKAGE = (
    'if [ -z "$code" ] && cd / && q=$(PATH=$P; command -v "$python") && may "$q" && '
    '"$q" -c "import sys; from mltop.probes.agent.protocol import VERSION; '
    f'sys.exit(VERSION - {VERSION})" </dev/null >/dev/null 2>&1; then '
    'PATH=$P "$q" -m mltop.probes.agent "$@"; code=$?; fi; '
)
_MISSING = f'if [ -z "$code" ]; then echo "@MLT1 ${{#missing}} $missing"; exit {NO_AGENT_EXIT}; fi; '
_SCRIPT = (
    "missing=$0 hashes=$1 python=$2 pythons=$3 start=$4 found= hash= code=; shift 4; "
    f"{TRUST}{_HASHES}{_CACHE.replace('@fits@', FITS)}{_PACKAGE}{_MISSING}"
)
# In Python, after the loader: the agent, if all of it is whole.
_START = (
    'import os, sys; folder, manifest = os.environ["MLTOP_CACHE"] + "/" + sys.argv[1], sys.argv[2]; del sys.argv[1:3]; '
    f"import_whole(folder, manifest, {NO_AGENT_EXIT}); from mltop.probes.agent.__main__ import main; main()"
)


def installed_agent(
    node: str,
    agent_args: Sequence[str],
    hashes: Mapping[str, Sequence[str]],
    *,
    loader: bytes = b"",
    python: str = "",
    one_shot: bool = False,
) -> str:
    """The command for a node's login shell.

    ``hashes``: sha256 of this mltop's bundle and of its MANIFEST by machine type, "" for any other; ``loader``: the
    bundle's; ``python``: the interpreter that has mltop where there is no bundle, "" for python3; ``one_shot``: an
    end with exit code 0 is what is expected. A node without an agent answers with one error frame and exit code 96.
    Raises ValueError for a word that not every login shell takes.
    """
    end = "exit $code" if one_shot else f"[ $code = 0 ] && code={ENDED_EXIT}; exit $code"
    missing = {"kind": "error", "node": node, "error": MISSING, "fix": MISSING_FIX.format(node=node)}
    by_machine = " ".join(":".join((machine, *both)) for machine, both in hashes.items())
    start = run_text(loader) + _START
    words = [_SCRIPT + end, plain_json(missing), by_machine, python or "python3", " ".join(CANDIDATES), start]
    return " ".join(["exec /bin/sh -c", *map(_quoted, [*words, *agent_args])])


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
