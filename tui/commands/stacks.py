"""`mltop stacks`: dump every rank, merge, and say which rank hangs and where.

The verdict is on stdout, once. What is known before the end goes to stderr as it comes: nodes that fail, and who
seems to hang so far. Ctrl-C prints the verdict on what is known then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mltop.probes.investigate.capture import is_packed, retold, stacks_object
from mltop.probes.investigate.diagnosis import diagnosed
from mltop.probes.investigate.material import Material, nodes_by_gap
from mltop.probes.investigate.patience import waited
from mltop.probes.investigate.progress import StackProgress
from mltop.probes.investigate.rounds import Plan
from mltop.probes.investigate.stacks import StackRequest
from mltop.probes.judge.nodes import folded
from mltop.probes.model import JobReport, RankStacks
from mltop.probes.model.unread import unread_ranks
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions, Targets, resolve
from mltop.probes.record import read_raw
from mltop.tui.app.output import put_json, say
from mltop.tui.commands.live import (
    Machines,
    Stderr,
    recording_problems,
    refuse_limits,
    refuse_read_only,
    say_gap,
)
from mltop.tui.config.settings import DEFAULTS, Config
from mltop.tui.exits import EXIT_INTERRUPTED, EXIT_UNREACHABLE
from mltop.tui.render.stacks.verdict import job_words

LOOK_S = 0.15
CANCEL_S = 5.0  # for an interrupted dump to judge what it has
LATE_S = 4.0  # after its deadline a dump has ended, unless it was given more than it can judge


def run(
    options: TargetOptions,
    *,
    samples: int | None,
    native: bool,
    locals_: str,
    as_json: bool,
    raw: bool,
    config: Config = DEFAULTS,
    pids: str | None = None,
    ras: bool = False,
    ras_any_version: bool = False,
) -> int:
    """Exit 0: all nodes answered; 3: some did not, or ranks were not read or a job not judged; 130: interrupted."""
    if as_json and raw:
        raise UsageProblem("--json --raw", "only one of them can be printed")
    targets, ras = resolve(options), ras or ras_any_version
    refuse(targets, options, anew=samples is not None or native or locals_ != "ints", ras=ras)
    plan = Plan(rounds=1 if raw and samples is None else samples)
    request = StackRequest(plan=plan, native=native, ints=locals_ == "ints", raw=raw, deadline_s=options.timeout_s)
    named = () if pids is None else pids_of(pids, targets)
    request = replace(request, nodes=targets.nodes, pids=named, job=None if named else targets.job or None)
    interrupted, failed = False, ""
    if targets.recording is not None:
        with recording_problems():
            material, reports, incidents = retold(targets.recording, targets.job or None, config.thresholds)
    else:
        material, reports, interrupted, failed = live(
            targets, options, request, ras or ras_any_version, ras_any_version
        )
        incidents = [] if raw else diagnosed(material.newest, config.thresholds).incidents(reports)
    note_gaps(material)
    note_unassigned(material, request.pids)
    for report in reports:
        if report.error:
            say(f"{job_words(report, reports)}: {report.error}")
    if raw:
        print_raw(targets.recording, material.dumps)
    elif as_json:
        put_json(stacks_object(material, reports, incidents))
    elif reports or not failed:  # after a failure, that there is no report does not mean that there are no ranks
        from rich.console import Console

        from mltop.tui.report import print_reports

        print_reports(reports, material.not_answered, Console(), material.nodes, incidents, samples=material.newest)
    is_empty = targets.recording is not None and not material.dumps and not material.samples
    if is_empty:
        say(f"{targets.recording}: neither stacks nor samples in it")
    return EXIT_UNREACHABLE if is_empty else exit_code(material, reports, interrupted, failed)


def refuse(targets: Targets, options: TargetOptions, *, anew: bool, ras: bool) -> None:
    """Raises UsageProblem for what a recording has no answer to, and for machines that are not to be touched."""
    if targets.recording is None:
        refuse_read_only(options, "stacks")
    elif anew:
        raise UsageProblem("--recording", "holds what was dumped then", "--samples, --native and --locals dump anew")
    elif ras:
        raise UsageProblem("--ras", "asks jobs that run: there are none in a recording")


def pids_of(text: str, targets: Targets) -> tuple[int, ...]:
    """The processes that ``--pid`` names."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 1 << 22 for word in words):
        raise UsageProblem(f"--pid {text}", "is no list of process ids", "--pid 1234 or --pid 1234,1240")
    if targets.recording is not None:
        raise UsageProblem("--pid", "dumps anew: what was dumped then is in the recording")
    if len(targets.nodes) > 1:
        raise UsageProblem("--pid", f"is of one node, and these are {len(targets.nodes)}", "name it: -w NODE")
    return tuple(dict.fromkeys(map(int, words)))


def exit_code(material: Material, reports: list[JobReport], interrupted: bool, failed: str) -> int:
    """The exit code, as ``run`` says it; ``failed``: why the dump as a whole did."""
    if interrupted:
        return EXIT_INTERRUPTED
    unjudged = bool(failed) or any(report.error or _is_unread(report) for report in reports)
    return EXIT_UNREACHABLE if material.not_answered or unjudged or are_unread(material) else 0


def are_unread(material: Material) -> bool:
    """Whether a node's ranks could not be read at all: that none is listed says nothing."""
    return any(unread_ranks(sample) for sample in material.newest)


def _is_unread(report: JobReport) -> bool:
    """Whether it has processes, and not one stack of them could be read."""
    has_none = not any(digest.frames for digest in report.digests)
    return has_none and any(digest.error and not digest.dead for digest in report.digests)


def live(
    targets: Targets, options: TargetOptions, request: StackRequest, ras: bool, ras_any_version: bool
) -> tuple[Material, list[JobReport], bool, str]:
    """What was dumped and judged, whether the user ended it early, and why the dump failed ("": it did not). ``ras``:
    NCCL's RAS is asked, too.
    """
    interrupted, failed = False, ""
    with Machines(targets, options, "stacks") as machines:
        so_far = DumpProgress(machines.stderr)
        run = machines.session.dump_stacks(None, so_far.take, request)
        give_up_at = time.monotonic() + request.deadline_s + LATE_S
        try:
            while not run.wait(LOOK_S) and time.monotonic() < give_up_at:
                machines.stderr.failures(machines.session.view().nodes)
                so_far.show()
            if ras and run.wait(0.0) and not run.error:
                from mltop.probes.investigate.ras import ask_about

                hub, tell = machines.session.hub, machines.stderr.show
                ask_about(hub, run.material, run.reports, consent=ras_any_version, tell=tell)
        except KeyboardInterrupt:
            interrupted = True
        if not run.wait(0.0):
            run.cancel()
            if not run.wait(CANCEL_S):
                failed = "judging did not end within the time: --job or -w for a part of it, or a longer --timeout"
        refuse_limits(machines.session.view().nodes)
        machines.stderr.last_failures(run.material.not_answered)
    failed = run.error or failed
    missing = sorted({*request.pids} - {dump.pid for dump in run.material.dumps})
    if missing and not run.material.not_answered and not interrupted:
        raise UsageProblem(f"--pid {','.join(map(str, missing))}", "no such process there, or it has ended")
    if failed:
        say(failed)
    elif targets.job and not run.reports and not interrupted and not exit_code(run.material, [], False, ""):
        raise UsageProblem(f"--job {targets.job}", "no rank of this job was found on its nodes")
    return run.material, run.reports, interrupted, failed


def print_raw(path: Path | None, dumps: Iterable[RankStacks]) -> None:
    """One JSON line per process: node, rank, pid, threads (py-spy's JSON, integer locals only). ``path``: of a capture,
    which has more of them; a recording has none.
    """
    if path is not None:
        dumps = read_raw(path) if path.is_dir() or is_packed(path) else ()
    with recording_problems():
        for dump in dumps:
            for process in dump.raw:
                of_file = process if isinstance(process, dict) else {"process": process}
                put_json({**of_file, "node": dump.node, "rank": dump.rank})
            for digest in dump.digests:
                if digest.error:
                    say_gap(f"rank {digest.rank} pid {digest.pid}", digest.error, digest.fix)


def note_gaps(material: Material) -> None:
    """Say on stderr, for every form of output, what may hide ranks and what a capture lacks."""
    for gap, nodes in nodes_by_gap(material):
        say_gap(folded(nodes), gap.why, gap.fix)
    for gap in material.gaps:
        say(f"{gap.what}: {gap.why}")


def note_unassigned(material: Material, named: tuple[int, ...]) -> None:
    """Say what was dumped in place of ranks. ``named``: by ``--pid``, which needs no word."""
    samples = material.newest
    count = sum(len(sample.unassigned) for sample in samples)
    if count and material.dumps and not named and not any(sample.ranks for sample in samples):
        what = "a Python process" if count == 1 else f"{count} Python processes"
        say(f"no training ranks found: these are stacks of {what} of no job")


_VERBS = {"connecting": "connecting", "dumping": "dumping stacks", "watching": "watching for progress"}


class DumpProgress:
    """A running dump on stderr: a progress line, and who seems to hang as soon as somebody can be named.

    ``take`` is called in the dump's thread, ``show`` in the command's.
    """

    def __init__(self, stderr: Stderr) -> None:
        self._stderr = stderr
        self._newest = StackProgress("connecting")
        self._named: set[tuple[str, ...]] = set()  # those of whom a line was said

    def take(self, progress: StackProgress) -> None:
        self._newest = progress

    def show(self) -> None:
        progress = self._newest
        if not progress.finished:
            for report in progress.reports:
                self._name(report, progress)
            self._stderr.show(progress_line(progress))

    def _name(self, report: JobReport, progress: StackProgress) -> None:
        """Say who seems to hang, once there is some evidence; not again when it only grows."""
        verdict = report.verdict
        culprits = verdict.culprits or verdict.stragglers
        names = (report.job, verdict.kind, *(f"{culprit.node} {culprit.rank} {culprit.pid}" for culprit in culprits))
        if verdict.kind not in ("hang", "straggler") or verdict.confidence == "low" or names in self._named:
            return
        self._named.add(names)
        from mltop.tui.render.stacks.verdict import headline

        of = f"{progress.nodes_answered} of {progress.nodes_total} nodes, " if progress.nodes_total > 1 else ""
        text = headline(report)
        self._stderr.note(f"so far ({of}{waited(progress.elapsed_s)}, confidence {verdict.confidence}): {text}")


def progress_line(progress: StackProgress) -> str:
    """ "dumping stacks: 12/16 nodes, 96/128 ranks, round 1, 0.8 s"."""
    of = "?" if progress.ranks_expected is None else str(progress.ranks_expected)
    parts = [f"{progress.ranks_done}/{of} ranks", f"round {progress.round}", f"{progress.elapsed_s:.1f} s"]
    if progress.nodes_total > 1:
        nodes = f"{progress.nodes_reached}/{progress.nodes_total} nodes connected"
        parts = [nodes, *(parts if progress.nodes_reached else parts[2:])]
    return f"{_VERBS.get(progress.phase, progress.phase)}: {', '.join(parts)}"
