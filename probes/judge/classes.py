"""Ranks with one and the same stack are one class. Work is per class, not per rank, from here on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.fold import fold
from mltop.probes.judge.frames import key_of
from mltop.probes.model import StackClass, StackDigest


@dataclass
class _Group:
    shown: StackDigest
    ranks: list[int] = field(default_factory=list)
    count: int = 0


def merge(digests: Sequence[StackDigest]) -> list[StackClass]:
    """Classes of the ranks' main threads: those outside collectives first, then the smallest first.

    Takes one digest per rank; digests of children and other threads, and unreadable ones, are left out.
    O(digests) dictionary look-ups; equal keys mean equal Python frames. Of native ones a class shows those of one rank.
    """
    groups: dict[tuple[str, str | None], _Group] = {}
    for digest in digests:
        if digest.child_of is not None or digest.thread != "MainThread" or not digest.frames:
            continue
        key = (key_of(digest), digest.waiting_in)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(digest)
        elif len(digest.frames) > len(group.shown.frames):  # py-spy could stop this one: the native frames, too
            group.shown = digest
        group.count += 1
        if digest.rank is not None:
            group.ranks.append(digest.rank)
    return sorted(map(_class, groups.values()), key=_order)


def _class(group: _Group) -> StackClass:
    return StackClass(fold(group.ranks), group.count, group.shown.waiting_in, group.shown.frames)


def _order(made: StackClass) -> tuple[bool, int, int]:
    first_rank = made.ranks.partition(",")[0].partition("-")[0]
    return (made.waiting_in is not None, made.count, int(first_rank) if first_rank else -1)


def by_place(pairs: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Ranks by text, in order of the first occurrence."""
    groups: dict[str, list[int]] = {}
    for rank, text in pairs:
        groups.setdefault(text, []).append(rank)
    return groups
