"""What `mltop doctor` prints: what is missing first, nodes that say the same on one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mltop.probes.investigate.folding import folded
from mltop.probes.investigate.missing import nameless
from mltop.tui.render.cells import Cell, Column, Row, columns_line, header_line, layout, line_width
from mltop.tui.report.page import print_fix, print_lines, print_sentence

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = {"ok": "ok", "info": "dim", "warning": "warn", "missing": "crit"}
_ORDER = {"missing": 0, "warning": 1, "ok": 2, "info": 3}
_COLUMNS = (Column("node", "NODE", 16), Column("name", "CHECK", 16), Column("state", "STATE", 8))
_SECONDS = re.compile(r"(\d+(?:\.\d+)?) s\b")
WIDE_NAMES = 16  # cells: folded names that are longer get a line of their own


@dataclass
class _Line:
    """One check with one answer, of all nodes that gave it."""

    name: str
    state: str
    fix: str
    nodes: list[str] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)


def print_doctor(rows: Sequence[Mapping[str, str]], console: Console) -> None:
    """Checks with the keys node, name, state (ok | info | warning | missing), why and fix (a command or "")."""
    shown = layout(_COLUMNS, console.width)
    print_lines([[*header_line(_COLUMNS, shown), Cell(" WHY", "title")]], console)
    for line in sorted(_folded(rows), key=lambda line: _ORDER.get(line.state, 0)):
        names = folded(line.nodes)
        cells = (Cell(names), Cell(line.name), Cell(line.state, _STYLE.get(line.state, "warn")))
        if len(names) > WIDE_NAMES:
            print_sentence([Cell(names)], console)
            cells = (Cell(f"  {len(line.nodes)} nodes" if len(line.nodes) > 1 else ""), *cells[1:])
        start = columns_line(_COLUMNS, Row("", cells), shown)
        indent = line_width(start) + 1
        indent = indent if indent < console.width * 2 // 3 else 4
        why = _one_of(line.whys)
        why = why if len(line.nodes) == 1 else nameless(why, line.nodes[0])
        print_sentence([*start, Cell(" " + why)], console, indent)
        # A command that names its node is given for the first one: "the node" cannot be typed.
        print_fix(line.fix, console, example=len(line.nodes) > 1 and nameless(line.fix, line.nodes[0]) != line.fix)


def _folded(rows: Iterable[Mapping[str, str]]) -> list[_Line]:
    """Answers that differ in their seconds or in the node's name only are one."""
    lines: dict[tuple[str, ...], _Line] = {}
    for row in rows:
        node, name, state, why, fix = (row.get(key, "") for key in ("node", "name", "state", "why", "fix"))
        key = (name, state, _SECONDS.sub("# s", nameless(why, node)), nameless(fix, node))
        line = lines.setdefault(key, _Line(name, state, fix))
        line.nodes.append(node)
        line.whys.append(why)
    return list(lines.values())


def _one_of(whys: Sequence[str]) -> str:
    """ "ssh, connected in 0.21-0.63 s" of the sentences of several nodes."""
    ranges = [sorted(values, key=float) for values in zip(*map(_SECONDS.findall, whys), strict=True)]
    texts = iter(values[0] if values[0] == values[-1] else f"{values[0]}-{values[-1]}" for values in ranges)
    return _SECONDS.sub(lambda _: f"{next(texts)} s", whys[0])
