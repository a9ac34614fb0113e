"""Active probes: what runs, the verdict, every device or size in a table, and below it what else is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location, gpu_location
from mltop.tui.render.probes.kinds import TABLES, Device
from mltop.tui.render.probes.summary import empty_lines, headline, split_verdict
from mltop.tui.screens.pane import Memo, Pane, TextLines
from mltop.tui.screens.probes.tables import NO_TABLE, ProbeTable, at_cursor, joined, lasting, table_of
from mltop.tui.screens.tabled import Lines
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView
from mltop.tui.widgets.line_table import LineTable

LEAST_BELOW = 4  # lines


class ProbesScreen(Pane):
    AUTO_FOCUS = ""  # which table there is depends on what runs
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("less_than_sign", "run(-1)", "run before", show=False, tooltip="the probe run before this one"),
        Binding("greater_than_sign", "run(1)", "run after", show=False, tooltip="the probe run after this one"),
    ]
    DEFAULT_CSS = "ProbesScreen #more { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._shown = NO_TABLE
        self._head, self._table = Memo[Lines](), Memo[ProbeTable]()
        self._fixed = Memo[tuple[list[Lines], list[Lines]]]()

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="what")
        yield TextLines(id="verdict")
        for name in TABLES:
            table = LineTable(id=f"table-{name}", empty_text="no device has answered yet")
            table.display = False
            yield table
        yield CellLines(id="more", classes="gap-above")

    def fill(self, picture: Picture) -> None:
        probing = self.mltop.probing
        probing.want_past()
        progress = probing.shown
        if progress is None:
            self._show_nothing()
            return
        width, room = self.size.width, self.size.height - self.chrome_height()
        everybody = [node.node for node in picture.view.nodes]
        cancels = probing.cancelling and progress is probing.running
        basis = (cancels, width, probing.looked_at, tuple(everybody))
        head = self._head.get((progress, *basis), lambda: headline(progress, *basis))
        room -= self.set_part("#what", head[: room // 4 + 1])
        report = progress.report
        above: Lines = []
        left: Lines = []
        if report is not None:
            above, left = split_verdict(report.verdict, width - 1, max(2, room * 2 // 5), report.failures)
        room -= self.set_part("#verdict", above)
        # The table is made anew only when there is news: a key need not wait for it.
        source = (progress, probing.past, self.mltop.trail.here.collective)
        self._shown = shown = self._table.get(source, lambda: table_of(*source))
        table = self._show_table(shown.name)
        self.put(table, shown.columns, shown.rows(picture.view))
        size = (width - 1, self.size.height - 4)
        before, after = self._fixed.get((progress, shown, size), lambda: lasting(progress, shown, size))
        at_device = at_cursor(progress, shown, table.cursor_key, probing.past, size[0])
        below = joined([left, *before, *at_device, *after])
        self.query_one("#more", CellLines).set_lines(below)
        wanted = 1 + max(1, table.row_count)
        if wanted > room - LEAST_BELOW:  # it scrolls: what is below need not
            wanted = max(room - len(below), room - max(LEAST_BELOW, room // 3))
        table.styles.height = max(2, wanted)

    def node_at_cursor(self) -> str:
        return self._about_cursor()[0]

    def nodes_shown(self) -> list[str]:
        """The nodes of the rows that the filter lets through."""
        if self._shown is NO_TABLE:
            return super().nodes_shown()
        return list(filter(None, dict.fromkeys(self._shown.about(key)[0] for key in self.tables()[0].keys)))

    def action_run(self, step: int) -> None:
        self.mltop.probing.look(step)
        self.draw()

    def copy_text(self) -> str:
        """The torchrun command that does the same, where there is one."""
        progress = self.mltop.probing.shown
        command = progress.report.command if progress is not None and progress.report is not None else ""
        return command or super().copy_text()

    def on_cursor_view_highlighted(self, event: CursorView.Highlighted) -> None:  # noqa: ARG002
        """Below the table stands what is known of the device under the cursor."""
        self.draw()

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        shown = self._shown
        if shown.name == "sizes":
            label = shown.make(list(shown.keys).index(event.key)).cells[0].text
            self.mltop.drill(Location("probes", collective=event.key, label=f"ranks at {label}"))
            return
        node, gpu = self._about_cursor()
        if gpu is not None:
            self.mltop.drill(gpu_location(node, gpu))
        elif node:
            self.mltop.drill(Location("node", node))

    def _show_table(self, name: str) -> LineTable:
        """Show only this table, which gets the focus from the one before."""
        wanted = self.query_one(f"#table-{name}", LineTable)
        had_focus = self.focused is None or (isinstance(self.focused, LineTable) and self.focused is not wanted)
        for table in self.query(LineTable):
            table.display = table is wanted
        if had_focus:
            wanted.focus()
        return wanted

    def _show_nothing(self) -> None:
        for part in ("#what", "#verdict"):
            self.set_part(part, [])
        self._shown = NO_TABLE
        for table in self.query(LineTable):
            table.display = False
        cannot = "" if self.mltop.live is not None else "what is shown here cannot be probed"
        cannot = "probes are off: --read-only" if self.mltop.read_only else cannot
        self.query_one("#more", CellLines).set_lines(empty_lines(cannot, self.size.width - 1))

    def _about_cursor(self) -> Device:
        tables = self.tables()
        return self._shown.about(tables[0].cursor_key if tables else None)
