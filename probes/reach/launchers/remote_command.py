"""The one line that a node's login shell is given: to start the bootstrap, or an agent that is already there.

``remote_command`` is stage 0 of the bootstrap. It looks for a Python that can run the agent, says so with a frame, and
hands it stdin. Only then is stage 1 sent (``bundle.opening()``): a shell that a start-up file started would run it as
commands. ``installed_agent`` is for carriers that bring nothing there (pdsh). The bundle in the node's cache is checked
as the bootstrap does it: the command carries its hash and the code that imports it (``agent/bootstrap/zipped.py``).
One that is not whole is passed by as if there were none; it is repaired by the next run over ssh. Neither takes for
root what others could change.

The lines mean the same to bash, dash, zsh, tcsh and fish: everything in single quotes, and within them no newline, no
single quote and no ``!``; no backslash, or one before a ``u`` only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from mltop.probes.agent.protocol import VERSION
from mltop.probes.system.spawn import run_text

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
_DEADLINE_S = 90  # for stage 1 to come, after the slowest node of an srun; then it has its own deadlines
EOF_EXIT = 98
FIX = "name another one with --python PATH, or install one there: apt install python3, dnf install python3.11"

# Shell functions. `ours PATH`: nobody but root and we may change it, or a folder or a link on the way to it; else $b
# says what it is. As in probes/system/writable.py: $d is the way so far, $r what is left of it; all up to the next
# link is looked at by one ls. `may PROGRAM`: we may run it. PATH may lead to programs of others, too: the shell's own
# tools are the system's, what is looked for gets the login's ($P), and so does what is started ($E) but for root: a
# wrapper (pyenv's shims) takes its own tools from it. `fits PROGRAM`: it is a Python that can run the agent, with the
# modules that Debian's python3-minimal and Pythons built without their libraries lack; else $r says what is wrong. What
# is no Python cannot print that product: not even an echo of the question.
TRUST = (
    "P=$PATH; PATH=/usr/bin:/bin:$PATH; set -f; u=$(id -u); E=$P; case $u in 0) E=$PATH;; esac; "
    "o=$(set -- $(ls -ldn /); echo $3); "
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
    'fits() { r=$(PATH=$E "$1" -I -S -c "import sys; '
    f"sys.version_info < {OLDEST} and sys.exit(sys.version.split()[0]); "
    # Found, not imported: that would take longer than all the rest.
    "[any(f.find_spec(m) for f in sys.meta_path) or __import__(m) for m in sys.argv[1:]]; print(6 * 7)"
    '" _ctypes ctypes hmac json zlib 2>&1 </dev/null) && case $r in *42) return 0;; esac; '
    'case $r in Unknown*) r=2;; *) r=$(echo "$r" | tail -n 1 | cut -c 1-100);; esac; '
    'r=${r##*Error: }; case $r in [23]|[23].*) r="is Python $r";; *) r="does not work: ${r:-it says nothing}";; esac; '
    "return 1; }; "
)
# One byte per read, so that what follows stage 1 stays in the pipe for whoever reads next. It stands in double
# quotes inside single quotes: no quotes of its own, no dollar sign.
_READER = (
    f"import os,_signal;_signal.alarm({_DEADLINE_S});"
    f"exec(bytes().join(iter(lambda:os.read(0,1)or os._exit({EOF_EXIT}),bytes(1))))"
)
# Frames: @MLT1 and a size that only a shell works out, so that a command line which is printed is none. What is wrong
# with Pythons is written in letters that need no care in JSON.
_SCRIPT = (
    f"m=$1 t=$2 a=$3 h=$4 e=$5 n=${{SLURMD_NODENAME-}} x=; shift 5; {TRUST}"
    "for p in $a; do "
    'q=$(PATH=$P; command -v "$p") || continue; '
    'may "$q" || { x="$x; root does not run $q: $b"; continue; }; '
    'fits "$q" && echo "@MLT1 $((@hello@+${#n})) $h$n$t" && '
    f'PATH=$E exec "$q" -I -S -u -c "{_READER}" "$@"; '
    'w=${e:+it}; case $x in *"$r"*) ;; *) x="$x; ${w:-$q} $r";; esac; '
    "done; x=${x:-$e}; "
    '[ -z "$x" ] || x=$(echo ": ${x#; }" | tr -cd "A-Za-z0-9_./:;,@()+ -" | cut -c 1-400); '
    f'echo "@MLT1 $((@error@+${{#n}}+${{#x}})) $0$n$m$x$t"; exit {NO_PYTHON_EXIT}'
)
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+-]+")  # "=" alone is special at a word's start in zsh
_UNQUOTABLE = re.compile(r"['!\\\x00-\x1f]")
_NOT_IN_JSON = re.compile(r"['!\x00-\x1f]|\\(?!u)")


def remote_command(agent_args: Sequence[str], python: str = "") -> str:
    """The command for ``ssh HOST '...'`` or ``sh -c``; the agent gets ``agent_args``.

    ``python``: the only interpreter to try. Without a suitable one it prints an error frame and exits 97.
    Raises ValueError for a word that not every login shell takes.
    """
    error, fix = no_python(python)
    head = f'{{"kind":"error","fix":{_json(fix)},"node":"'
    middle, tail = f'","error":{_json(error)[:-1]}', '"}'
    hello, absent = '{"kind":"stage0","node":"', "; it is not there" if python else ""
    script = _SCRIPT.replace("@error@", str(len(head) + len(middle) + len(tail)))
    script = script.replace("@hello@", str(len(hello) + len(tail)))
    script = script.replace("for p in $a;", 'for p in "$a";') if python else script
    words = [script, head, middle, tail, python or " ".join(CANDIDATES), hello, absent, *agent_args]
    quoted = (word if _PLAIN.fullmatch(word) else _quoted(word, _UNQUOTABLE) for word in words)
    return " ".join(["exec /bin/sh -c", *quoted])


def no_python(python: str = "") -> tuple[str, str]:
    """What is wrong on a node where stage 0 ended with 97, and the fix."""
    version = ".".join(map(str, OLDEST))
    return f"{python + ' is ' if python else ''}no Python {version} or newer on this node", FIX


def _json(text: str) -> str:
    """JSON of a text, without what no shell would keep, and without backslashes."""
    return json.dumps(re.sub(r"[^ -~]|[\"'!\\]", "?", text))


def _quoted(word: str, unquotable: re.Pattern[str]) -> str:
    odd = unquotable.search(word)
    if odd:
        raise ValueError(f"{word!r}: has {odd.group()!r}, which not every login shell takes (leave it out)")
    return f"'{word}'"


NO_AGENT_EXIT = 96
ENDED_EXIT = 95  # the agent ended although nobody told it to: 0 would look like nothing at all to the carrier
MISSING = "the agent is not on this node"
MISSING_FIX = "once: mltop snapshot -w {node} (by ssh) puts it into ~/.cache/mltop, or pip install mltop there"

_HASHES = (
    "for word in $hashes; do case $word in "
    '"$(uname -m)":*) hash=${word#*:};; :*) hash=${hash:-${word#:}};; esac; done; '
)
# The caches in the order in which the bootstrap tries them: a real folder of this user's, closed to everybody else,
# which nobody else can put another in place of.
_CACHE = (
    'for root in "${XDG_CACHE_HOME:-$HOME/.cache}/mltop" "${XDG_RUNTIME_DIR:-/run/none}/mltop" '
    "/tmp/mltop-$u /var/tmp/mltop-$u /dev/shm/mltop-$u; do "
    '[ -z "$code" ] && [ -n "$hash" ] && cd -P "$root" 2>/dev/null && [ -O . ] || continue; '
    '[ -f "$hash/bundle.zip" ] || continue; '
    'case $(ls -ldn .) in drwx------+*) continue;; drwx------*) ours "$PWD" || continue;; *) continue;; esac; '
    # The one that installed it comes first.
    '[ -f "$hash/python" ] && { [ -h "$hash/python" ] || read -r found <"$hash/python"; }; '
    'for p in "$found" $pythons; do q=$(PATH=$P; command -v "$p") && may "$q" && fits "$q" || continue; '
    'PATH=$E MLTOP_CACHE=$PWD "$q" -I -S -u -c "$start" "$hash" "$@"; code=$?; break; done; '
    f'[ "$code" = {NO_AGENT_EXIT} ] && code=; done; '
)
_PACKAGE = (
    'if [ -z "$code" ] && cd / && q=$(PATH=$P; command -v "$python") && may "$q" && '
    '"$q" -c "import sys; from mltop.probes.agent.protocol import VERSION; '
    f'sys.exit(VERSION - {VERSION})" </dev/null >/dev/null 2>&1; then '
    'PATH=$E "$q" -m mltop.probes.agent "$@"; code=$?; fi; '
)
_MISSING = f'if [ -z "$code" ]; then echo "@MLT1 ${{#missing}} $missing"; exit {NO_AGENT_EXIT}; fi; '
_INSTALLED_SCRIPT = (
    "missing=$0 hashes=$1 python=$2 pythons=$3 start=$4 found= hash= code=; shift 4; "
    f"{TRUST}{_HASHES}{_CACHE}{_PACKAGE}{_MISSING}"
)
# In Python, after the loader: the agent, if all of it is whole.
_START = (
    f'import os, sys; import_installed(os.environ["MLTOP_CACHE"], sys.argv.pop(1), {NO_AGENT_EXIT}); '
    "from mltop.probes.agent.__main__ import main; main()"
)


def installed_agent(
    node: str,
    agent_args: Sequence[str],
    hashes: Mapping[str, str],
    *,
    loader: bytes = b"",
    python: str = "",
    one_shot: bool = False,
) -> str:
    """The command for a node's login shell.

    ``hashes``: sha256 of this mltop's bundle by machine type, "" for any other; ``loader``: the code that imports it;
    ``python``: the interpreter that has mltop where there is no bundle, "" for python3; ``one_shot``: an end with exit
    code 0 is what is expected. A node without an agent answers with one error frame and exit code 96.
    Raises ValueError for a word that not every login shell takes.
    """
    end = "exit $code" if one_shot else f"[ $code = 0 ] && code={ENDED_EXIT}; exit $code"
    missing = {"kind": "error", "node": node, "error": MISSING, "fix": MISSING_FIX.format(node=node)}
    by_machine = " ".join(map(":".join, hashes.items()))
    start = run_text(loader) + _START
    words = [_INSTALLED_SCRIPT + end, plain_json(missing), by_machine, python or "python3", " ".join(CANDIDATES), start]
    return " ".join(["exec /bin/sh -c", *(_quoted(word, _NOT_IN_JSON) for word in (*words, *agent_args))])


def plain_json(value: object) -> str:
    """JSON without a character that any login shell treats specially inside single quotes."""
    text = re.sub(r'\\(["\\bfnrt])', lambda escape: _code(json.loads(f'"{escape[0]}"')), json.dumps(value))
    return text.replace("'", _code("'")).replace("!", _code("!"))


def _code(character: str) -> str:
    return f"\\u{ord(character):04x}"
