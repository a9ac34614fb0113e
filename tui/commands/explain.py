"""`mltop explain PATH…`: what became of a job that is dead, from the files that it left. No node is asked.

The answer is on stdout, how far the reading is on stderr. Ctrl-C: what is known by then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from mltop.probes.investigate.explain import STANDARD_INPUT, Explained, Reading, explain
from mltop.probes.judge.evidence.answer import with_slurms_word
from mltop.probes.model.units import bytes_text
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.probes.reach.targets.accounting import past_job
from mltop.tui.app.output import say
from mltop.tui.commands.live import Stderr, put_answer
from mltop.tui.exits import EXIT_CANNOT_TELL, EXIT_EXPLAINED, EXIT_FINE, EXIT_INTERRUPTED

_SHOW_S = 0.2


def run(options: TargetOptions, *, paths: Sequence[str], as_json: bool, verbose: bool = False) -> int:
    """Exit 0: it ended well, or was ended from outside; 1: explained; 3: it cannot be told; 130: interrupted."""
    for given, option in ((options.nodes, "-w"), (options.hostfile, "--hostfile"), (options.recording, "--recording")):
        if given:
            raise UsageProblem(option, "is nothing to explain, which reads files", "mltop explain PATH…")
    past = past_job(options.job) if options.job else None
    if past is not None:
        nodes = f" on {past.nodes}" if past.nodes else ""
        say(f"job {options.job}: {past.state.lower() or 'state unknown'}{nodes}, output: {', '.join(past.outputs)}")
    names = [*paths, *(past.outputs if past is not None else ())]
    if not names:
        raise UsageProblem("explain", "needs files or folders of the job, or --job ID", "mltop explain slurm-123.out")
    for name in names:
        if name != STANDARD_INPUT and not Path(name).exists():
            raise UsageProblem(name, "no such file or folder")
    stderr, shown_at = Stderr(), time.monotonic()

    def show(reading: Reading) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _SHOW_S:
            shown_at = time.monotonic()
            share = f"{bytes_text(reading.bytes_done)} of {bytes_text(reading.bytes_total)}"
            stderr.show(f"reading: {reading.files_done}/{reading.files_total} files, {share}, {reading.current}")

    try:
        found = explain(names, show)
    finally:
        stderr.clear()
    if not found.jobs and found.is_whole:
        why = found.gaps[0].why if found.gaps else "there is no log in it"
        raise UsageProblem(names[0] if len(names) == 1 else f"{len(names)} paths", why, "give log files of the job")
    if past is not None and len(found.jobs) == 1:
        with_slurms_word(found.jobs[0], past.state)
    if not found.is_whole:
        say("interrupted: this is what was read by then")
    from mltop.tui.report.explain import print_explained

    put_answer(as_json, answer(found), lambda console: print_explained(found, console, verbose), wide=True)
    return EXIT_INTERRUPTED if not found.is_whole else exit_code(found)


def exit_code(found: Explained) -> int:
    """The gravest of its jobs."""
    unwell = [job for job in found.jobs if job.incident is not None and job.incident.kind != "stopped"]
    if not unwell:
        return EXIT_FINE
    return EXIT_CANNOT_TELL if any(not job.is_told for job in unwell) else EXIT_EXPLAINED


def answer(found: Explained) -> dict[str, object]:
    """The JSON object."""
    return {
        "jobs": found.jobs,
        "files": [
            {"file": file.path, "size_bytes": file.size_bytes, "lines": file.lines, "events": len(file.events)}
            for file in found.files
        ],
        "coverage": found.coverage,
        "gaps": found.gaps,
        "exit": exit_code(found),
    }
