"""`mltop`: the screen."""

from __future__ import annotations

import os
import sys

from mltop.probes.investigate.session import LiveSession
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, resolve
from mltop.tui.commands.live import live_session
from mltop.tui.state.probe_history import HistoryFile

NO_CURSOR = ("", "dumb", "unknown")  # values of TERM


def run(options: TargetOptions, no_mouse: bool, read_only: bool) -> int:
    targets = resolve(options)
    if targets.recording is not None:
        raise UsageProblem(
            f"--recording {options.recording}",
            "this version shows recordings without the screen",
            "mltop stacks --recording DIR",
        )
    require_terminal()
    # The agents start before Textual is imported: NVML is ready when the screen is.
    session = live_session(targets, options, HistoryFile())
    return show(session, mouse=not no_mouse, read_only=read_only)


def require_terminal() -> None:
    """The screen needs a terminal that can move its cursor."""
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


def show(session: LiveSession, mouse: bool = True, read_only: bool = False) -> int:
    """Run the screen until the user leaves; the session is closed whatever happens."""
    from mltop.tui.app.app import MltopApp

    try:
        app = MltopApp(session, mouse=mouse, read_only=read_only)
        app.run()
        return app.return_code or 0
    finally:
        session.close()
