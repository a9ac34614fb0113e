"""Stage 0 of the bootstrap: the one line that a node's login shell is given.

It looks for a Python that is new enough and hands it stdin, from where stage 1 comes (``bundle.opening()``). Root takes
none that others could change. The line means the same to bash, dash, zsh, tcsh and fish: one pair of single quotes
around everything, and within it no newline, no single quote, no ``!`` and no backslash.
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

# Shell functions. `ours PATH`: nobody but root and we may change it, or a folder or a link on the way to it; else $b
# says what it is. As in probes/writable.py: $d is the way so far, $r what is left of it; all up to the next link is
# looked at by one ls. `may PROGRAM`: we may run it. PATH may lead to programs of others, too: the shell's own tools are
# the system's, what is looked for and started gets the login's ($P).
TRUST = (
    "P=$PATH; PATH=/usr/bin:/bin:$PATH; set -f; u=$(id -u); o=$(set -- $(ls -ldn /); echo $3); "
    # In a user namespace that does not know the host's root, its files are nobody's.
    '[ "$o" = 65534 ] || o=0; '
    'others() { ls -ldn "$@" 2>/dev/null | while read -r mode links owner group rest; do '
    'w="can be written by others"; '
    "case $mode in l*|c*|d????????[tT]*) w=;; ????????w*|?????w*+) ;; "
    # Of groups only those that the distribution allocates are known to be empty.
    '?????w*) case $group in ?|??) case $(getent group "$group") in *:) w=;; esac;; esac;; *) w=;; esac; '
    'case $owner in 0|$u|$o) ;; *) w="belongs to uid $owner";; esac; '
    '[ -z "$w" ] || { echo "/${rest#* /} $w"; break; }; done; }; '
    "ours() { r=$1 d= l=40; set -- /; while :; do "
    "while :; do case $r in /*) r=${r#/};; *) break;; esac; done; "
    "c=${r%%/*}; case $r in */*) r=${r#*/};; *) r=;; esac; "
    'case $c in .|"") ;; ..) d=${d%/*};; *) d=$d/$c; set -- "$@" "$d";; esac; '
    '[ -h "$d" ] || [ -z "$r" ] || continue; '
    'b=$(others "$@"); [ -z "$b" ] || return 1; [ -h "$d" ] || return 0; '
    "l=$((l-1)); [ $l -gt 0 ] || return 1; "
    'r=$(readlink "$d")/$r; case $r in /*) d=;; *) d=${d%/*};; esac; set -- /; done; }; '
    'may() { [ "$u" = 0 ] || return 0; case $1 in /*) ours "$1";; *) b="$1 is no full path"; return 1;; esac; }; '
)
# Whether a Python is new enough.
FITS = f'-I -S -c "import sys; sys.exit(sys.version_info < {OLDEST})" </dev/null >/dev/null 2>&1'
# One byte per read, so that what follows stage 1 stays in the pipe for whoever reads next. It stands in double
# quotes inside single quotes: no quotes of its own, no dollar sign.
_READER = (
    f"import os,_signal;_signal.alarm({_DEADLINE_S});"
    f"exec(bytes().join(iter(lambda:os.read(0,1)or os._exit({_EOF_EXIT}),bytes(1))))"
)
# What root did not run is told in letters that need no care in JSON.
_SCRIPT = (
    f"m=$1 t=$2 a=$3 x=; shift 3; {TRUST}"
    "for p in $a; do "
    'q=$(PATH=$P; command -v "$p") || continue; may "$q" || { x=${x:-$q: $b}; continue; }; '
    f'"$q" {FITS} && PATH=$P exec "$q" -I -S -u -c "{_READER}" "$@"; '
    "done; "
    'n=${SLURMD_NODENAME-}; [ -z "$x" ] || x=$(echo " (root runs none that others can change: $x)" | '
    'tr -cd "A-Za-z0-9_./:@()+ -"); '
    f'echo "@MLT1 $((@size@+${{#n}}+${{#x}})) $0$n$m$x$t"; exit {NO_PYTHON_EXIT}'
)
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+-]+")  # "=" alone is special at a word's start in zsh
_UNQUOTABLE = re.compile(r"['!\\\x00-\x1f]")


def remote_command(agent_args: Sequence[str], python: str = "") -> str:
    """The command for ``ssh HOST '...'`` or ``sh -c``; the agent gets ``agent_args``.

    ``python``: the only interpreter to try. Without a suitable one it prints an error frame and exits 97.
    Raises ValueError for a word that not every login shell takes.
    """
    error, fix = no_python(python)
    head = f'{{"kind":"error","fix":{_json(fix)},"node":"'
    middle, tail = f'","error":{_json(error)[:-1]}', '"}'
    script = _SCRIPT.replace("@size@", str(len(head) + len(middle) + len(tail)))
    script = script.replace("for p in $a;", 'for p in "$a";') if python else script
    words = [script, head, middle, tail, python or " ".join(CANDIDATES), *agent_args]
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
