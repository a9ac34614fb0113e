"""What an error that nobody expected ends with: one line, an exit code, and a file for whoever looks into it."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Iterable, Sequence

from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.model.text import clean
from mltop.probes.system.limits import limit_words
from mltop.probes.version import __version__
from mltop.tui.app.output import in_a_line, say
from mltop.tui.exits import EXIT_BUG, EXIT_LIMIT, EXIT_USAGE
from mltop.tui.requirements import conflict

MOST_REPORTS = 10  # that are kept
_PREFIX = "crash-"
_OF_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL", "TERM_PROGRAM")


def end_by(
    errors: Sequence[BaseException],
    sentence: str = "",
    about: Iterable[str] = (),
    may_write: bool = True,
) -> int:
    """Say what has failed, in one line; returns the exit code of a program that ends by the first of ``errors``.

    ``about``: more lines of the report; ``may_write``: whether there is to be one.
    """
    sentence = sentence or in_a_line(errors[0])
    if limit_words(errors[0]):
        say(sentence)
        return EXIT_LIMIT
    try:
        if words := conflict():
            say(words)
            return EXIT_USAGE
    except Exception as another:  # noqa: BLE001 - what is installed may be broken, too
        errors = (*errors, another)
    may_write = may_write and "--read-only" not in sys.argv and not os.environ.get("MLTOP_READ_ONLY")
    report = _written(errors, about) if may_write else "no report is written: --read-only"
    say("; ".join([sentence, report, *["mltop snapshot does without a screen"] * ("textual" in sys.modules)]))
    return EXIT_BUG


def _written(errors: Sequence[BaseException], about: Iterable[str]) -> str:
    """Where the report is, or why there is none."""
    try:
        from mltop.tui.state import state_file, write_state

        path = state_file(f"{_PREFIX}{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt")
        write_state(path, "".join(f"{clean(shown_text(line))}\n" for line in (*_heading(), *about, *_traces(errors))))
        for old in sorted(path.parent.glob(f"{_PREFIX}*.txt"))[:-MOST_REPORTS]:
            old.unlink(missing_ok=True)
    except Exception as error:  # noqa: BLE001 - the line comes first
        return f"no report could be written: {error}"
    return f"report: {path}"


def _heading() -> Iterable[str]:
    from importlib.metadata import distributions

    yield f"mltop {__version__} failed on {time.strftime('%Y-%m-%d %H:%M:%S %z')}"
    yield f"Python {platform.python_version()} ({sys.executable}) on {platform.platform()}"
    names = ("click", "clustershell", "msgspec", "platformdirs", "psutil", "rich", "textual")
    found = {each.metadata["Name"].lower(): each.version for each in reversed([*distributions()])}
    yield ", ".join(f"{name} {found.get(name, 'is missing')}" for name in names)
    try:
        size = "{}x{}".format(*os.get_terminal_size(2))
    except OSError:
        size = "none"
    yield ", ".join(
        [f"terminal {size}", *(f"{name}={os.environ[name]}" for name in _OF_TERMINAL if name in os.environ)]
    )


def _traces(errors: Sequence[BaseException]) -> Iterable[str]:
    """Where they happened, without the values of variables."""
    for error in errors:
        yield ""
        for entry in traceback.TracebackException.from_exception(error).format():
            yield from entry.splitlines()
