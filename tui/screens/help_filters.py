"""What "/" takes, for the help. Pure functions."""

from __future__ import annotations

from mltop.tui.filters import FIELDS, Field
from mltop.tui.render.cells import Cell

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
    ('"lr=0.1"', "text as it stands"),
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
    left, right = fields[:half], fields[half:]
    for at, field in enumerate(left):
        beside = _field(right[at], column) if at < len(right) else []
        lines.append([*_filled(_field(field, column), column), *beside])
    return lines


def _field(field: Field, width: int) -> Line:
    """E.g. ``  power       what it draws (W)``."""
    unit = f" ({field.kind.unit})" if field.kind.unit else ""
    meaning = f"{_OF[field.of]}{field.meaning}"
    return [
        Cell(f"  {field.name:<{NAME_WIDTH}}", "accent"),
        Cell(meaning[: max(0, width - NAME_WIDTH - 2)]),
        Cell(unit[: max(0, width - NAME_WIDTH - 2 - len(meaning))], "dim"),
    ]


_OF = {"node": "node: ", "gpu": "GPU: ", "rank": "rank: ", "finding": "problem: "}


def _filled(line: Line, width: int) -> Line:
    used = sum(len(cell.text) for cell in line)
    return [*line, Cell(" " * max(0, width - used))]
