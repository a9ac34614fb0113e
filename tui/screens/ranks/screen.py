"""All training ranks, or those of one node or one class of stacks; and one rank: what it does, and its last stacks."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from mltop.probes.model import RankSample, StackDigest
from mltop.probes.model.units import clock_time
from mltop.tui.app.feed import Picture
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.fleet.heat import MARK
from mltop.tui.render.stacks import stack_lines
from mltop.tui.screens.pane import Pane, TextLines
from mltop.tui.screens.tables import RankTable, rank_of, rank_rows
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView


class RanksScreen(Pane):
    DEFAULT_CSS = "RanksScreen RankTable { height: 1fr; }"

    def body(self) -> Iterable[Widget]:
        yield RankTable()

    def node_at_cursor(self) -> str:
        return (self.query_one(RankTable).cursor_key or "").partition("/")[0]

    def fill(self, picture: Picture) -> None:
        here = self.mltop.trail.here
        nodes = [node for node in picture.view.nodes if here.node in ("", node.node)]
        only = (here.job, set(here.ranks)) if here.job is not None and here.ranks is not None else None
        self.put(self.query_one(RankTable), *rank_rows(nodes, self.mltop.trends, only, self._mark))

    def nodes_shown(self) -> list[str]:
        """The nodes of the ranks that are shown."""
        return list(dict.fromkeys(key.partition("/")[0] for key in self.query_one(RankTable).keys))

    def _mark(self, node: str) -> str:
        return MARK if node in self.mltop.selection else ""

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        self.open_rank(event.key)


class RankScreen(Pane):
    AUTO_FOCUS = "#stack"
    DEFAULT_CSS = """
    RankScreen #stack { height: 1fr; }
    RankScreen RankTable { height: 2; }
    """

    def body(self) -> Iterable[Widget]:
        yield RankTable()
        yield TextLines(id="about")
        yield CellLines(id="stack", classes="gap-above", empty_text="no dump of this rank yet: press t")

    def node_at_cursor(self) -> str:
        return self.mltop.trail.here.node

    def fill(self, picture: Picture) -> None:  # noqa: ARG002 - as it is shown
        here, node = self.mltop.trail.here, self.node_view(self.mltop.trail.here.node)
        columns, rows, _ = rank_rows([node] if node is not None else [], self.mltop.trends)
        this_rank = [row for row in rows if row.key == f"{here.node}/{here.pid}"]
        self.put(self.query_one(RankTable), columns, this_rank, empty_text=f"pid {here.pid} is gone")
        rank = rank_of(node, here.pid)
        self.set_part("#about", about_lines(rank, self.size.width) if rank is not None else [])
        self.query_one("#stack", CellLines).set_lines(self._stack_lines(self.size.width - 1))

    def _digests(self) -> list[StackDigest]:
        """The stacks of the rank itself and of its children, as the last dump brought them."""
        here, result = self.mltop.trail.here, self.mltop.investigation.result
        digests = [digest for report in result.reports for digest in report.digests] if result else []
        return [
            digest for digest in digests if digest.node in (here.node, "") and here.pid in (digest.pid, digest.child_of)
        ]

    def _stack_lines(self, width: int) -> list[list[Cell]]:
        lines: list[list[Cell]] = []
        for digest in self._digests():
            lines += [[]] if lines else []
            lines += stack_lines(digest, width)
            if digest.taken_at is not None:
                lines.append([Cell(f"  taken {clock_time(digest.taken_at)}", "dim")])
        return lines


def about_lines(rank: RankSample, width: int) -> list[list[Cell]]:
    """Job, launcher, place in the kernel and command, wrapped."""
    facts = {
        "job": rank.job,
        "launcher": rank.launcher,
        "user": rank.user,
        "started": clock_time(rank.started_at),
        "kernel function": rank.wchan if rank.wchan not in (None, "", "0") else "",
        "cpus": rank.cpus_allowed,
        "children": str(len(rank.children)) if rank.children else "",
    }
    cells = []
    for label, value in facts.items():
        cells += [Cell(f"{label} ", "dim"), Cell(f"{value}  ")] if value else []
    lines = wrap(cells, width) if cells else []
    return [*lines, *wrap([Cell(rank.command, "dim")], width)[:2]] if rank.command else lines
