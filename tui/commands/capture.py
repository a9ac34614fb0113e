"""`mltop capture`: save everything needed to explain a hang later."""

from __future__ import annotations

import queue
from pathlib import Path

from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.model.text import clean
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.probes.record.archives import is_archive_name
from mltop.tui.app.output import OutputFailed, flush, put, say
from mltop.tui.commands.live import (
    LOOK_S,
    Machines,
    interrupt_on_signals,
    live_targets,
    refuse_name,
    refuse_read_only,
)
from mltop.tui.commands.stacks import DumpProgress
from mltop.tui.exits import EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_UNREACHABLE, interrupted_by


def run(options: TargetOptions, directory: str | None, packed: bool) -> int:
    """Exit 0: complete; 1: something is missing from it; 3: nothing could be written; 128 + a signal: ended by it, but
    kept."""
    refuse_read_only(options, "capture")
    targets = live_targets(options, "is a capture already", "mltop stacks --recording DIR")
    if directory is not None:
        refuse_name(directory)
    if packed and directory and not is_archive_name(directory):
        raise UsageProblem(f"-o {directory}", "with --tar it is a file", f"-o {directory}.tar.gz")
    interrupt_on_signals()
    code = EXIT_INTERRUPTED
    with Machines(targets, options, "capture") as machines:
        done: queue.SimpleQueue[CaptureResult] = queue.SimpleQueue()
        progress = DumpProgress(machines.stderr)
        to = Path(directory) if directory else None
        running = machines.session.capture(done.put, to, options.timeout_s, progress.take, packed=packed)
        try:
            while not running.wait(LOOK_S):
                machines.stderr.failures(machines.session.view().nodes)
                progress.show()
            result = done.get()
        except KeyboardInterrupt as interrupt:
            code = interrupted_by(interrupt)
            running.cancel()
            result = done.get()
    return report(result, code)


def report(result: CaptureResult, cancelled: int) -> int:
    """Say what was written and what is missing; returns the exit code, ``cancelled`` of a capture that was."""
    if result.error:
        say(f"capture: {result.error}")
        return EXIT_UNREACHABLE
    for problem in result.problems:
        say(problem)
    directory = str(result.directory)
    if clean(directory) != directory:
        say("the name of the working directory has characters that are not printed")
    try:
        put(directory)
        flush()
    except OutputFailed as failure:
        raise OutputFailed(f"{failure}; the capture is in {result.directory}") from None
    if result.cancelled:
        return cancelled
    return EXIT_INCOMPLETE if result.problems else 0
