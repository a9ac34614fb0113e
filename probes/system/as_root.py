"""What root runs and takes from its environment: nothing that others can change (``writable.py``).

mltop is run as root on machines where strangers work, and PATH, HOME or a training job's variables may lead to files of
theirs (`su`, `sudo -E`, an environment in somebody's home). To everybody but root all of this says yes.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from mltop.probes.system import paths
from mltop.probes.system.writable import in_time, writer_of

# Lists of folders and files with colons between them: what is safe in them is kept.
_LISTS = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "LIBRARY_PATH", "CPATH", "MANPATH", "INFOPATH"),
        *("XDG_DATA_DIRS", "XDG_CONFIG_DIRS", "PKG_CONFIG_PATH"),
    )
)
# Of these an entry without a slash, or none at all, means the working directory.
_SEARCHED = frozenset(("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"))
# Folders that are meant to be like /tmp.
_SCRATCH = frozenset(("TMPDIR", "TMP", "TEMP"))
# Say where a login is and came from; no program is found, loaded or set up by them.
_OF_THE_SESSION = re.compile(
    r"_|PWD|OLDPWD|MAIL|SUDO_.*|SSH_(?:AUTH_SOCK|TTY|CLIENT|CONNECTION)|XAUTHORITY|DBUS_SESSION_BUS_ADDRESS"
    r"|GPG_TTY|TMUX|STY|SLURM_(?:JOB|SUBMIT|STEP|SCRIPT)_.*|SLURMD_.*|PBS_O_.*"
)
# Name a program or a folder that we look at when we are about to use it: whoever chose it is to hear why not.
_LOOKED_AT_LATER = frozenset(("MLTOP_PROBE_PYTHON", "MLTOP_PY_SPY", "MLTOP_STATE_DIR"))
_BETWEEN = re.compile(r"[\s:;,='\"{}\[\]()]+")
_MOST_PIECES = 1000
_INSTALLED = os.path.abspath(__file__).rsplit("/", 4)[0]  # where our packages are
_NO_LOGIN = frozenset(("nologin", "false", "sync", "shutdown", "halt"))  # shells
_LOCAL_USERS = frozenset(("files", "systemd", "compat", "altfiles", "extrausers"))  # nsswitch.conf(5)
_NETWORKED = re.compile(r"nfs|cifs|smb|ceph|lustre|gpfs|beegfs|afs|9p|virtiofs|fuse|glusterfs|orangefs", re.ASCII)
_BELOW = ("", "/torch", "/*.pth")
LOOK_S = 10.0  # for the look at what leads to an interpreter and its modules, which a file server may hold up
_ANSWER_S, _CLEAN_S = 2.0, 5.0  # for the look at what one variable leads to, and at all of them

# What was left out of this process's own environment, and why, by name.
LEFT_OUT: dict[str, str] = {}


def is_root() -> bool:
    return os.geteuid() == 0


def why_not(path: str, ours: frozenset[int] = frozenset()) -> str:
    """Why root neither runs nor loads this file, "" when it may. What is not there is judged by who could make it."""
    if not is_root():
        return ""
    writer = writer_of(path, ours=ours)
    return "" if writer is None or _is_ours(path) else f"root does not run what others can change: {writer}"


def find_program(name: str) -> str | None:
    """A program on PATH that we may run, None when there is none."""
    import shutil

    program = shutil.which(name)
    return program if program and not why_not(os.path.abspath(program)) else None


def _is_ours(path: str) -> bool:
    """Whether we ourselves come from there although others may write there: then they have us already, and lose or
    gain nothing (`sudo .venv/bin/mltop`).
    """
    return any(path == own or path.startswith(own + "/") for own in _own_places())


@lru_cache(maxsize=1)
def _own_places() -> tuple[str, ...]:
    chosen = _chosen_to_import_from()
    own = [os.path.dirname(sys.executable), *(path for path in sys.path if path not in chosen)]
    return tuple(path for path in own if os.path.isabs(path) and path != "/" and writer_of(path) is not None)


def _chosen_to_import_from() -> set[str]:
    """What PYTHONPATH and the working directory (``python -m``) have put on our import path: whoever set these chose
    it, and we do not come from there.
    """
    chosen = {"", *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(":")))}
    with contextlib.suppress(OSError):  # it was removed
        chosen.add(os.getcwd())
    return chosen - {_INSTALLED}


def only_roots() -> frozenset[int]:
    """The device of the root directory where nobody but root can have written to it: no other account can log in, no
    process is another user's, and no other machine has it. Other file systems may be shared with containers.
    """
    sources = re.findall(r"^passwd:(.*)", _text("/etc/nsswitch.conf"), re.MULTILINE)
    if not _LOCAL_USERS.issuperset(re.sub(r"\[.*?\]", "", " ".join(sources)).split()):
        return frozenset()
    if any(user.pw_uid and os.path.basename(user.pw_shell) not in _NO_LOGIN for user in pwd.getpwall()):
        return frozenset()
    states = (_text(paths.proc(name, "status")) for name in os.listdir(paths.proc()) if name.isdigit())
    if any(re.search(r"^Uid:.*[1-9]", state, re.MULTILINE) for state in states):
        return frozenset()
    mounts = [line.split() for line in _text("/proc/self/mountinfo").splitlines()]
    kinds = [words[words.index("-") + 1] for words in mounts if words[4] == "/"]  # the last one hides the others
    return frozenset() if not kinds or _NETWORKED.match(kinds[-1]) else frozenset((os.stat("/").st_dev,))


def _text(path: str) -> str:
    return _head(path, 1 << 20).decode(errors="replace")


# Interpreters.


def why_not_python(python: str, search: str | None = None, ours: frozenset[int] = frozenset()) -> str:
    """Why root does not start this interpreter, a path or a name on PATH (``search``, or our own); "" when it may, or
    when there is none.
    """
    program = _program(python, search)
    if not is_root() or not program or (program == sys.executable and _is_ours(program)):
        return ""
    return next(filter(None, (why_not(path, ours) for path in (program, *_named_in_script(program)))), "")


def _program(python: str, search: str | None) -> str:
    """The program's path, "" when it is not on PATH. Relative paths begin at /, where probes run."""
    import shutil

    return os.path.join("/", python) if "/" in python else shutil.which(python, path=search) or ""


def why_not_environment(python: str, search: str | None = None, told: Sequence[str] = ()) -> str:
    """As ``why_not_python``; every folder and link that leads to its libraries and modules counts, too: nobody but root
    can have put something there. ``told``: where it says itself that it finds modules.
    """
    why = in_time(lambda: _why_not_environment(python, search, told), LOOK_S) if is_root() else ""
    return "its folders could not all be looked at in time (a slow file system?)" if why is None else why


def _why_not_environment(python: str, search: str | None, told: Sequence[str]) -> str:
    program, ours = _program(python, search), only_roots()
    found = [] if not program or (program == sys.executable and _is_ours(program)) else _loaded_by(program)
    reasons = (why_not(path, ours) for path in (*found, *told))
    return why_not_python(python, search, ours) or next(filter(None, reasons), "")


def _named_in_script(program: str) -> list[str]:
    """The interpreter of a script: the words of its first line that are paths."""
    first = _head(program, 256).partition(b"\n")[0]
    return [os.fsdecode(word) for word in first[2:].split() if word.startswith(b"/")] if first[:2] == b"#!" else []


def _head(path: str, most_bytes: int) -> bytes:
    """The first bytes of a regular file, b"" of anything else."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(most_bytes) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def _loaded_by(program: str) -> list[str]:
    """Where an interpreter's settings, modules and libraries may be (documentation of site, venv and sys.path), and
    what its .pth files name.
    """
    import glob

    found: dict[str, None] = {}
    prefixes = []
    for path in dict.fromkeys((program, os.path.realpath(program))):
        binaries = os.path.dirname(path)
        prefixes.append(os.path.dirname(binaries))
        names = (f"{prefixes[-1]}/pyvenv.cfg", f"{binaries}/pyvenv.cfg", f"{binaries}/pybuilddir.txt")
        settings = [name for name in names if os.path.exists(name)]
        found.update(dict.fromkeys(settings))
        prefixes += [os.path.dirname(home) for name in settings for home in _homes(name)]
    if "/usr" in prefixes:
        prefixes.append("/usr/local")  # Debian's Python looks there
    for prefix in prefixes:
        for pattern in ("lib*/python3*", *(f"lib*/python3*/*-packages{below}" for below in _BELOW), "lib*/lib*.so*"):
            found.update(dict.fromkeys(sorted(glob.glob(f"{glob.escape(prefix)}/{pattern}"))))
    named = [path for name in found if name.endswith(".pth") for path in _named_in_pth(name)]
    return [*found, *named]


def _homes(settings: str) -> Iterator[str]:
    """The folder of the interpreter that a virtual environment was made from."""
    for line in _text(settings).splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip().lower() == "home" and os.path.isabs(value.strip()):
            yield value.strip()


def _named_in_pth(path: str) -> list[str]:
    """Folders that a .pth file adds to where modules are found (site's documentation)."""
    lines = os.fsdecode(_head(path, 1 << 20)).splitlines()
    here = os.path.dirname(path)
    names = [line.strip() for line in lines if line.strip() and not line.startswith(("#", "import ", "import\t"))]
    return [path for path in (os.path.join(here, name) for name in names) if os.path.exists(path)]


# The environment.


def clean_here() -> None:
    """Take out of this process's environment what others could change; it is told in ``LEFT_OUT``. For programs that
    begin: what they start inherits the rest. Nor is anything more imported from there.
    """
    chosen = _chosen_to_import_from() if is_root() else ()
    sys.path[:] = [path for path in sys.path if path not in chosen or not why_not(os.path.abspath(path))]
    kept, left_out = cleaned(os.environ)
    LEFT_OUT.update(left_out)
    for name in left_out:
        if name in kept:
            os.environ[name] = kept[name]
        else:
            del os.environ[name]


def cleaned(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What root may keep of an environment, and what it leaves out of it, and why, by name.

    A variable that leads to a file that others could change is left out, whatever it is for: programs, libraries,
    settings and plugins are found by hundreds of them. HOME becomes the one of passwd.
    """
    kept, left_out = dict(environ), {}
    until_s = time.monotonic() + _CLEAN_S
    # HOME may be on a file server that is gone: what else there is comes first.
    for name, value in sorted(environ.items(), key=lambda item: item[0] not in _LISTS) if is_root() else ():
        if ("/" not in value and name not in _SEARCHED) or name in _LOOKED_AT_LATER or _OF_THE_SESSION.fullmatch(name):
            continue
        limit_s = min(_ANSWER_S, max(0.0, until_s - time.monotonic()))
        answer = in_time(lambda name=name, value=value: _safe_part(name, value), limit_s)  # type: ignore[misc]
        safe, why = answer or ("", f"did not answer within {_ANSWER_S:g} s")
        if why:
            left_out[name], kept[name] = why, safe
        if why and not safe:
            del kept[name]
    if "HOME" in left_out:
        kept.update(in_time(_home, _ANSWER_S) or {})
    return kept, left_out


def _safe_part(name: str, value: str) -> tuple[str, str]:
    """What may stay of a variable's value, and why not all of it."""
    if name in _LISTS:
        pieces = value.split(":") if name != "LD_PRELOAD" else value.replace(" ", ":").split(":")
        reasons = {piece: _why_not_piece(name, piece) for piece in dict.fromkeys(pieces)} if value else {}
        safe = [piece for piece in pieces if not reasons.get(piece)]
        return ":".join(safe), next(filter(None, reasons.values()), "")
    pieces = [piece for piece in dict.fromkeys(_BETWEEN.split(value)) if "/" in piece]
    if len(pieces) > _MOST_PIECES:
        return "", f"names more than {_MOST_PIECES:,} files"
    return "", next(filter(None, (_why_not_piece(name, piece) for piece in pieces)), "")


def _why_not_piece(name: str, piece: str) -> str:
    """Relative paths begin at /, where probes run."""
    if name in _SEARCHED and not os.path.isabs(piece):
        return f"{piece!r} is looked for in the working directory"
    path = os.path.join("/", os.path.expanduser(piece))
    writer = writer_of(path, shared=name in _SCRATCH) if "/" in piece else None
    return "" if writer is None or _is_ours(path) else str(writer)


def _home() -> dict[str, str]:
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return {}
    return {} if writer_of(home) is not None else {"HOME": home}


def in_words(left_out: Mapping[str, str] = LEFT_OUT) -> str:
    """ "PATH (/opt/tools belongs to ada), HOME (…)", "" for nothing."""
    return ", ".join(f"{name} ({why})" for name, why in left_out.items())
