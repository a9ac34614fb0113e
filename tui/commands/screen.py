"""`mltop`: the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mltop.probes.investigate.session import LiveSession
from mltop.probes.model.text import clean
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, resolve
from mltop.tui.app.output import say
from mltop.tui.commands.live import live_session
from mltop.tui.config.settings import Config
from mltop.tui.requirements import hidden
from mltop.tui.state.lists import CHOICES, Choices
from mltop.tui.state.probe_history import HistoryFile

if TYPE_CHECKING:
    from mltop.probes.reach.view import FleetView
    from mltop.tui.app.app import Hint
    from mltop.tui.app.stalls import CaptureOnHang, Stalls

WRITTEN_S = 1.0
NO_CURSOR = ("", "dumb", "unknown")  # values of TERM


def run(options: TargetOptions, config: Config, capture_on_hang: str) -> int:
    targets = resolve(options)
    captures = captures_on_hang(options, capture_on_hang)
    require_terminal()
    # The agents start before Textual is imported: NVML is ready when the screen is.
    session = live_session(targets, replace(options, thresholds=config.thresholds), HistoryFile())
    return show(session, config, options.read_only, captures)


def captures_on_hang(options: TargetOptions, directory: str) -> CaptureOnHang | None:
    """Raises UsageProblem for a directory that is none, or must not be written to."""
    if not directory:
        return None
    from mltop.tui.app.stalls import CaptureOnHang

    path = Path(directory).absolute()
    if options.read_only:
        raise UsageProblem("--capture-on-hang", "off: --read-only", "without one of them")
    if clean(directory) != directory:
        raise UsageProblem("--capture-on-hang", "the name has characters that cannot be printed", "another name")
    if path.exists() and not (path.is_dir() and os.access(path, os.W_OK | os.X_OK)):
        why = "cannot be written to" if path.is_dir() else "is no directory"
        raise UsageProblem(f"--capture-on-hang {directory}", why)
    return CaptureOnHang(path)


def stalls(captures: CaptureOnHang | None, config: Config, memory: Memory) -> Stalls:
    """With what the user has answered earlier; where that cannot be read, nothing is allowed."""
    from mltop.tui.app.stalls import Stalls

    always = partial(memory.remember, lambda choices: replace(choices, dump_stalled=True))
    return Stalls(config.auto_dump, captures, always)


class Memory:
    """Writes what is chosen on the screen, in that order and in a thread of its own. What cannot be written comes again
    with the next start. ``read_only``: nothing is written.
    """

    def __init__(self, read_only: bool = False) -> None:
        self._read_only = read_only
        self._writer = ThreadPoolExecutor(1, "choices")
        self._last: Future[None] | None = None

    def remember(self, change: Callable[[Choices], Choices]) -> None:
        if not self._read_only:
            self._last = self._writer.submit(CHOICES.change, change)

    def finish(self) -> None:
        """Wait a little for what is not written yet."""
        if self._last is not None:
            wait([self._last], WRITTEN_S)
        self._writer.shutdown(wait=False)


def require_terminal() -> None:
    """The screen needs a terminal that can move its cursor, and the packages that it was made for."""
    if why := hidden():
        raise UsageProblem("the screen", why)
    fix = "use mltop snapshot or mltop stacks, both with --json"
    terminals = {
        "input": sys.stdin.isatty(),
        "output": sys.stdout.isatty(),
        "error output, where it is drawn,": sys.stderr.isatty(),
    }
    for name, is_terminal in terminals.items():
        if not is_terminal:
            raise UsageProblem("the screen", f"its {name} is not a terminal", fix)
    term = os.environ.get("TERM", "")
    if term in NO_CURSOR:
        raise UsageProblem("the screen", f"TERM={term} cannot move the cursor", fix)


def show(
    session: LiveSession,
    config: Config,
    read_only: bool = False,
    captures: CaptureOnHang | None = None,
    *,
    before: Iterable[FleetView] = (),
    hint: Hint = lambda _: "",
    remembers: bool = True,
) -> int:
    """Run the screen until the user leaves; the session is closed whatever happens. ``before``: views of the past, the
    oldest first. ``remembers``: what is chosen on the screen holds for later ones, too.
    """
    from mltop.tui.app.app import MltopApp

    memory = Memory(read_only or not remembers)
    try:
        wanted = stalls(captures, config, memory)
        app = MltopApp(session, config, read_only=read_only, stalls=wanted, remember=memory.remember, hint=hint)
        for view in before:
            app.history.feed(view)
        app.run()
        if (left := session.captured_at_close) is not None:
            say(f"capture saved: {left.directory}" + "".join(f" ({problem})" for problem in left.problems[:1]))
        return app.return_code or 0
    finally:
        session.close()
        memory.finish()
