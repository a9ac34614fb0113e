"""The help as lines: keys, those of one pane first, terms, filters; in as many columns as fit. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from textual.binding import Binding

from mltop.tui.app.keys import APP_BINDINGS, PANE_BINDINGS, PANES, grouped, help_rows, with_user_keys
from mltop.tui.app.resources import RESOURCES
from mltop.tui.filters import FIELDS, Field
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.glyphs import GLYPHS, GlyphSet
from mltop.tui.render.gpus.details import side_by_side
from mltop.tui.widgets.cell_view import MOVES

if TYPE_CHECKING:
    from mltop.tui.screens.pane import Pane

Line = list[Cell]
COLUMN, GAP = 59, 2  # cells of a column at least, and those free at its right
LABEL = 18  # cells of what a line is about: keys, a term, a field

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
SHARED = (*APP_BINDINGS, *PANE_BINDINGS, *Binding.make_bindings(MOVES))
Block = tuple[str, Sequence[tuple[str, str]]]  # a title; what each line is about, and what it says


def key_blocks(pane: str, several: bool, keys: Mapping[str, str]) -> list[Block]:
    """``pane``: whose keys come first; ``several``: nodes are watched; ``keys``: that the user gives to actions."""
    shared = {(binding.key, binding.action) for binding in Binding.make_bindings(SHARED)}
    here = next(cast("type[Pane]", entry.load(several)) for entry in PANES if entry.name == pane)
    own = [one for one in here.pane_bindings() if (one.key, one.action) not in shared]
    first = [(f"In this pane ({pane})", own)] if own else []
    others = [(f"In the {name} pane", bindings) for name, bindings in own_bindings() if name != pane]
    typed = [(" ".join(f":{name}" for name in one.names[:2]), one.meaning) for one in RESOURCES]
    return [*_of_keys(first, keys), *shared_blocks(keys), *_of_keys(others, keys), ("Typed", typed)]


def shared_blocks(keys: Mapping[str, str]) -> list[Block]:
    """What all panes have: no pane is imported for it."""
    return _of_keys(grouped(SHARED), keys)


def _of_keys(blocks: Iterable[tuple[str, Sequence[Binding]]], keys: Mapping[str, str]) -> list[Block]:
    return [(title, help_rows(with_user_keys(bindings, keys))) for title, bindings in blocks]


def filter_blocks() -> list[Block]:
    """Examples, then every field with its meaning and unit."""
    note = "A node is shown when one of its GPUs or ranks fulfils all of it; a rank has the fields of its GPUs."
    fields = [(field.name, _meaning(field)) for field in FIELDS.values()]
    return [("Filter: / then words, or terms over fields", [*EXAMPLES, ("", note)]), ("Fields", fields)]


def _meaning(field: Field) -> str:
    return f"{_OF[field.of]}{field.meaning}" + (f" ({field.unit.written})" if field.unit.written else "")


_OF = {"node": "node: ", "gpu": "GPU: ", "rank": "rank: ", "finding": "problem: "}


def help_lines(blocks: Sequence[Block], width: int) -> list[Line]:
    """In columns that are as low as they can be; what comes first is at the top left."""
    count = max(1, width // COLUMN)
    each = width // count
    made = [_lines(title, rows, each - GAP) for title, rows in blocks]
    columns: list[list[Line]] = []
    high = sum(len(block) + 1 for block in made) // count
    while made and not 0 < len(columns) <= count:
        high, columns = high + 1, [[]]
        for block in made:
            if columns[-1] and len(columns[-1]) + 1 + len(block) > high:
                columns.append([])
            columns[-1] += [[], *block] if columns[-1] else block
    return side_by_side(columns, each) if columns else []


def _lines(title: str, rows: Iterable[tuple[str, str]], width: int) -> list[Line]:
    lines = [[Cell(title, "title")]]
    for about, what in rows:
        lines += wrap([Cell(f"  {about:<{LABEL - 2}}  ", "accent"), Cell(what)], width, LABEL + 2)
    return lines


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
