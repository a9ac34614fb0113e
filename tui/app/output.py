"""Everything that leaves for the terminal outside of the screen: cleaned, one line at a time, here and nowhere else.

Data goes to standard output (also `report/page.py`, whose console ends here), everything else to standard error.
`open_streams` puts a guard before both: what cannot be written ends the command with one line, or quietly where the
reader left; what standard error does not take is lost, and nothing else with it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO, cast

from mltop.probes.model.text import Clean, clean

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_END = Clean("\n")
_BEGIN_ANEW = Clean("\r\x1b[K")
_OURS = f"{os.sep}mltop{os.sep}"


class OutputEnded(Exception):
    """Whoever reads standard output (head, less) has seen enough."""


class OutputFailed(Exception):
    """Standard output takes nothing: it is closed, or its disk is full. The message says which."""


# What is printed.


def put(line: str) -> None:
    """Print one line of data."""
    _write(sys.stdout, clean(line), _END)


def put_lines(text: str) -> None:
    """Print our own text of several lines."""
    for line in text.splitlines():
        put(line)


def put_json(value: object) -> None:
    """Print one object on one line, in ASCII: what a terminal would obey stands there as \\uXXXX."""
    import json

    from mltop.probes.model import all_fields, to_json

    try:
        text = to_json(value)
    except ValueError:  # NaN and infinities, which JSON cannot say, are null, as all that is not known
        text = to_json(json.loads(json.dumps(value, default=all_fields), parse_constant=lambda _: None))
    _write(sys.stdout, Clean(text), _END)


def say(sentence: str) -> None:
    """Print one line on standard error."""
    _write(sys.stderr, Clean("mltop: "), Clean(" ".join(clean(sentence).split())), _END)


def title_sequence(title: Clean) -> str:
    """What makes ``title`` the title of the terminal's window (OSC 2)."""
    return f"\x1b]2;{title}\x07"


def ask(question: str) -> str:
    """Ask on standard error; returns what is typed, "" for nothing."""
    _write(sys.stderr, Clean("mltop: "), clean(question))
    sys.stderr.flush()
    typed = sys.stdin.readline().strip()
    if not typed:
        _write(sys.stderr, _END)
    return typed


def write_over(text: str, columns: int) -> None:
    """Put ``text`` in place of the last line of the terminal that standard error is; "" takes that away."""
    from rich.cells import set_cell_size

    line = clean(text, 4 * columns)
    _write(sys.stderr, _BEGIN_ANEW, Clean(set_cell_size(line, columns).rstrip() if line else ""))
    sys.stderr.flush()


def in_a_line(error: BaseException) -> str:
    """What an unexpected error is, and the last place of ours that it came through."""
    import traceback

    from mltop.probes.system.limits import limit_words
    from mltop.tui.render.guarded import words_of

    if words := limit_words(error):
        return words
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if _OURS in frame.filename] or frames
    where = f"{os.path.basename(ours[-1].filename)}:{ours[-1].lineno}, " if ours else ""  # noqa: PTH119 - no path of ours
    return f"{words_of(error)} ({where}please report)"


def _write(stream: TextIO, *parts: Clean) -> None:
    stream.write("".join(parts))


# Where it goes.


class _Guarded(io.FileIO):
    """What standard output or error is written through, text and bytes. Standard output raises OutputEnded and
    OutputFailed in place of OSError, until ``is_over``; standard error raises nothing.
    """

    def __init__(self, fd: int, was_closed: bool) -> None:
        super().__init__(fd, "w", closefd=False)
        self._was_closed, self.is_over = was_closed, False

    def write(self, data: ReadableBuffer) -> int:
        if self.is_over:
            return len(bytes(data))
        try:
            if self._was_closed:
                raise OSError(errno.EBADF, "standard output is closed")
            if (written := cast("int | None", super().write(data))) is not None:
                return written
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        except OSError as error:
            if self.fileno() != 1:
                return len(bytes(data))
            raise (OutputEnded() if isinstance(error, BrokenPipeError) else OutputFailed(error.strerror)) from None


def open_streams() -> None:
    """Guard standard output and error. A closed stream (``<&-``) becomes /dev/null: Python leaves it None."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = getattr(sys, name)
        was_closed = stream is None
        if was_closed:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            stream = os.fdopen(fd, mode, closefd=False)
        if fd:
            through = io.BufferedWriter(_Guarded(fd, was_closed))
            by_line = stream.line_buffering or stream.write_through  # PYTHONUNBUFFERED
            stream = io.TextIOWrapper(through, stream.encoding, "backslashreplace", line_buffering=by_line)
        setattr(sys, name, stream)


_C = ("C", "POSIX")
_LEFT_BY_PYTHON = ("", "C.UTF-8", "C.utf8", "UTF-8")  # in LC_CTYPE, in place of C (PEP 538)


def wants_ascii(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user's locale has no characters but ASCII. Python itself makes UTF-8 of it, so its streams do not
    tell. Where nothing is set, as in containers, nothing is asked for.
    """
    if forced := environ.get("LC_ALL"):
        return forced in _C
    return environ.get("LANG") in _C and environ.get("LC_CTYPE", "") in (*_C, *_LEFT_BY_PYTHON)


def only_ascii() -> None:
    """From here on nothing above 127 is written to standard output and error. Before anything that draws is imported:
    ``render.glyphs`` chooses what is drawn by these streams.
    """
    streams = [
        cast(io.TextIOWrapper, each) for each in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) if each
    ]
    for stream in streams:
        stream.reconfigure(encoding="ascii", errors="backslashreplace")
    from mltop.tui.render.glyphs import REPLACED

    for stream in streams:
        stream.reconfigure(errors=REPLACED)


def flush() -> None:
    """Have all that was printed written. Raises OutputEnded and OutputFailed where it cannot be."""
    sys.stdout.flush()


def finish() -> None:
    """End quietly: what the streams still hold is written, and nothing comes of it where it cannot be."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OutputEnded, OutputFailed, OSError, ValueError):
            stream.flush()
        if isinstance(raw := getattr(getattr(stream, "buffer", None), "raw", None), _Guarded):
            raw.is_over = True  # for what the interpreter flushes at its end


def one_line_for_crashes() -> None:
    """Make what Python itself prints of an error in a thread or in a finalizer one clean line."""

    def in_a_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            say(f"{args.thread.name if args.thread else 'a thread'} failed: {in_a_line(args.exc_value)}")

    sys.excepthook = lambda _kind, error, _trace: say(in_a_line(error))
    threading.excepthook = in_a_thread
    sys.unraisablehook = lambda args: say(in_a_line(args.exc_value)) if args.exc_value is not None else None
