"""Prints a benchmark's figures beside their goals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    at_most: float


def print_table(title: str, rows: Iterable[tuple[str, float, Goal | None]]) -> None:
    print(f"\n{title}")
    for name, value, goal in rows:
        said = "" if goal is None else f"goal <= {goal.at_most:g}   {'met' if value <= goal.at_most else 'MISSED'}"
        print(f"  {name:<52} {value:>10.3f}   {said}")
