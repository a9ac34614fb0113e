"""Ranks with one and the same stack are one class. Work is per class, not per rank, from here on.

So is the merged call tree: its cost does not grow with the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.hang.frames import is_internal, key_of
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Frame, StackClass, StackDigest
from mltop.probes.model.ranks import Ranges


def merge(digests: Sequence[StackDigest]) -> list[StackClass]:
    """Classes of the ranks' main threads: those outside collectives first, then the smallest first.

    Takes one digest per rank; digests of children and other threads, and unreadable ones, are left out.
    O(digests) dictionary look-ups; equal keys mean equal Python frames. Of native ones a class shows those of one rank.
    """
    mains = (
        digest for digest in digests if digest.child_of is None and digest.thread == "MainThread" and digest.frames
    )
    groups = grouped(mains, lambda digest: (key_of(digest), digest.waiting_in))
    return sorted(map(_class, groups.values()), key=_order)


def _class(alike: list[StackDigest]) -> StackClass:
    # py-spy could stop the one with the most frames: it has the native ones, too.
    shown = max(alike, key=lambda digest: len(digest.frames))
    return StackClass(Ranges.of(known(digest.rank for digest in alike)), len(alike), shown.waiting_in, shown.frames)


def _order(stack_class: StackClass) -> tuple[bool, int, int]:
    first = stack_class.ranks.first
    return (stack_class.waiting_in is not None, stack_class.count, -1 if first is None else first)


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
    lines = _written(roots, classes, short=False)
    if max_lines is not None and len(lines) > max_lines:
        lines = _written(roots, classes, short=True)
    if max_lines is not None and len(lines) > max_lines:
        lines = _cut(lines, classes, max_lines)
    return lines


def _build(classes: Sequence[StackClass]) -> list[_Node]:
    roots: dict[_Key, _Node] = {}
    for index, stack_class in enumerate(classes):
        level, node = roots, None
        for frame in reversed(stack_class.frames):
            node = level.setdefault((frame.function, frame.file, frame.line), _Node(frame))
            node.classes.append(index)
            level = node.children
        if node is not None:
            node.ends.append(index)
    return list(roots.values())


def _written(roots: list[_Node], classes: Sequence[StackClass], short: bool) -> list[TreeLine]:
    """``short``: of each chain only the last frame."""
    lines: list[TreeLine] = []
    # A stack of our own: a deep recursion in the script must not become one here.
    pending = [(node, 0) for node in reversed(roots)]
    while pending:
        node, depth = pending.pop()
        chain = _chain(node)
        lines += _chain_lines(chain, depth, classes, short)
        pending.extend((child, lines[-1].depth + 1) for child in reversed(list(chain[-1].children.values())))
    return lines


def _chain_lines(chain: list[_Node], depth: int, classes: Sequence[StackClass], short: bool) -> list[TreeLine]:
    """Those of one unbranched chain, whose last frame always has one."""
    indexes = tuple(chain[0].classes)
    ranks, count = _members(indexes, classes)
    lines: list[TreeLine] = []
    skipped = 0
    for node, keep in zip(chain, _kept(chain, short), strict=True):
        if not keep:
            skipped += 1
            continue
        if skipped:
            lines.append(TreeLine(depth + len(lines), "", "", 0, ranks, count, None, skipped, indexes))
            skipped = 0
        function, file, line = node.frame.function, node.frame.file, node.frame.line
        waits = next((classes[end].waiting_in for end in node.ends), None)
        lines.append(TreeLine(depth + len(lines), function, file, line, ranks, count, waits, 0, indexes))
    return lines


def _kept(chain: list[_Node], short: bool) -> list[bool]:
    last = len(chain) - 1
    users = [at for at, node in enumerate(chain) if not is_internal(node.frame)]
    wanted = {last} if short else {0, last, *users[-1:]}
    keep = [at in wanted for at in range(len(chain))]
    for at in range(1, 0 if short else last):
        if keep[at - 1] and keep[at + 1]:  # a line that says "1 frame" is no shorter than the frame
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
    shown, left = lines[: max_lines - 1], lines[max_lines - 1 :]
    indexes = tuple(sorted({index for line in left for index in line.class_indexes}))
    ranks, count = _members(indexes, classes)
    return [*shown, TreeLine(left[0].depth, "", "", 0, ranks, count, None, len(left), indexes)]
