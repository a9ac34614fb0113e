"""`mltop capture`: save everything needed to explain a hang later."""

from __future__ import annotations

import queue
from pathlib import Path

from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets import TargetOptions, resolve
from mltop.tui.commands.live import EXIT_UNREACHABLE, await_samples, note, session


def run(options: TargetOptions, directory: str) -> int:
    targets = resolve(options)
    if targets.recording is not None:
        raise UsageProblem("--recording", "is a capture already", "mltop stacks --recording DIR")
    target = Path(directory) if directory else None
    if target is not None and target.exists():
        raise UsageProblem(f"-o {directory}", "exists already", "a new directory name")
    with session(targets, options) as opened:
        await_samples(opened, targets, options.timeout_s)
        done: queue.SimpleQueue[CaptureResult] = queue.SimpleQueue()
        running = opened.capture(done.put, target)
        try:
            result = done.get()
        except KeyboardInterrupt:
            running.cancel()
            result = done.get(timeout=10)
    if result.error:
        note(f"capture: {result.error}")
        return EXIT_UNREACHABLE
    for problem in result.problems:
        note(problem)
    print(result.directory)  # noqa: T201 - the command's output
    return 0
