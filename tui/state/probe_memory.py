"""The user's history of probe results as a probe run takes it: what goes wrong is told, and stops nothing."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.model.probe import PastResult
from mltop.tui.state.place import BadState, NotOurs
from mltop.tui.state.probe_history import read_history, remember


class HistoryFile:
    """``problems``: sentences for the user. ``before``: what the newest run was compared with."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.before: Sequence[PastResult] = ()
        self._not_ours = ""

    def past(self) -> Sequence[PastResult]:
        self.before = ()
        try:
            history = read_history()
            self.before = history.results
            if history.damaged:
                self.problems.append(f"{history.damaged} damaged lines of the earlier results are passed over")
        except NotOurs as problem:
            self._not_ours = str(problem)  # said when the results are not kept either
        except BadState as problem:
            self.problems.append(f"earlier results are not compared: {problem}")
        return self.before

    def keep(self, results: Sequence[PastResult]) -> None:
        try:
            remember(results)
        except BadState as problem:
            compared = "earlier results are not compared, and " if str(problem) == self._not_ours else ""
            self.problems.append(f"{compared}the results are not kept: {problem}")
