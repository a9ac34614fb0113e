"""While nodes have not answered: how each is being reached, since when, and how to see by hand why it fails."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.judge.values import grouped
from mltop.probes.model.units import clock_time, counted, seconds
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import Cell, clip, line_width, wrap
from mltop.tui.render.findings import folded_names

SLOW_S = 10.0  # who has not answered by then may never do
MOST_NAMES = 24  # cells
_NOT_TRIED = "waiting for its turn"


def connecting_since(nodes: Sequence[NodeView]) -> float | None:
    """When the first of those that have not answered was begun to be reached, unix s; None: none was so far."""
    tried = [node.connection.tried_at for node in nodes if node.state.state == "connecting"]
    return min((at for at in tried if at is not None), default=None)


def nobody_answered(view: FleetView) -> bool:
    """Whether all there is to say is how the nodes are being reached."""
    return bool(view.nodes) and all(node.state.state == "connecting" and node.summary is None for node in view.nodes)


def connecting_lines(view: FleetView, width: int, room: int) -> list[list[Cell]]:
    """A line for all nodes that are equally far: which, since when, and what is waited for."""
    waiting = [node for node in view.nodes if node.state.state == "connecting"]
    groups = [*grouped(waiting, lambda node: node.state.reason or _NOT_TRIED).items()]
    if not groups or room < 1:
        return []
    names = [folded_names(tuple(node.node for node in nodes)) for _, nodes in groups]
    start = min(MOST_NAMES, max(map(len, names)), max(6, width // 3)) + 2
    lines: list[list[Cell]] = []
    for name, (why, nodes) in zip(names, groups, strict=True):
        shown = name if len(name) <= start - 2 else clip(counted(len(nodes), "node"), start - 2)
        since = connecting_since(nodes)
        ago = (
            f" for {seconds(float(int(view.taken_at - since)))}, since {clock_time(since)}" if since is not None else ""
        )
        text = wrap([Cell(f"{why}{ago}")], max(1, width - start))
        head = [Cell(f"{shown:<{start}}", "title")]
        lines += [[*(head if not at else [Cell(" " * start)]), *line] for at, line in enumerate(text)]
    slow = [node for node in waiting if _is_slow(node, view.taken_at)]
    by_hand = next((node.node for node in slow if node.connection.trying == "ssh"), "")
    hint = [Cell("why, by hand:", "dim"), Cell(f" ssh {by_hand} true", "key")]
    if by_hand and line_width(hint) <= width - start:
        lines += [[Cell(" " * start), *hint]]
    return lines[:room]


def _is_slow(node: NodeView, now: float) -> bool:
    return node.connection.tried_at is not None and now - node.connection.tried_at >= SLOW_S
