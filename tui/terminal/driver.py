"""The terminal's driver: Textual's for Linux, which asks ten times a second for keys. Here they are waited for.

Nothing here holds up the loop: what a terminal does not take is dropped and painted anew later, one that is gone is
reported to the app, and while another program has it (``Guest``) nothing is written.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import signal
import subprocess
import termios
from codecs import getincrementaldecoder
from collections.abc import Sequence
from contextlib import suppress
from queue import Full
from typing import Any, TextIO

from textual import constants
from textual._time import get_time
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

ESCAPE_S = 0.05  # after Esc: a sequence would go on at once. Textual's 0.1 s is felt
KEYS_BYTES = 4096  # read at once
# The normal screen, its cursor, keys and mouse.
LEAVE = b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[?1049l\x1b[?25h\x1b[?7h"
LAST_WORDS_S = 1.0  # for a terminal to take what is written last
GUEST_GRACE_S = 0.2  # for a program to go when it is hung up


class TerminalGone(Message):
    """Nothing can be read from the terminal any more, or written to it. A signal need not have come (nohup)."""


class WaitingDriver(LinuxDriver):
    """Costs nothing while no key is pressed, and leaves without waiting for its next look.

    ``lent``: others have the terminal; ``missed``: something was dropped that the screen is without.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if "ESCDELAY" not in os.environ:
            constants.ESCAPE_DELAY = ESCAPE_S  # type: ignore[misc]
        self._wakes, self._wake = os.pipe()  # what is written here ends the waiting
        os.set_blocking(self._wakes, False)
        self.lent = self.missed = self._is_gone = False
        self._file: Any = _Written(self._file, self._gone)
        self._watch_stops()

    def _watch_stops(self) -> None:
        """In the loop: a handler that interrupts other code may find a lock taken by what it has interrupted."""
        with suppress(RuntimeError, ValueError):  # outside of the main thread nobody can catch signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self.stop)
            asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, self._continued)

    def start_application_mode(self) -> None:
        with suppress(BlockingIOError):  # of the end before a stop
            os.read(self._wakes, KEYS_BYTES)
        with suppress(OSError):
            os.set_blocking(self.fileno, True)  # ssh may have left it otherwise
        self.lent, self.attrs_before = False, None
        try:
            super().start_application_mode()  # type: ignore[no-untyped-call]
        except RuntimeError:  # a thread cannot be started
            self._key_thread = None
            if self.attrs_before is not None:
                self.stop_application_mode()
            self.lent = True
            raise
        if self._writer_thread is None or not self._writer_thread.is_alive():
            self._gone()  # Textual has given up

    def stop_application_mode(self) -> None:
        super().stop_application_mode()
        self.lent = True  # what is painted from here on would be on the shell's screen

    def stop(self) -> None:
        """Leave the terminal to the shell that started us until it has us go on; without one, go on at once."""
        if was_ours := not self.lent:
            self.suspend_application_mode()
        for number in (signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        self._watch_stops()
        if was_ours:
            self._take_terminal()

    def _continued(self) -> None:
        """After a stop that could not be caught: who had the terminal meanwhile may have left it in another mode."""
        if not self.lent:
            self._wait_for_foreground()
            self.suspend_application_mode()
            self._take_terminal()

    def _take_terminal(self) -> None:
        self._wait_for_foreground()
        try:
            self.resume_application_mode()
        except RuntimeError as error:
            self._app._handle_exception(error)

    def _wait_for_foreground(self) -> None:
        """The kernel stops who changes a terminal in the background (SIGTTOU), until he is in the foreground."""
        with suppress(termios.error):
            termios.tcsetattr(self.fileno, termios.TCSANOW, termios.tcgetattr(self.fileno))

    def give_back(self) -> None:
        """At the last, from any thread: the terminal's mode, and the screen as far as it takes anything."""
        if self.attrs_before is not None and not self.lent:
            with suppress(termios.error, OSError):
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
                if select.select((), (self._file,), (), 0)[1]:
                    os.write(self._file.fileno(), LEAVE)

    def disable_input(self) -> None:
        os.write(self._wake, b"\0")
        super().disable_input()

    def write(self, data: str) -> None:
        """As Textual's, which waits for a terminal that takes nothing, and all of the program with it."""
        writer = self._writer_thread
        if self.lent or self._is_gone:
            return
        if writer is None or not writer.is_alive():  # it could not be started
            self._file.write(data)
            self._file.flush()
            return
        try:
            writer._queue.put_nowait(data)
        except Full:
            self.missed = True

    def close(self) -> None:
        """As Textual's, but a terminal that takes nothing is not waited for."""
        writer = self._writer_thread
        if writer is not None and writer.is_alive():
            with suppress(Full):
                writer._queue.put(None, timeout=LAST_WORDS_S)
            writer.join(LAST_WORDS_S)

    def _gone(self) -> None:
        """From any thread."""
        if not self._is_gone:
            self._is_gone = True
            with suppress(RuntimeError):  # the loop has ended
                self._app.post_message(TerminalGone())

    def _run_input_thread(self) -> None:
        """As Textual's, which prints all variables of what fails."""
        try:
            self.run_input_thread()
        except Exception as error:  # noqa: BLE001 - the app ends by it
            self._app.call_later(self._app._handle_exception, error)

    def run_input_thread(self) -> None:
        """As Textual's: keys, mouse and answers of the terminal become messages until ``disable_input``."""
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")(errors="replace").decode
        with selectors.PollSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                due = parser._timeout_time
                came = selector.select(None if due is None else max(0.001, due - get_time()))
                if any(key.fd == self.fileno for key, _ in came):
                    try:
                        typed = os.read(self.fileno, KEYS_BYTES)
                    except OSError:  # EIO: it was hung up
                        typed = b""
                    if not typed:
                        self._gone()
                        break
                    for message in parser.feed(decode(typed)):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)


class _Written:
    """What the writer's thread writes to: a terminal that fails is reported once, and takes no more."""

    def __init__(self, file: TextIO, failed: Any) -> None:
        self._file, self._failed = file, failed
        self._has_failed = False

    def write(self, text: str) -> None:
        self._do(lambda: self._file.write(text))

    def flush(self) -> None:
        self._do(self._file.flush)

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()

    def _do(self, call: Any) -> None:
        if self._has_failed:
            return
        try:
            call()
        except OSError:
            self._has_failed = True
            self._failed()


class Guest:
    """A program that has the terminal until it ends. Starting it raises OSError. For the loop's thread."""

    def __init__(self, command: Sequence[str]) -> None:
        self._fd = 0
        self._process = subprocess.Popen(command)  # it inherits no signal that is caught here

    async def ended(self) -> int:
        """Its exit code. The loop goes on until then."""
        return await asyncio.to_thread(self._process.wait)

    def hang_up(self) -> None:
        """Take the terminal back. What still runs is ended as by a terminal that is closed, with what it has in the
        foreground; then it is killed.
        """
        for number, wait_s in ((signal.SIGHUP, GUEST_GRACE_S), (signal.SIGKILL, GUEST_GRACE_S)):
            if self._process.poll() is None:
                with suppress(OSError):
                    foreground = os.tcgetpgrp(self._fd)
                    if foreground != os.getpgrp():
                        os.killpg(foreground, number)
                self._process.send_signal(number)
                self._process.send_signal(signal.SIGCONT)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(wait_s)
        # Be in the foreground again: a shell that was killed cannot see to that.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        try:
            with suppress(OSError):
                os.tcsetpgrp(self._fd, os.getpgrp())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
