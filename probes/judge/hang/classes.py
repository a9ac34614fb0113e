"""Ranks with one and the same stack are one class. Work is per class, not per rank, from here on.

So is the merged call tree: its cost does not grow with the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.hang.frames import is_internal, key_of
from mltop.probes.model import Frame, StackClass, StackDigest
from mltop.probes.model.ranks import Ranges


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
    return StackClass(Ranges.of(group.ranks), group.count, group.shown.waiting_in, group.shown.frames)


def _order(made: StackClass) -> tuple[bool, int, int]:
    first = made.ranks.first
    return (made.waiting_in is not None, made.count, -1 if first is None else first)


def by_place(pairs: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Ranks by text, in order of the first occurrence."""
    groups: dict[str, list[int]] = {}
    for rank, text in pairs:
        groups.setdefault(text, []).append(rank)
    return groups


_Key = tuple[str, str, int]


@dataclass
class TreeLine:
    """One line for the screen, root first. ``elided`` > 0: it stands for so many frames ("… 14 frames"), and
    function, file and line are empty. ``waiting_in`` is set on the last line of a class that waits.
    ``class_indexes`` point into the classes that the tree was made from.
    """

    depth: int
    function: str
    file: str
    line: int
    ranks: Ranges
    count: int
    waiting_in: str | None = None
    elided: int = 0
    class_indexes: tuple[int, ...] = ()


@dataclass
class _Node:
    frame: Frame
    classes: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # classes whose leaf this is
    children: dict[_Key, _Node] = field(default_factory=dict)


def merged_tree(classes: Sequence[StackClass], max_lines: int | None = None) -> list[TreeLine]:
    """Prefix tree over the classes' frames in the order of ``classes``; long chains are elided.

    Of each unbranched chain the first frame, the last one and the leaf-most line of user code stay. With
    ``max_lines`` the deepest detail goes first: chains keep their last frame only, then the last lines are
    folded into one (``elided`` counts the lines left out, ``class_indexes`` their classes).
    """
    roots = _build(classes)
    lines = _Writer(classes, short=False).write(roots)
    if max_lines is not None and len(lines) > max_lines:
        lines = _Writer(classes, short=True).write(roots)
    if max_lines is not None and len(lines) > max_lines:
        lines = _cut(lines, classes, max_lines)
    return lines


def _build(classes: Sequence[StackClass]) -> list[_Node]:
    top: dict[_Key, _Node] = {}
    for index, made in enumerate(classes):
        level, node = top, None
        for frame in reversed(made.frames):
            key = (frame.function, frame.file, frame.line)
            node = level.setdefault(key, _Node(frame))
            node.classes.append(index)
            level = node.children
        if node is not None:
            node.ends.append(index)
    return list(top.values())


class _Writer:
    def __init__(self, classes: Sequence[StackClass], short: bool) -> None:
        self.classes = classes
        self.short = short
        self.lines: list[TreeLine] = []

    def write(self, roots: list[_Node]) -> list[TreeLine]:
        # A stack of our own: a deep recursion in the script must not become one here.
        pending = [(node, 0) for node in reversed(roots)]
        while pending:
            node, depth = pending.pop()
            chain = _chain(node)
            depth = self._chain_lines(chain, depth)
            pending.extend((child, depth) for child in reversed(list(chain[-1].children.values())))
        return self.lines

    def _chain_lines(self, chain: list[_Node], depth: int) -> int:
        """Lines of one unbranched chain; the depth below it."""
        indexes = tuple(chain[0].classes)
        ranks, count = _members(indexes, self.classes)
        skipped = 0
        for at, keep in enumerate(self._kept(chain)):
            if not keep:
                skipped += 1
                continue
            if skipped:
                self.lines.append(TreeLine(depth, "", "", 0, ranks, count, None, skipped, indexes))
                depth, skipped = depth + 1, 0
            node = chain[at]
            frame = node.frame
            waits = next((self.classes[end].waiting_in for end in node.ends), None)
            self.lines.append(TreeLine(depth, frame.function, frame.file, frame.line, ranks, count, waits, 0, indexes))
            depth += 1
        return depth

    def _kept(self, chain: list[_Node]) -> list[bool]:
        last = len(chain) - 1
        users = [at for at, node in enumerate(chain) if not is_internal(node.frame)]
        wanted = {last} if self.short else {0, last, *users[-1:]}
        keep = [at in wanted for at in range(len(chain))]
        if self.short:
            return keep
        # A line that says "1 frame" is no shorter than the frame.
        for at in range(1, last):
            if keep[at - 1] and keep[at + 1]:
                keep[at] = True
        return keep


def _chain(node: _Node) -> list[_Node]:
    """The node and what follows without a branch and without an end of a class."""
    chain = [node]
    while len(chain[-1].children) == 1 and not chain[-1].ends:
        chain.append(next(iter(chain[-1].children.values())))
    return chain


def _members(indexes: tuple[int, ...], classes: Sequence[StackClass]) -> tuple[Ranges, int]:
    count = sum(classes[index].count for index in indexes)
    if len(indexes) == 1:
        return classes[indexes[0]].ranks, count
    return Ranges.of(rank for index in indexes for rank in classes[index].ranks), count


def _cut(lines: list[TreeLine], classes: Sequence[StackClass], max_lines: int) -> list[TreeLine]:
    kept, left = lines[: max_lines - 1], lines[max_lines - 1 :]
    indexes = tuple(sorted({index for line in left for index in line.class_indexes}))
    ranks, count = _members(indexes, classes)
    return [*kept, TreeLine(left[0].depth, "", "", 0, ranks, count, None, len(left), indexes)]
