"""A running dump on stderr: a progress line, and who seems to hang as soon as somebody can be named."""

from __future__ import annotations

from mltop.probes.investigate.patience import waited
from mltop.probes.investigate.progress import StackProgress
from mltop.probes.model import JobReport
from mltop.tui.commands.beside import Beside

_VERBS = {"connecting": "connecting", "dumping": "dumping stacks", "watching": "watching for progress"}


class SoFar:
    """``take`` comes from the dump's thread, ``show`` is called in the command's."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._newest = StackProgress("connecting")
        self._said: set[tuple[str, ...]] = set()

    def take(self, progress: StackProgress) -> None:
        self._newest = progress

    def show(self) -> None:
        progress = self._newest
        if not progress.finished:
            for report in progress.reports:
                self._say(report, progress)
            self._beside.show(line(progress))

    def _say(self, report: JobReport, progress: StackProgress) -> None:
        """A line for every new name that there is some evidence for; one that only grows surer is not said again."""
        verdict = report.verdict
        named = verdict.culprits or verdict.stragglers
        who = (report.job, verdict.kind, *(f"{culprit.node} {culprit.rank} {culprit.pid}" for culprit in named))
        if verdict.kind not in ("hang", "straggler") or verdict.confidence == "low" or who in self._said:
            return
        self._said.add(who)
        from mltop.tui.render.cells import plain
        from mltop.tui.render.verdicts import headline

        of = f"{progress.nodes_answered} of {progress.nodes_total} nodes, " if progress.nodes_total > 1 else ""
        text = plain(headline(report))
        self._beside.note(f"so far ({of}{waited(progress.elapsed_s)}, confidence {verdict.confidence}): {text}")


def line(progress: StackProgress) -> str:
    """ "dumping stacks: 12/16 nodes, 96/128 ranks, round 1, 0.8 s"."""
    of = "?" if progress.ranks_expected is None else str(progress.ranks_expected)
    parts = [f"{progress.ranks_done}/{of} ranks", f"round {progress.round}", f"{progress.elapsed_s:.1f} s"]
    if progress.nodes_total > 1:
        nodes = f"{progress.nodes_reached}/{progress.nodes_total} nodes connected"
        parts = [nodes, *(parts if progress.nodes_reached else parts[2:])]
    return f"{_VERBS.get(progress.phase, progress.phase)}: {', '.join(parts)}"
