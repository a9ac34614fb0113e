"""One py-spy run: found, started so that it cannot outlive us, given a deadline, killed on cancel."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Callable

from mltop.probes import as_root
from mltop.probes.spawn import die_with_parent

_POLL_S = 0.02  # how late a cancel may be
_MAX_OUTPUT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Mode:
    """``nonblocking``: read without stopping the process; ``native``: C frames too, needs it stopped."""

    nonblocking: bool
    with_locals: bool
    native: bool

    def options(self) -> list[str]:
        named = {"--nonblocking": self.nonblocking, "--locals": self.with_locals, "--native": self.native}
        return [option for option, wanted in named.items() if wanted]


@dataclass
class Dump:
    """What one run gave: ``threads``, else why not (``stderr``, ``timed_out`` or ``cancelled``)."""

    threads: list[dict[str, Any]] | None = None
    stderr: str = ""
    timed_out: bool = False
    cancelled: bool = False


@dataclass
class _Output:
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    finished: bool = False


def find_py_spy() -> str | None:
    """py-spy's path: $MLTOP_PY_SPY alone when set, else beside this Python, in its scripts folders, beside the
    site-packages that we were imported from (another Python's, with --python), on PATH, in the agent's cache. None that
    others could change where we are root.
    """
    return next((path for path in _candidates() if not as_root.why_not(path)), None)


def why_no_py_spy() -> str:
    """Why the one that is there is not run, "" when there is none."""
    return next(
        (f"{path}: {why}" for path, why in ((path, as_root.why_not(path)) for path in _candidates()) if why), ""
    )


def _candidates() -> Iterator[str]:
    """Those that can be executed, the best first."""
    chosen = os.environ.get("MLTOP_PY_SPY")
    if chosen:
        yield from map(os.path.abspath, filter(_is_executable, (chosen,)))
        return
    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    folders.append(sysconfig.get_path("scripts", "posix_user"))
    folders += [
        os.path.normpath(os.path.join(entry, "../../../bin")) for entry in sys.path if entry.endswith("-packages")
    ]
    yield from filter(_is_executable, (os.path.join(folder, "py-spy") for folder in folders))
    import shutil

    yield from (os.path.abspath(path) for path in (shutil.which("py-spy"), _newest_in_cache()) if path)


def _newest_in_cache() -> str | None:
    """One that was sent to this node (``agent/files.py``) and can be executed where it lies."""
    cache = os.environ.get("MLTOP_CACHE")
    if not cache or not os.path.isdir(cache) or os.statvfs(cache).f_flag & os.ST_NOEXEC:
        return None
    found = [path for path in glob.glob(os.path.join(glob.escape(cache), "py-spy-*")) if _is_executable(path)]
    return max(found, key=os.path.getmtime, default=None)


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def dump(
    py_spy: str,
    pid: int,
    mode: Mode,
    deadline_s: float,
    cancelled: Callable[[], bool],
) -> Dump:
    """Run ``py-spy dump`` once on ``pid``. Returns within ``deadline_s``; the process is reaped always."""
    try:
        process = subprocess.Popen(
            [py_spy, "dump", "--json", "--pid", str(pid), *mode.options()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (one prepared C call, takes no lock)
        )
    except OSError as error:
        return Dump(stderr=f"Error: cannot start {py_spy}: {error.strerror}")
    try:
        return _collect(process, time.monotonic() + deadline_s, cancelled)
    finally:
        _end(process)


def _collect(process: subprocess.Popen[bytes], deadline: float, cancelled: Callable[[], bool]) -> Dump:
    output = _Output()
    while not output.finished:
        if cancelled():
            return Dump(cancelled=True)
        if time.monotonic() > deadline:
            return Dump(timed_out=True)
        _read_some(process, output)
        if len(output.stdout) > _MAX_OUTPUT_BYTES:
            return Dump(stderr="Error: the dump is larger than 64 MiB")
    code = process.wait()
    errors = output.stderr.decode(errors="replace")
    if code != 0:
        return Dump(stderr=errors or f"Error: py-spy ended with code {code}")
    try:
        return Dump(threads=json.loads(output.stdout))
    except ValueError:
        return Dump(stderr="Error: py-spy printed no JSON")


def _read_some(process: subprocess.Popen[bytes], output: _Output) -> None:
    """Wait up to _POLL_S for either pipe; ``finished`` once both are at their end."""
    with selectors.DefaultSelector() as selector:
        for pipe, sink in ((process.stdout, output.stdout), (process.stderr, output.stderr)):
            if pipe is not None and not pipe.closed:
                selector.register(pipe, selectors.EVENT_READ, sink)
        if not selector.get_map():
            output.finished = True
            return
        for key, _ in selector.select(_POLL_S):
            _take(key.fileobj, key.data)  # type: ignore[arg-type]  # only pipes are registered


def _take(pipe: IO[bytes], sink: bytearray) -> None:
    data = os.read(pipe.fileno(), 1 << 16)
    sink += data
    if not data:
        pipe.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
