"""`mltop capture`: save everything needed to explain a hang later."""

from __future__ import annotations

import os
import queue
import signal
from pathlib import Path
from types import FrameType

from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets import TargetOptions, resolve
from mltop.tui.commands.live import EXIT_UNREACHABLE, await_samples, note, session

EXIT_INCOMPLETE = 1
EXIT_INTERRUPTED = 130
WRITE_S = 10.0  # for an interrupted capture to write what it has


def run(options: TargetOptions, directory: str) -> int:
    """Exit 0: complete; 1: something is missing from it; 3: nothing could be written; 130: interrupted, but kept."""
    targets = resolve(options)
    if targets.recording is not None:
        raise UsageProblem("--recording", "is a capture already", "mltop stacks --recording DIR")
    if directory and os.path.lexists(directory):
        raise UsageProblem(f"-o {directory}", "exists already", "a new directory name")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    with session(targets, options) as opened:
        await_samples(opened, targets, options.timeout_s)
        done: queue.SimpleQueue[CaptureResult] = queue.SimpleQueue()
        running = opened.capture(done.put, Path(directory) if directory else None, options.timeout_s)
        try:
            result = done.get()
        except KeyboardInterrupt:
            running.cancel()
            result = done.get(timeout=WRITE_S)
    return told(result)


def told(result: CaptureResult) -> int:
    if result.error:
        note(f"capture: {result.error}")
        return EXIT_UNREACHABLE
    for problem in result.problems:
        note(problem)
    print(result.directory)  # noqa: T201 - the command's output
    if result.cancelled:
        return EXIT_INTERRUPTED
    return EXIT_INCOMPLETE if result.problems else 0


def interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
