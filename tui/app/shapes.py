"""How the user wants each table: sorted by what, with which columns; as configured, and as changed on the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mltop.tui.config.catalog import TABLES, column_named
from mltop.tui.config.settings import Config
from mltop.tui.render.rows import Sort
from mltop.tui.state.lists import Choices, Chosen

Remember = Callable[[Callable[[Choices], Choices]], None]


class Shapes:
    """``sorts`` and ``columns`` by the name of a table (``LineTable.kind``). What is changed is remembered."""

    def __init__(self, config: Config, remember: Remember) -> None:
        self._config, self._remember = config, remember
        self.sorts = {kind: sort for kind, word in config.sort.items() if (sort := sort_of(kind, word)) is not None}
        self.columns = {kind: columns_of(kind, words) for kind, words in config.columns.items()}

    def sort(self, kind: str, sort: Sort | None) -> None:
        if sort is None:
            self.sorts.pop(kind, None)
        else:
            self.sorts[kind] = sort
        self.chosen(f"sort.{kind}", f"{'-' * sort.reverse}{sort.column}" if sort is not None else None)

    def choose(self, kind: str, keys: Sequence[str]) -> None:
        """None: all, as they come."""
        if keys:
            self.columns[kind] = tuple(keys)
        else:
            self.columns.pop(kind, None)
        self.chosen(f"columns.{kind}", list(keys) or None)

    def chosen(self, key: str, value: object) -> None:
        """Remember a setting; None: no longer."""
        over = self._config.file_values.get(key)

        def change(choices: Choices) -> Choices:
            others = {name: chosen for name, chosen in choices.screen.items() if name != key}
            return replace(choices, screen=others if value is None else {**others, key: Chosen(value, over)})

        self._remember(change)


def sort_of(kind: str, word: str) -> Sort | None:
    """E.g. of "-temp"; None where the table has no such column."""
    column = column_named(TABLES.get(kind, ()), word.removeprefix("-"))
    return Sort(column.key, word.startswith("-")) if column is not None else None


def columns_of(kind: str, words: Sequence[str]) -> tuple[str, ...]:
    """The keys of the columns that these words name."""
    named = (column_named(TABLES.get(kind, ()), word) for word in words)
    return tuple(dict.fromkeys(column.key for column in named if column is not None))
