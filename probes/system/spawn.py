"""Starting children that cannot outlive who started them, our own Python modules among them, and ending them."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Literal

from mltop.probes.system.blobs import EXEC, memory_fd

if TYPE_CHECKING:
    import subprocess

PROBE_MARK = "mltop-probe"  # the argument by which processes of probes are known; probe and key follow it
_ODD = "'\"`\\!"
_LONGEST_PATH = 4095  # PATH_MAX, limits.h
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38  # prctl(2)
_KEYCTL_JOIN_SESSION_KEYRING = 1  # keyctl(2)
_MOST_MEMORY_BYTES = 1 << 30
_POLL_S = 0.02  # how late a cancel may be
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271}
# Loaded before any fork: loading a library between fork and exec could deadlock on another thread's lock.
_LIBC = ctypes.CDLL(None, use_errno=True)


def why_no_program(word: str) -> str:
    """What is wrong with a word that names a program, a full path or a name on PATH; "" when nothing is.

    It stands in command lines that login shells of all kinds read, and in sentences.
    """
    odd = next((letter for letter in word if not letter.isprintable() or letter in _ODD), "")
    if not word.strip():
        return "names no program"
    if len(os.fsencode(word)) > _LONGEST_PATH:
        return "is longer than any path"
    if odd:
        return f"has {odd!r}, which not every login shell takes"
    if word.startswith("-"):
        return "is an option, no program"
    if word != word.strip() or (" " in word and "/" not in word):
        return "is not one word: arguments cannot be given"
    return ""


def python_command(module: str, *args: str, python: str = "") -> list[str]:
    """The command that runs ``main()`` of ``module`` with this process's import path.

    mltop may run from a bundle or a source tree, so ``-m`` would not find the module. The child is isolated
    (``-I -S``): no user site, no PYTHON* variables, nothing imported from the working directory.
    ``args`` arrive as ``sys.argv[1:]``; ``python`` is the interpreter, "" for this one.
    """
    code = f"import sys; sys.path += {import_path()!r}; from {module} import main; main()"
    return [python or sys.executable, "-I", "-S", "-c", code, *args]


def probe_of(argv: Sequence[str]) -> tuple[str, str] | None:
    """Kind and key of the probe whose process, or one forked from it, has this command line; None for any other."""
    kind_and_key = argv[argv.index(PROBE_MARK) + 1 :] if PROBE_MARK in argv else ()
    return (kind_and_key[0], kind_and_key[1]) if len(kind_and_key) == 2 else None


def run_text(text: bytes) -> str:
    """One line of code that runs these lines. Without characters that are special between single quotes anywhere."""
    packed = base64.b64encode(zlib.compress(text, 9)).decode()
    return f'import base64, zlib; exec(zlib.decompress(base64.b64decode("{packed}"))); '


def import_path() -> list[str]:
    """Where our packages are: without the standard library, of which another interpreter has its own, and
    without the working directory, where a training script's modules may lie.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = ""
    library = os.path.dirname(os.__file__)
    packed = "python{}{}.zip".format(*sys.version_info)
    standard = {library, os.path.join(library, "lib-dynload"), os.path.join(os.path.dirname(library), packed)}
    entries = [
        entry
        for entry in sys.path
        if os.path.isabs(entry)
        and entry not in standard
        and (entry != here or os.path.isdir(os.path.join(entry, "mltop")))
    ]
    return list(dict.fromkeys(entries))


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """The leader of a session of its own, which dies with the thread that starts it. Raises OSError.

    ``options`` are Popen's. Unless they say otherwise its stdin is empty, and what it prints comes through one pipe
    without a buffer, errors too.
    """
    import subprocess

    usual = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "bufsize": 0}
    # The preexec_fn: prepared C calls, which take no lock.
    return subprocess.Popen(command, **{**usual, "start_new_session": True, "preexec_fn": die_with_parent, **options})


def confined() -> dict[str, Any]:
    """``start_child``'s options for a program that is not ours, with our rights and nothing else of ours.

    It runs in "/" without our environment and our keys, gains no rights, starts nothing unless we are root (so that it
    ends with its group) and stays below a gigabyte.
    """
    import resource

    wanted = {resource.RLIMIT_NPROC: 0, resource.RLIMIT_AS: _MOST_MEMORY_BYTES, resource.RLIMIT_CORE: 0}
    hard = {what: resource.getrlimit(what)[1] for what in wanted}  # which only root may raise
    limits = [
        (what, most if hard[what] == resource.RLIM_INFINITY else min(most, hard[what])) for what, most in wanted.items()
    ]
    keyctl = ctypes.c_long(_SYS_KEYCTL.get(os.uname().machine, -1))

    def confine() -> None:
        for what, most in limits:
            resource.setrlimit(what, (most, most))
        if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
        # Where there are no keys, or nobody here may use them, there is none of ours to be left behind.
        without = _LIBC.syscall(keyctl, ctypes.c_long(_KEYCTL_JOIN_SESSION_KEYRING), ctypes.c_void_p(None)) >= 0
        if not without and ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
            raise OSError(ctypes.get_errno(), "keyctl(KEYCTL_JOIN_SESSION_KEYRING)")
        die_with_parent()

    return {"cwd": "/", "env": {"LC_ALL": "C.UTF-8"}, "preexec_fn": confine}


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal a child of ``start_child`` and all that it started. One that was collected is left alone: its number
    may be another's by then.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def end_child(process: subprocess.Popen[bytes], term_s: float = 0.0, kill_s: float = 1.0) -> bool:
    """SIGTERM to its group and ``term_s`` to follow it, SIGKILL and ``kill_s``; our ends of its pipes are closed.

    False for one that the kernel does not let go (state D): it is left behind.
    """
    import subprocess

    for number, wait_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        if process.poll() is None and wait_s > 0.0:
            signal_group(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what it has not read
                pipe.close()
    return process.returncode is not None


class Unfinished(Exception):
    """A child that was to be ended before it had said all: for its time, its size, or because of who waits for it."""

    def __init__(self, cause: Literal["late", "large", "stopped"]) -> None:
        super().__init__(cause)
        self.cause = cause


def output_of(
    process: subprocess.Popen[bytes], until_s: float, stopped: Callable[[], bool], most_bytes: int
) -> tuple[bytes, bytes]:
    """All that a child of ``start_child`` prints, and its errors if they have a pipe, once it has ended. Raises
    Unfinished: at ``until_s`` (monotonic), soon after ``stopped()`` or when it is too much; the child runs on then.
    """
    import subprocess

    while True:
        try:
            output, errors = process.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired as unfinished:
            if stopped():
                raise Unfinished("stopped") from None
            if time.monotonic() > until_s:
                raise Unfinished("late") from None
            if len(unfinished.stdout or b"") + len(unfinished.stderr or b"") > most_bytes:
                raise Unfinished("large") from None
        else:
            return output, errors or b""


def die_with_parent() -> None:
    """``preexec_fn`` of a child that the kernel kills when the thread that started it ends (prctl(2)).

    A parent that dies between fork and this call is not noticed: the child must also end on end-of-file
    of its stdin. Raises OSError when the kernel refuses.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def memory_file(name: str, content: bytes) -> str:
    """Path of a new file in memory whose content may be executed and loaded, also by our child processes.

    It lasts as long as this process. Raises OSError where there are none.
    """
    fd = memory_fd(name, EXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    return f"/proc/{os.getpid()}/fd/{fd}"
