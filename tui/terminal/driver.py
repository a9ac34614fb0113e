"""The terminal's driver: Textual's for Linux, which asks ten times a second for keys. Here they are waited for."""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import Any

from textual import constants
from textual._time import get_time
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

ESCAPE_S = 0.05  # after Esc: a sequence would go on at once. Textual's 0.1 s is felt
KEYS_BYTES = 4096  # read at once


class WaitingDriver(LinuxDriver):
    """Costs nothing while no key is pressed, and leaves without waiting for its next look."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if "ESCDELAY" not in os.environ:
            constants.ESCAPE_DELAY = ESCAPE_S  # type: ignore[misc]
        self._wakes, self._wake = os.pipe()  # what is written here ends the waiting
        os.set_blocking(self._wakes, False)

    def start_application_mode(self) -> None:
        with suppress(BlockingIOError):  # of the end before a stop
            os.read(self._wakes, KEYS_BYTES)
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def disable_input(self) -> None:
        os.write(self._wake, b"\0")
        super().disable_input()

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
                    typed = os.read(self.fileno, KEYS_BYTES)
                    if not typed:
                        break  # the terminal is gone
                    for message in parser.feed(decode(typed)):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)
