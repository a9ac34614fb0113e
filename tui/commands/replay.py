"""`mltop replay PATH`, or `mltop --recording PATH`: a recording or a capture on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mltop.probes.investigate.capture import is_packed
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.probes.record import BadRecording, OpenRecording
from mltop.probes.record.decoding import decode_head
from mltop.tui.commands.live import Stderr, recording_problems, saved
from mltop.tui.commands.screen import require_terminal
from mltop.tui.config.settings import Config

if TYPE_CHECKING:
    from mltop.tui.app.past.replay import ReplaySession


def run(options: TargetOptions, config: Config, path: str = "") -> int:
    """Exit 2 for what is no recording."""
    path = path or options.recording
    if options.nodes or options.hostfile:
        raise UsageProblem(f"a recording ({path})", "is looked at instead of machines", "without -w and --hostfile")
    if options.recording not in ("", path):
        raise UsageProblem("replay", "shows one recording", "without --recording")
    require_terminal()
    stderr = Stderr()
    stderr.show(f"reading {path}")
    try:
        session = replay_session(Path(path), options.job or None)
    finally:
        stderr.clear()
    from mltop.tui.app.app import MltopApp
    from mltop.tui.app.stalls import Stalls

    app = MltopApp(session, config, read_only=options.read_only, stalls=Stalls(dump="never"))
    app.run()
    return app.return_code or 0


def replay_session(path: Path, job: str | None) -> ReplaySession:
    from mltop.tui.app.past.replay import ReplaySession

    try:
        with recording_problems():
            if path.is_file() and not is_packed(path):  # else it may be a capture
                return ReplaySession.reading(OpenRecording(path, decode_head), job)
        return ReplaySession(path, saved(path, decode_head), job)
    except BadRecording as problem:
        raise UsageProblem(str(path), str(problem)) from None
