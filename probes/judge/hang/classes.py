"""Ranks with one and the same stack are one class. Work is per class, not per rank, from here on.

So is the merged call tree: its cost does not grow with the job.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from mltop.probes.judge.hang.frames import called_by, is_internal, key_of
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
    classes = []
    for alike in grouped(mains, lambda digest: (key_of(digest), digest.waiting_in)).values():
        # py-spy could stop the one with the most frames: it has the native ones, too.
        shown = max(alike, key=lambda digest: len(digest.frames))
        ranks = Ranges.of(known(digest.rank for digest in alike))
        classes.append(StackClass(ranks, len(alike), shown.waiting_in, shown.frames))
    return sorted(
        classes,
        key=lambda one: (one.waiting_in is not None, one.count, -1 if one.ranks.first is None else one.ranks.first),
    )


REST = "rest"  # by which the lines are asked for that were too many
_Key = tuple[str, str, int]


@dataclass
class TreeLine:
    """One line for the screen, root first. ``elided`` > 0: it stands for so many frames ("… 14 frames"), and
    function and line are empty, ``file`` is that of the last. ``waiting_in`` is set on the last line of a class.
    ``class_indexes`` point into the classes that the tree was made from. ``called``: the library's function that the
    user's line got to ("open, gzip.py:57"), whose frames have no line of their own.

    ``rails``: of each fork above, whether another branch follows below this one; ``head``: it begins a branch of the
    last of them; ``begins``: others ranks than on the line above. ``own``: the user's code; ``ints``: integer locals of
    a line of one process. ``fold``: by which name the elided frames are asked for (``unfolded``).
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
    called: str = ""
    rails: tuple[bool, ...] = ()
    head: bool = False
    begins: bool = False
    own: bool = False
    ints: Mapping[str, int] = field(default_factory=dict)
    fold: str = ""


@dataclass
class _Node:
    frame: Frame
    classes: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # classes whose leaf this is
    children: dict[_Key, _Node] = field(default_factory=dict)


def merged_tree(
    classes: Sequence[StackClass], max_lines: int | None = None, unfolded: Container[str] = ()
) -> list[TreeLine]:
    """Prefix tree over the classes' frames in the order of ``classes``; long chains are elided.

    Of each unbranched chain the first frame, the last one and the leaf-most line of user code stay; where that chain
    is the end of a stack, this line is its last, with what it called. With
    ``max_lines`` the deepest detail goes first: chains keep their last frame only, then the last lines are
    folded into one (``elided`` counts the lines left out, ``class_indexes`` their classes). ``unfolded``: names of
    elided frames that are to be there all the same.
    """
    roots = _build(classes)
    lines = _written(roots, classes, unfolded, short=False)
    if max_lines is not None and len(lines) > max_lines:
        lines = _written(roots, classes, unfolded, short=True)
    if max_lines is not None and len(lines) > max_lines and REST not in unfolded:
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


def _written(
    roots: list[_Node], classes: Sequence[StackClass], unfolded: Container[str], short: bool
) -> list[TreeLine]:
    """``short``: of each chain only the last frame."""
    lines: list[TreeLine] = []
    marked = any(frame.user for each in classes for frame in each.frames)
    # A stack of our own: a deep recursion in the script must not become one here.
    pending = [(node, 0, rails) for node, rails in _branches(roots, ())][::-1]
    while pending:
        node, depth, rails = pending.pop()
        chain = _chain(node)
        of_chain = _chain_lines(chain, depth, classes, unfolded, short)
        for line, own in of_chain:
            line.rails = rails
            line.own = own is not None and (own.frame.user if marked else not is_internal(own.frame))
        of_chain[0][0].begins = True
        lines += [line for line, _ in of_chain]
        below = [*chain[-1].children.values()]
        pending += [(child, lines[-1].depth + 1, further) for child, further in _branches(below, rails)][::-1]
    _mark_heads(lines)
    return lines


def _branches(nodes: list[_Node], rails: tuple[bool, ...]) -> list[tuple[_Node, tuple[bool, ...]]]:
    """Only a fork indents."""
    if len(nodes) < 2:
        return [(node, rails) for node in nodes]
    return [(node, (*rails, at < len(nodes) - 1)) for at, node in enumerate(nodes)]


def _mark_heads(lines: list[TreeLine]) -> None:
    """A branch begins where there is a rail more than above, or its last rail is another one's."""
    depths: list[int] = []  # of each fork, the depth at which its branches begin
    for line in lines:
        if not line.begins:
            continue
        forks = len(line.rails)
        if forks > len(depths):
            depths.append(line.depth)
            line.head = True
        else:
            depths = depths[:forks]
            line.head = bool(depths) and depths[-1] == line.depth


def _chain_lines(
    chain: list[_Node], depth: int, classes: Sequence[StackClass], unfolded: Container[str], short: bool
) -> list[tuple[TreeLine, _Node | None]]:
    """Those of one unbranched chain, whose last frame always has one, or the user's line that called it."""
    indexes = tuple(chain[0].classes)
    ranks, count = _members(indexes, classes)
    waits = next((classes[end].waiting_in for end in chain[-1].ends), None)
    shown, called = _down_to_user(chain, waits)
    lines: list[tuple[TreeLine, _Node | None]] = []
    skipped: list[_Node] = []

    def line_of(node: _Node) -> tuple[TreeLine, _Node]:
        frame = node.frame
        at = depth + len(lines)
        line = TreeLine(at, frame.function, frame.file, frame.line, ranks, count, None, 0, indexes)
        line.ints = frame.ints if count == 1 else {}
        return line, node

    for number, (node, keep) in enumerate(zip(shown, _kept(shown, short), strict=True)):
        if not keep:
            skipped.append(node)
            continue
        if skipped:
            fold = f"{indexes[0]}/{len(indexes)}/{depth}/{number}"
            if fold in unfolded:
                for each in skipped:
                    lines.append(line_of(each))
            else:
                at, file, elided = depth + len(lines), skipped[-1].frame.file, len(skipped)
                lines.append((TreeLine(at, "", file, 0, ranks, count, None, elided, indexes, fold=fold), None))
            skipped = []
        lines.append(line_of(node))
    lines[-1][0].waiting_in, lines[-1][0].called = waits, called
    return lines


def _down_to_user(chain: list[_Node], waits: str | None) -> tuple[list[_Node], str]:
    """A chain that ends in a library without the library's frames, and what the user's line called; else all of it."""
    user = _last_user(chain)
    frames = [node.frame for node in reversed(chain)]
    native = any(frame.native for frame in frames)
    if user is None or user == len(chain) - 1 or chain[-1].children or (native and not waits):
        return chain, ""
    return chain[: user + 1], waits or called_by(frames, chain[user].frame)


def _last_user(chain: list[_Node]) -> int | None:
    """Where the leaf-most line of the user's is; of a library's, where no frame is marked as the user's."""
    marked = [at for at, node in enumerate(chain) if node.frame.user]
    users = marked or [at for at, node in enumerate(chain) if not is_internal(node.frame)]
    return users[-1] if users else None


def _kept(chain: list[_Node], short: bool) -> list[bool]:
    last = len(chain) - 1
    wanted = {last} if short else {0, last, _last_user(chain)}
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
    return [*shown, TreeLine(left[0].depth, "", "", 0, ranks, count, None, len(left), indexes, begins=True, fold=REST)]
