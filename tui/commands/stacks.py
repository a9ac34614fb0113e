"""`mltop stacks`: dump every rank, merge, and say which rank hangs and where.

The verdict is on stdout, once. What is known before the end goes to stderr as it comes: nodes that fail, and who
seems to hang so far. Ctrl-C prints the verdict on what is known then.
"""

from __future__ import annotations

from mltop.probes.investigate.capture import rejudge, stacks_object
from mltop.probes.investigate.folding import folded
from mltop.probes.investigate.material import Material, nodes_by_gap
from mltop.probes.investigate.rounds import Plan
from mltop.probes.investigate.stacks import StackRequest
from mltop.probes.model import JobReport, RankStacks
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets import TargetOptions, Targets, resolve
from mltop.probes.record import BadRecording
from mltop.tui.commands.beside import Beside, note
from mltop.tui.commands.live import EXIT_INTERRUPTED, EXIT_UNREACHABLE, print_json, session
from mltop.tui.commands.so_far import SoFar

LOOK_S = 0.15
CANCEL_S = 5.0  # for an interrupted dump to judge what it has


def run(options: TargetOptions, *, samples: int | None, native: bool, locals_: str, as_json: bool, raw: bool) -> int:
    """Exit 0: every node answered; 3: some did not, and the output says why; 130: interrupted."""
    if as_json and raw:
        raise UsageProblem("--json --raw", "only one of them can be printed")
    targets = resolve(options)
    if targets.recording is not None and (samples is not None or native or locals_ != "ints"):
        raise UsageProblem("--recording", "holds what was dumped then", "--samples, --native and --locals dump anew")
    request = StackRequest(
        nodes=targets.nodes,
        job=targets.job or None,
        plan=Plan(rounds=1 if raw and samples is None else samples),
        native=native,
        ints=locals_ == "ints",
        raw=raw,
        deadline_s=options.timeout_s,
    )
    interrupted = False
    if targets.recording is not None:
        material, reports = recorded(targets)
    else:
        material, reports, interrupted = live(targets, options, request)
    note_gaps(material)
    if raw:
        print_raw(material.dumps)
    elif as_json:
        print_json(stacks_object(material, reports))
    else:
        print_text(material, reports)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_UNREACHABLE if material.not_answered else 0


def live(targets: Targets, options: TargetOptions, request: StackRequest) -> tuple[Material, list[JobReport], bool]:
    """Also whether the user ended it early."""
    interrupted = False
    with session(targets, options) as opened, Beside() as beside:
        so_far = SoFar(beside)
        run = opened.dump_stacks(None, so_far.take, request)
        try:
            while not run.wait(LOOK_S):
                beside.failures(opened.view().nodes)
                so_far.show()
        except KeyboardInterrupt:
            interrupted = True
            run.cancel()
            run.wait(CANCEL_S)
        beside.last_failures(run.material.not_answered)
    if run.error:
        note(run.error)
    if targets.job and not run.reports and not run.material.not_answered and not interrupted:
        raise UsageProblem(f"--job {targets.job}", "no rank of this job was found on its nodes")
    return run.material, run.reports, interrupted


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

    print_reports(reports, material.not_answered, Console(), material.nodes)


def note_gaps(material: Material) -> None:
    """On stderr, in every form of output: what may hide ranks, and what a capture lacks."""
    for gap, nodes in nodes_by_gap(material):
        note(f"{folded(nodes)}: {gap.why}" + (f" ({gap.fix})" if gap.fix else ""))
    for gap in material.gaps:
        note(f"{gap.what}: {gap.why}")
