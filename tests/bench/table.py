"""Prints a benchmark's figures beside their goals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    at_most: float


def print_table(title: str, rows: Iterable[tuple[str, float, Goal | None]]) -> None:
    print(f"\n{title}")
    for name, value, goal in rows:
        said = "" if goal is None else f"goal <= {goal.at_most:g}   {'met' if value <= goal.at_most else 'MISSED'}"
        print(f"  {name:<52} {value:>10.3f}   {said}")


def print_matrix(
    title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[float | None], Goal | None]]
) -> None:
    """A column for each program; the goal is the first one's. None: nothing was measured."""
    print(f"\n{title}")
    print(f"  {'':<40}" + "".join(f"{name:>12}" for name in columns))
    for name, values, goal in rows:
        cells = "".join(f"{'-' if value is None else format(value, '.3f'):>12}" for value in values)
        said = ""
        if goal is not None and values[0] is not None:
            said = f"   goal <= {goal.at_most:g}   {'met' if values[0] <= goal.at_most else 'MISSED'}"
        print(f"  {name:<40}{cells}{said}")
