"""All keys, made from the bindings themselves, and what "/" takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from textual.binding import Binding
from textual.widget import Widget

from mltop.tui.app.feed import Picture
from mltop.tui.app.keys import APP_BINDINGS, PANE_BINDINGS, PANES, grouped, help_rows, with_user_keys
from mltop.tui.app.resources import RESOURCES
from mltop.tui.filters import FIELDS, Field
from mltop.tui.render.cells import Cell, plain, wrap
from mltop.tui.render.glyphs import GLYPHS, GlyphSet
from mltop.tui.screens.pane import Pane
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import MOVES

Line = list[Cell]
NAME_WIDTH = 12
EXAMPLE_WIDTH = 26
WIDE = 118  # from here on there are two columns of fields

EXAMPLES = (
    ("loss !node07", "rows with the word loss and without node07"),
    ("sm<20% & power>300W", "both on the same GPU; & may be left out"),
    ("state!=live | temp>=85", "one or the other; ( ) group, ! negates"),
    ("node=gpu[01-16] user=a*", "names: ranges, * and ?; ~ is contains; also rank=0-3,7"),
    ("!(rank=3)  user!=ada", "none of a node's GPUs or ranks is so; beside other terms: of the same GPU"),
    ("power=?  power!=?", "unknown, known: no other term holds of what is unknown"),
    ("severity>=warning", "none < info < warning < critical"),
    ('"lr=0.1"', "literal text"),
)


def filter_lines(width: int) -> list[Line]:
    """Examples, then every field with its meaning and unit."""
    lines = [[Cell("Filter: / then words, or terms over fields", "title")]]
    lines += [[Cell(f"  {text:<{EXAMPLE_WIDTH}}", "accent"), Cell(what)] for text, what in EXAMPLES]
    note = "A node is shown when one of its GPUs or ranks fulfils all of it; a rank has the fields of its GPUs."
    lines += [[], [Cell("Fields", "title")], [Cell(f"  {note}", "dim")]]
    fields = list(FIELDS.values())
    if width < WIDE:
        return lines + [_field(field, width) for field in fields]
    half, column = -(-len(fields) // 2), width // 2
    drawn = [_field(field, column) for field in fields]
    return lines + _side_by_side(drawn[:half], drawn[half:], column)


def _field(field: Field, width: int) -> Line:
    """E.g. ``  power       what it draws (W)``."""
    unit = f" ({field.unit.written})" if field.unit.written else ""
    meaning = f"{_OF[field.of]}{field.meaning}"
    return [
        Cell(f"  {field.name:<{NAME_WIDTH}}", "accent"),
        Cell(meaning[: max(0, width - NAME_WIDTH - 2)]),
        Cell(unit[: max(0, width - NAME_WIDTH - 2 - len(meaning))], "dim"),
    ]


_OF = {"node": "node: ", "gpu": "GPU: ", "rank": "rank: ", "finding": "problem: "}


def _side_by_side(left: Sequence[Line], right: Sequence[Line], width: int) -> list[Line]:
    """Two columns of lines; ``width`` of the left one, in cells."""
    pairs = zip_longest(left, right, fillvalue=Line())
    return [[*first, Cell(" " * max(0, width - len(plain(first)))), *second] for first, second in pairs]


KEYS_WIDTH, BLOCK_WIDTH = 18, 79  # cells: of the keys of a line, of the whole line
SHARED = (*APP_BINDINGS, *PANE_BINDINGS, *Binding.make_bindings(MOVES))


class HelpScreen(Pane):
    AUTO_FOCUS = "#keys-list"
    DEFAULT_CSS = "HelpScreen #keys-list { height: 1fr; }"
    lines_are = "lines of the help"

    def body(self) -> Iterable[Widget]:
        yield CellLines(id="keys-list", classes="gap-above", empty_text="no line of the help matches")

    def fill(self, picture: Picture) -> None:
        """The keys do not depend on what is watched."""

    def draw(self) -> None:
        super().draw()
        if self.is_composed:
            lines = [line for line in drawable(self._lines()) if self.filter.empty or self.keeps(plain(line))]
            self.query_one("#keys-list", CellLines).set_lines(lines)

    def _lines(self) -> list[Line]:
        """Keys, in two columns where there is room and no filter looks for single ones; then the filter's fields."""
        width = self.size.width
        keys = self.mltop.config.keys
        blocks = [_block(title, bindings) for title, bindings in grouped(with_user_keys(SHARED, keys))]
        own = [_block(f"In the {name} pane", with_user_keys(bindings, keys)) for name, bindings in own_bindings()]
        typed = [(" ".join(f":{name}" for name in one.names[:2]), one.meaning) for one in RESOURCES]
        own.append(_rows_block("Typed", typed))
        filters = filter_lines(width if self.filter.empty else min(width, WIDE - 1))
        half = width // 2
        longest = max(len(line[-1].text) for block in (*blocks, *own) for line in block)
        if half < KEYS_WIDTH + longest or not self.filter.empty:
            narrow = [line for block in (*blocks, *own) for line in [*block, []]] + filters
            return [part for line in narrow for part in (wrap(line, width - 1, KEYS_WIDTH + 2) if line else [line])]
        left, right = _halves([*blocks, *own])
        return [*_side_by_side(left, right, half), *filters]


def drawable(lines: Iterable[Line], glyphs: GlyphSet = GLYPHS) -> list[Line]:
    """What tooltips leave out is marked with the sign of the glyphs in use: an ASCII terminal has no "…"."""
    return [[replace(cell, text=cell.text.replace("…", glyphs.ellipsis)) for cell in line] for line in lines]


def own_bindings() -> list[tuple[str, list[Binding]]]:
    """The panes that have keys of their own, and these."""
    shared = {(binding.key, binding.action) for binding in PANE_BINDINGS}
    own = []
    for entry in PANES:
        bindings = Binding.make_bindings(entry.load(several=True).__dict__.get("BINDINGS", []))
        own.append((entry.name, [binding for binding in bindings if (binding.key, binding.action) not in shared]))
    together: list[tuple[str, list[Binding]]] = []  # those that have the same keys
    for name, bindings in own:
        same = next((index for index, (_, known) in enumerate(together) if known == bindings), None)
        if same is not None:
            together[same] = f"{together[same][0]} or {name}", bindings
        elif bindings:
            together.append((name, bindings))
    return together


def _halves(blocks: Sequence[Sequence[Line]]) -> tuple[list[Line], list[Line]]:
    """Two columns of about one height, the blocks in their order from the top left to the bottom right."""
    whole = sum(len(block) + 1 for block in blocks)
    columns: tuple[list[Line], list[Line]] = [], []
    at = 0
    for block in blocks:
        at += bool(at == 0 and len(columns[0]) + len(block) // 2 > whole / 2)
        columns[at].extend([*block, []])
    return columns


def _block(title: str, bindings: Iterable[Binding]) -> list[Line]:
    return _rows_block(title, help_rows(bindings))


def _rows_block(title: str, rows: Sequence[tuple[str, str]]) -> list[Line]:
    lines = [[Cell(title, "title")]]
    for keys, what in rows:
        lines += wrap([Cell(f"  {keys:<{KEYS_WIDTH}}", "accent"), Cell(what)], BLOCK_WIDTH, KEYS_WIDTH + 2)
    return lines
