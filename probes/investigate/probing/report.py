"""From what was measured to the report: results, verdict, what was not measured, and the same by torchrun."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from mltop.probes.investigate.probing.board import Board
from mltop.probes.investigate.probing.collective import Collective
from mltop.probes.investigate.probing.member import Member
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes.collective import failure_sentences, judge_collective, merge_times, with_expected
from mltop.probes.judge.probes.hardware.busbw import expected_busbw
from mltop.probes.judge.probes.hardware.peaks import Expected
from mltop.probes.judge.probes.nccl import settings, translate
from mltop.probes.judge.probes.pairs import judge_pairs
from mltop.probes.judge.probes.transfers import JUDGES
from mltop.probes.model.probe import (
    PairResult,
    PastResult,
    ProbeFailure,
    ProbeReport,
    ProbeVerdict,
    RankTimes,
    cpu_subject,
)
from mltop.probes.model.probe_kinds import COLLECTIVES

SCRIPT = "collective_bench.py"
PORT = 29400  # torchrun's own default


def torchrun_command(wanted: ProbeWanted, members: Mapping[str, Member], results: Sequence[object]) -> str:
    """The same measurement by torchrun, to be run on every node. ``mltop probe all-reduce --script`` prints the file
    that it names.
    """
    joined = [member for member in members.values() if member.ready]
    if not joined:
        return ""
    sizes = sorted({size for size in (getattr(result, "size_bytes", 0) for result in results) if size})
    parts = ["torchrun", f"--nnodes={len(joined)}", f"--nproc-per-node={joined[0].ranks}"]
    if len(joined) == 1:
        parts.append("--standalone")
    else:
        address = joined[0].ready.get("address") or joined[0].node
        parts += ["--rdzv-backend=c10d", f"--rdzv-endpoint={address}:{PORT}"]
    collective = COLLECTIVES[0] if wanted.row.in_pairs else wanted.collective
    parts += [SCRIPT, "--collective", collective, "--backend", joined[0].ready.get("backend") or "nccl"]
    # Address and backend are what a node says.
    return shlex.join(parts + (["--sizes", ",".join(map(str, sizes))] if sizes else []))


def script() -> str:
    """The text of a program that needs torch and nothing else."""
    return files("mltop.probes.active.all_reduce").joinpath("plain_bench.py").read_text(encoding="utf-8")


@dataclass
class Measured:
    """All that a run has. ``times`` of all-reduce, ``pairs`` of the pair search, the rest on the board."""

    board: Board
    collective: Collective | None
    times: Sequence[RankTimes]
    pairs: Sequence[PairResult]
    nodes: Sequence[str]


def judged(
    wanted: ProbeWanted, measured: Measured, past: Sequence[PastResult] = (), cancelled: bool = False
) -> ProbeReport:
    """The report on all that was measured, compared with ``past`` results."""
    report = ProbeReport(wanted.kind, 0.0, failures=measured.board.failures, simulated=measured.board.simulated)
    if wanted.row.one_gpu:
        judge = JUDGES[wanted.kind]
        order = {node: number for number, node in enumerate(dict.fromkeys(one.node for one in measured.board.results))}
        report.results = list(map(judge.complete, measured.board.results))
        report.results.sort(key=lambda one: (order[one.node], -1 if one.gpu is None else one.gpu))
        report.verdict = judge.judge(report.results, past)
    elif wanted.row.in_pairs:
        report.results = list(measured.pairs)
        members = measured.collective.members if measured.collective else {}
        joined = [node for node in measured.nodes if node in members and members[node].ready]
        ranks = max((member.ranks for member in members.values()), default=0)
        size = max((pair.size_bytes for pair in measured.pairs), default=0)
        expected = _expected(measured, ranks, 2, size, COLLECTIVES[0])
        report.verdict = judge_pairs(joined, measured.pairs, expected)
    else:
        _judge_collective(report, measured, past)
    if measured.collective is not None:
        lines = [line for _, line in measured.board.notes]
        report.settings = settings(lines)
        for meaning, action in dict.fromkeys(filter(None, map(translate, lines))):
            report.verdict.details.append(f"{meaning} ({action})" if action else meaning)
        report.command = torchrun_command(wanted, measured.collective.members, report.results)
    if not report.results:
        report.verdict = nothing_measured(wanted, report.failures, cancelled)
    elif cancelled:
        report.verdict.details.append("the probe was cancelled before its end")
    for text, nodes in measured.board.remarks.items():
        report.verdict.details.append(f"{folded(dict.fromkeys(nodes))}: {text}")
    return report


def disturbed(board: Board) -> set[str]:
    """The processors (as PastResult.uuid) of nodes where something else ran: their figures prove nothing, nor are they
    kept."""
    return {cpu_subject(node) for nodes in board.remarks.values() for node in nodes if "cpu" in board.kinds(node)}


def _judge_collective(report: ProbeReport, measured: Measured, past: Sequence[PastResult]) -> None:
    results = merge_times(measured.times, _backend(measured) or "gloo")
    for at, result in enumerate(results):
        nodes = max(1, len(result.nodes))
        expected = _expected(measured, result.ranks // nodes, nodes, result.size_bytes, result.collective)
        results[at] = with_expected(result, expected)
    # What was refused was never a part of it: it is listed beside the verdict, not in it.
    failures = [failure for failure in report.failures if not failure.refused]
    report.results, report.verdict = list(results), judge_collective(results, failures, past)


def _backend(measured: Measured) -> str:
    """The backend that the launchers took; they say so when they are ready."""
    members = measured.collective.members.values() if measured.collective else ()
    return next((str(member.ready["backend"]) for member in members if member.ready.get("backend")), "")


def _expected(measured: Measured, ranks: int, nodes: int, size_bytes: int, collective: str) -> Expected | None:
    """The figure of so many ranks on each of such nodes; None where they measure with their processors, or with GPUs
    of several models.
    """
    models = {device.name for device in measured.board.devices() if device.name}
    if len(models) != 1 or _backend(measured) != "nccl":
        return None
    return expected_busbw(models.pop(), ranks, nodes, size_bytes, collective)


def nothing_measured(wanted: ProbeWanted, failures: Sequence[ProbeFailure], cancelled: bool) -> ProbeVerdict:
    """The verdict where there is no result: the reasons, those that are equal together."""
    if cancelled:
        return ProbeVerdict("cancelled: nothing was measured")
    reasons = failure_sentences(failures)
    if not reasons:
        reasons = ["no device was found" if wanted.row.one_gpu else "fewer than two ranks took part"]
    return ProbeVerdict(f"nothing was measured: {reasons[0]}", details=reasons[1:])
