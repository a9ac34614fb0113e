"""`mltop stacks`: dump every rank, merge, and say which rank hangs and where."""

from __future__ import annotations

import sys

from mltop.probes.investigate.capture import rejudge, stacks_object
from mltop.probes.investigate.material import Material, rank_gaps
from mltop.probes.investigate.progress import StackProgress
from mltop.probes.investigate.rounds import Plan
from mltop.probes.investigate.stacks import StackRequest, StackRun
from mltop.probes.model import JobReport, RankStacks
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets import TargetOptions, Targets, resolve
from mltop.probes.record import BadRecording
from mltop.tui.commands.live import EXIT_UNREACHABLE, await_samples, note, print_json, session


def run(options: TargetOptions, *, samples: int | None, native: bool, locals_: str, as_json: bool, raw: bool) -> int:
    if as_json and raw:
        raise UsageProblem("--json --raw", "only one of them can be printed")
    targets = resolve(options)
    request = StackRequest(
        nodes=targets.nodes,
        job=targets.job or None,
        plan=Plan(rounds=1 if raw and samples is None else samples),
        native=native,
        ints=locals_ == "ints",
        raw=raw,
        deadline_s=options.timeout_s,
    )
    if targets.recording is not None:
        material, reports = recorded(targets)
    else:
        material, reports = live(targets, options, request)
    note_gaps(material)
    if raw:
        print_raw(material.dumps)
    elif as_json:
        print_json(stacks_object(material, reports))
    else:
        print_text(material, reports)
    return EXIT_UNREACHABLE if material.not_answered else 0


def live(targets: Targets, options: TargetOptions, request: StackRequest) -> tuple[Material, list[JobReport]]:
    with session(targets, options) as opened:
        await_samples(opened, targets, options.timeout_s)
        progress = ProgressLine()
        run = opened.dump_stacks(None, progress, request)
        try:
            run.wait()
        except KeyboardInterrupt:
            run.cancel()
            run.wait(2.0)
            raise
        progress.clear()
    if progress.error:
        note(progress.error)
    return finished(run, targets)


def finished(run: StackRun, targets: Targets) -> tuple[Material, list[JobReport]]:
    if targets.job and not run.reports:
        raise UsageProblem(f"--job {targets.job}", "no rank of this job was found on its nodes")
    return run.material, run.reports


def recorded(targets: Targets) -> tuple[Material, list[JobReport]]:
    assert targets.recording is not None
    try:
        return rejudge(targets.recording, targets.job or None)
    except BadRecording as error:
        raise UsageProblem("--recording", str(error)) from None


def print_raw(dumps: list[RankStacks]) -> None:
    """One JSON line per process: node, rank, pid, threads (py-spy's JSON, integer locals only)."""
    for dump in dumps:
        for process in dump.raw:
            print_json({"node": dump.node, "rank": dump.rank, **process})
        for digest in dump.digests:
            if digest.error:
                note(
                    f"rank {digest.rank} pid {digest.pid}: {digest.error}" + (f" ({digest.fix})" if digest.fix else "")
                )


def print_text(material: Material, reports: list[JobReport]) -> None:
    from rich.console import Console

    from mltop.tui.report import print_reports

    print_reports(reports, material.not_answered, Console())


def note_gaps(material: Material) -> None:
    """On stderr, in every form of output: what may hide ranks, and what a capture lacks."""
    for node, gap in rank_gaps(material):
        note(f"{node}: {gap.why}" + (f" ({gap.fix})" if gap.fix else ""))
    for gap in material.gaps:
        note(f"{gap.what}: {gap.why}")


class ProgressLine:
    """One line on stderr that is written over, only on a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self.error = ""

    def __call__(self, progress: StackProgress) -> None:
        self.error = progress.error or self.error
        if self._shown and not progress.finished:
            of = "?" if progress.ranks_expected is None else str(progress.ranks_expected)
            verb = {"dumping": "dumping stacks", "watching": "watching for progress"}.get(
                progress.phase, progress.phase
            )
            sys.stderr.write(
                f"\r\x1b[K{verb}: {progress.ranks_done}/{of} ranks, round {progress.round}, {progress.elapsed_s:.1f} s"
            )
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
