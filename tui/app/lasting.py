"""How the app begins and ends: whatever happens, the terminal is as it was, and one line says what has failed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from textual.screen import Screen
from textual.widget import AwaitMount
from textual.worker import WorkerFailed

from mltop.tui.app.hands import HandsApp
from mltop.tui.app.output import in_a_line, say
from mltop.tui.render.guarded import FAILURES
from mltop.tui.terminal.driver import WaitingDriver

if TYPE_CHECKING:
    from mltop.tui.app.feed import Feed

HUNG_UP_S = 6.0  # from the loss of the terminal to the end, however that goes
CLOSE_S, CLOSE_CAPTURE_S = 0.5, 4.0  # how long leaving waits at most: for agents, for a capture that is being written
# Signals that end no program, that the driver takes, and those of a processor that cannot go on.
LEFT_ALONE = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
}


class LastingApp(HandsApp):
    """Ends by a signal, by a bug or by the user: ``return_code`` says by which."""

    feed: Feed
    _session_ends = False  # whether it has been asked to
    _crash = ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._session_ended = threading.Event()

    def run(self, **options: Any) -> None:
        """As ``App.run``, then waits a little for the session to close, and says at last what has failed."""
        FAILURES.forget()
        of_threads = threading.excepthook
        threading.excepthook = lambda args: _failed_in(args.thread.name if args.thread else "a thread", args.exc_value)
        try:
            super().run(mouse=self.config.mouse, **options)
        except Exception as error:  # noqa: BLE001 - in what Textual does at its end
            self._handle_exception(error)
        finally:
            threading.excepthook = of_threads
            self._await_close()
        self._say_failures()

    def _say_failures(self) -> None:
        failures, crash = FAILURES.all(), self._exception
        if crash is not None:
            failures.insert(0, (f"the screen failed: {self._crash}", crash))
        if failures:
            from mltop.tui.app.crash import end_by

            sentence = failures[0][0] + f"; and {len(failures) - 1} more" * (len(failures) > 1)
            code = end_by([error for _, error in failures], sentence, self._shape(), not self.read_only)
            self._return_code = code if crash else self._return_code

    def _shape(self) -> Iterator[str]:
        """What is shown, in numbers."""
        nodes = self.picture.view.nodes if self.picture is not None else ()
        states = Counter(view.state.state for view in nodes)
        gpus, ranks = sum(len(view.gpus) for view in nodes), sum(len(view.ranks) for view in nodes)
        yield f"pane {self.trail.here.pane}, {self.size.width}x{self.size.height}, colours {self.console.color_system}"
        yield f"last sample: nodes {dict(states)}, {gpus} GPUs, {ranks} ranks"

    def _get_screen(self, screen: Screen[Any] | str) -> tuple[Screen[Any], AwaitMount]:
        """As Textual's, but the screen mounts after the caller has put it on a stack.

        From Python 3.12 on Textual's tasks are eager: the screen's widgets would mount inside this call, and an Input
        asks for the app's screen then (Textual issue 6444). A task that is not eager waits for the loop's next turn.
        """
        loop = asyncio.get_running_loop()
        eager = loop.get_task_factory()
        loop.set_task_factory(None)
        try:
            return super()._get_screen(screen)
        finally:
            loop.set_task_factory(eager)

    def _await_close(self) -> None:
        """No child may stay, and no file that is half there."""
        self._close_session()
        self._session_ended.wait(CLOSE_S)
        if self.exporting is not None:
            self.exporting.join(CLOSE_S)
        if not self._session_ended.is_set() and self.investigation.writing:
            say("the capture is still being written, for some seconds at most")
            self._session_ended.wait(CLOSE_CAPTURE_S)

    def _handle_exception(self, error: Exception) -> None:
        """As Textual's, which prints every local variable, with the user's data; ``run`` says it without."""
        if self._exception is None:
            self._exception = getattr(error, "error", error) if isinstance(error, WorkerFailed) else error
            self._exception_event.set()
            self._crash = in_a_line(self._exception)  # while a limit that it met is still met
        self._return_code = 1
        self._close_messages_no_wait()

    def on_load(self) -> None:
        """Before the terminal is changed: no signal may end the program without giving it back."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: _failed_in("the loop", context.get("exception")))
        for number in signal.valid_signals() - LEFT_ALONE:
            caught = signal.getsignal(number)  # asyncio has its own for SIGINT
            if caught is signal.SIG_DFL or (number == signal.SIGINT and caught is not signal.SIG_IGN):
                # Outside the main thread nobody can catch signals; whoever runs the app there ends it by exit().
                with suppress(RuntimeError, ValueError):
                    loop.add_signal_handler(number, self._leave, number)

    def _leave(self, number: int) -> None:
        """End by a signal, at last without what a terminal that takes nothing holds up."""
        if self.is_lent and number in (signal.SIGINT, signal.SIGQUIT):
            return  # keys that are meant for the shell come to all programs of its terminal
        at_last = threading.Timer(HUNG_UP_S, self._leave_now, (128 + number,))
        at_last.daemon = True
        with suppress(RuntimeError):  # no thread can be started
            at_last.start()
        self.call_later(self.exit, return_code=128 + number)  # not before all is mounted

    def _leave_now(self, code: int) -> None:
        if isinstance(self._driver, WaitingDriver):
            self._driver.give_back()
        os._exit(code)

    def action_stop(self) -> None:
        """Ctrl-Z, which is a key here."""
        if isinstance(self._driver, WaitingDriver):
            self._driver.stop()

    def on_terminal_gone(self) -> None:
        self._leave(signal.SIGHUP)

    def exit(self, *arguments: Any, **options: Any) -> None:
        self.on_unmount()  # the session closes while the screen is taken down
        self.investigation.leave()
        if self.guest is not None:
            self.guest.hang_up()
        super().exit(*arguments, **options)

    def on_unmount(self) -> None:
        self.feed.stop()
        self._close_session()

    def _close_session(self) -> None:
        def close() -> None:
            try:
                self.session.close()
            finally:
                self._session_ended.set()

        if not self._session_ends:
            self._session_ends = True
            try:
                threading.Thread(target=close, name="close", daemon=True).start()
            except RuntimeError:  # no thread can be started
                close()


def _failed_in(what: str, error: BaseException | None) -> None:
    if isinstance(error, Exception):
        FAILURES.take(what, error)
