"""Node names as short as they can be where many stand in one picture. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from mltop.tui.render.cells import clip

NAME_MOST = 24  # cells


@lru_cache(maxsize=8)
def short_names(names: tuple[str, ...]) -> Mapping[str, str]:
    """By name: without the dotted suffix that all of ``names`` share, at most NAME_MOST cells of its end.

    Addresses and a single name stay whole: the end of an address is what tells it from others.
    """
    labels = [name.split(".") for name in names]
    shared = 0
    if len(set(names)) > 1 and not any(_is_address(name) for name in names):
        most = min(len(one) for one in labels) - 1  # a name keeps its first label
        while shared < most and len({one[-1 - shared] for one in labels}) == 1:
            shared += 1
    return {name: _cut(".".join(one[: len(one) - shared])) for name, one in zip(names, labels, strict=True)}


def name_width(names: Mapping[str, str], least: int) -> int:
    """Cells of the longest of ``short_names``, ``least`` or more."""
    return max(least, max(map(len, names.values()), default=0))


def _is_address(name: str) -> bool:
    return ":" in name or name.rpartition(".")[2].isdigit()


def _cut(name: str) -> str:
    return name if len(name) <= NAME_MOST else clip(name, NAME_MOST, tail=True, marked=True)
