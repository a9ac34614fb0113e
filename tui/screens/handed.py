"""What the keys of every pane do with what is under the cursor: open, copy, export, mark; and where the cursor goes."""

from __future__ import annotations

from mltop.probes.model.text import clean
from mltop.tui.app.navigation import gpu_of_row
from mltop.tui.app.selection import Looked
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.screens.bars import Notice
from mltop.tui.screens.tabled import TabledScreen
from mltop.tui.screens.tables import rank_of
from mltop.tui.widgets.cell_view import About, CursorView
from mltop.tui.widgets.line_table import LineTable

COPIED = "copied, if this terminal lets programs do that: "
MOST_SHOWN = 60  # characters of what was copied


class HandedScreen(TabledScreen):
    """One thing is looked at, on all panes: their cursors go to it."""

    focus_follows = True  # the view of what is looked at gets the focus when the user comes here

    def __init__(self) -> None:
        super().__init__()
        self._to_place = True  # the user has just come to this pane
        self._looked_here = Looked()  # what its cursors are on

    def node_at_cursor(self) -> str:
        """The node that the cursor is on; "" when this pane has none."""
        return ""

    def views(self) -> list[CursorView]:
        """Those that are shown and have something to select, the active one first."""
        found = [view for view in self.query(CursorView) if view.display and view.cursor_key is not None]
        return sorted(found, key=lambda view: view is not self.active_view)

    def view_at_cursor(self) -> CursorView | None:
        """That in which the user is, or the first that could be."""
        if self.active_view is not None and self.active_view.display:
            return self.active_view
        return next(iter(self.views()), None)

    # What is looked at.

    def looked_by(self, view: CursorView, key: str) -> Looked | None:
        """What an item is about; None where that is no node, GPU or process."""
        if view.about == "gpu":
            return Looked(self.node_at_cursor(), gpu_of_row(key))
        if view.about == "node":
            return Looked(key)
        if view.about != "rank":
            return None
        node, _, pid = key.rpartition("/")
        views = self.mltop.picture.view.nodes if self.mltop.picture is not None else ()
        rank = rank_of(next((each for each in views if each.node == node), None), int(pid)) if pid.isdecimal() else None
        return Looked(node, rank.gpus[0] if rank is not None and rank.gpus else None, rank.pid if rank else 0)

    def cursor_moved(self, view: CursorView, key: str) -> None:
        looked = self.looked_by(view, key)
        if looked is not None and looked.node:
            self.mltop.looked = self._looked_here = looked

    def place_cursors(self) -> None:
        """Once after the user has come here: put the cursors on what is looked at."""
        looked = self.mltop.looked
        if not self._to_place or looked == self._looked_here:
            return
        self._to_place, self._looked_here = False, looked
        placed: dict[About, CursorView] = {}
        for view in self.query(CursorView):
            if view.display and (key := self.key_looked_at(view, looked)) and view.move_cursor(key):
                placed.setdefault(view.about, view)
        order: tuple[About, ...] = ("rank", "gpu", "node") if looked.pid else ("gpu", "node", "rank")
        nearest = next((placed[about] for about in order if about in placed), None)
        if self.focus_follows and nearest is not None and nearest.focusable:
            self.set_focus(nearest)

    def key_looked_at(self, view: CursorView, looked: Looked) -> str:
        """The item that is about it; "" where there can be none."""
        if view.about == "node":
            return looked.node
        if view.about == "rank":
            return f"{looked.node}/{looked.pid}" if looked.pid else ""
        on_this = view.about == "gpu" and looked.gpu is not None and looked.node == self.node_at_cursor()
        return str(looked.gpu) if on_this else ""

    def on_screen_resume(self) -> None:
        self._to_place = True
        self.draw()

    # Keys.

    def copy_text(self) -> str:
        """What `y` copies: all that stands under the cursor."""
        view = self.view_at_cursor()
        return view.text_at_cursor() if view is not None else ""

    def export(self) -> dict[str, object]:
        """What `e` writes: the whole pane. Values are strings, numbers, lists and dicts of them."""
        tables = {
            table.kind or table.id or f"table {number}": table.as_data() for number, table in enumerate(self.tables())
        }
        lines = [line for view in self.query(CursorView) if not isinstance(view, LineTable) for line in view.texts()]
        return {"tables": tables, "lines": [line for line in lines if line]}

    def action_copy(self) -> None:
        """The terminal copies it (OSC 52): over ssh that is the user's own clipboard, where the terminal allows it."""
        text = "\n".join(map(clean, self.copy_text().splitlines()))  # it may be pasted into a shell
        if not text:
            self.mltop.tell(Notice("nothing is under the cursor to copy", "warn"))
            return
        self.mltop.copy_to_clipboard(text)
        first, *more = text.splitlines()
        count = f" and {len(more)} more lines" if more else ""
        self.mltop.tell(Notice(f"{COPIED}{first[:MOST_SHOWN]}{count}", "accent"))

    def action_export(self) -> None:
        self.mltop.export(self.export())

    def action_describe(self) -> None:
        """As Enter."""
        view = self.view_at_cursor()
        if view is not None:
            view.action_select()
        else:
            self.mltop.tell(Notice("nothing is under the cursor", "warn"))

    def action_next_match(self, step: int) -> None:
        """To the next row of those that the filter leaves, from the last to the first."""
        view = self.view_at_cursor()
        if self.filter.empty:
            self.mltop.tell(Notice(f"nothing was looked for: {KEYCAPS['filter']} filters", "warn"))
        elif view is not None:
            view.step_around(step)

    def action_log(self) -> None:
        self.mltop.tell(
            Notice(f"no log here: {KEYCAPS['ranks']} shows ranks, and there {KEYCAPS['log']} the log of one", "warn")
        )

    def action_tree(self) -> None:
        self.mltop.tell(Notice(f"no tree here: {KEYCAPS['ranks']} shows processes", "warn"))

    def action_no_signal(self) -> None:
        self.mltop.tell(Notice(f"no signal was sent: {KEYCAPS['signal']} asks which, on a rank", "warn"))

    def action_shell(self) -> None:
        self.mltop.ask_shell(self.node_at_cursor())

    def action_columns(self) -> None:
        """Open the command line with the columns that the table has now."""
        table = self._active_table()
        if table is None or not table.kind:
            self.mltop.tell(Notice("no table here has columns to choose", "warn"))
            return
        shown = " ".join(table.shown_keys())
        self.mltop.open_command_line(f"columns {table.kind} {shown} ")
