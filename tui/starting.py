"""How the program starts and ends. Ctrl-C, or a package that does not fit, ends it without a traceback also while the
command line is still being imported.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import NoReturn

from mltop.tui.exits import EXIT_INTERRUPTED


def end_quietly_on_interrupt(only_as: str = "") -> None:
    """Until ``interrupt_again``. ``only_as``: only in a program of this name, and not where others import us.

    A signal that is ignored, as in a shell's background jobs, stays ignored.
    """
    if only_as and os.path.basename(sys.argv[0]) != only_as:  # noqa: PTH119 - pathlib is not loaded yet
        return
    sys.excepthook = _cannot_start
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interrupt_again() -> None:
    """Ctrl-C raises KeyboardInterrupt from here on."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def leave(code: int) -> NoReturn:
    """End at once. Python would first look through all that is known of a fleet and free it, for seconds.

    What was printed must have been written: ``output.finish``.
    """
    os._exit(code)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


def _cannot_start(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    from mltop.tui.app import crash, output

    output.open_streams()
    code = crash.end_by([error])
    output.finish()
    os._exit(code)
