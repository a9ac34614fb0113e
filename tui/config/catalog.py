"""The tables that the user may change, by name: which columns there are, and what a choice of them shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mltop.tui.render.cells import Column
from mltop.tui.render.fleet.nodes import MARKED_NODE_COLUMNS
from mltop.tui.render.gpus.table import GPU_COLUMNS
from mltop.tui.render.links import LINK_COLUMNS, PCI_COLUMNS
from mltop.tui.render.ranks import RANK_COLUMNS

TABLES: Mapping[str, Sequence[Column]] = {
    "gpus": GPU_COLUMNS,
    "ranks": RANK_COLUMNS,
    "nodes": MARKED_NODE_COLUMNS,
    "ports": LINK_COLUMNS,
    "pci": PCI_COLUMNS,
}


def column_named(columns: Sequence[Column], word: str) -> Column | None:
    """The column of this key, title or field of filters, in any case; else the only one that begins so."""
    wanted = word.casefold()
    names = [(column, {column.key.casefold(), column.title.casefold(), column.field.casefold()}) for column in columns]
    exact = [column for column, of_it in names if wanted in of_it]
    begins = [column for column, of_it in names if wanted and any(name.startswith(wanted) for name in of_it)]
    found = exact[:1] or (begins if len(begins) == 1 else [])
    return found[0] if found else None


def column_keys(columns: Sequence[Column]) -> list[str]:
    """What can be asked for: columns without a title are always there."""
    return [column.key for column in columns if column.title]
