"""What fills rows of an overview that nothing else needs: graphs of a node and of each of its GPUs, what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from mltop.probes.reach.view import NodeView
from mltop.tui.filters.fields import users_of
from mltop.tui.render.cells import Cell
from mltop.tui.render.findings import happenings
from mltop.tui.render.gpus.details import side_by_side
from mltop.tui.render.gpus.lanes import lane_lines
from mltop.tui.screens.events.lines import event_lines
from mltop.tui.screens.graphs import NodeGraphs
from mltop.tui.screens.help.lines import drawable, help_lines, shared_blocks
from mltop.tui.screens.help.terms import TERMS
from mltop.tui.screens.pane import Memo
from mltop.tui.screens.row_context import RowContext

Lines = list[list[Cell]]
ROOM_FOR_GPUS = 16  # lines: with less there are only the node's graphs
BAND = 6  # lines of these at least, above those of GPUs
GPU_WIDTH = 48  # cells at least
GPU_LINES = 6  # of each at least
REDRAWN_S = 5.0  # of the graphs of GPUs, whose columns are longer: all of them take 20 ms
MOST_EVENTS = 6
LEFT_OUT = 3  # lines of the help at a time


class Spare:
    """Graphs of the node are made anew when there is a newer sample. ``fleet``: what happened on all nodes is shown."""

    def __init__(self, *, fleet: bool = False) -> None:
        self._fleet = fleet
        self._graphs = NodeGraphs()
        self._gpus = Memo[Lines]()

    def lines(self, node: NodeView, context: RowContext, width: int, rows: int) -> Lines:
        """At most ``rows`` lines, and as many where the past of the node is known."""
        if rows < ROOM_FOR_GPUS:
            return self._graphs.lines(node, context, width, rows)
        events = _events("" if self._fleet else node.node, context, width)
        room = rows - (len(events) + 1 if events else 0) - BAND - 1
        at = (node.sampled_at or 0.0) // REDRAWN_S
        source = (node.node, at, width, room, context.moment(node))
        gpus = self._gpus.get((*source, context.settled), lambda: _gpus(node, context, width, room))
        blocks = [gpus, events]
        left = rows - sum(len(block) + 1 for block in blocks if block)
        return _stacked([self._graphs.lines(node, context, width, left, beside=bool(gpus)), *blocks])


def keys_and_terms(keys: Mapping[str, str], width: int, rows: int) -> Lines:
    """Where there are no GPUs to show: what the keys do and the words mean, as much as fits into ``rows`` lines.
    ``keys``: that the user gives to actions.
    """
    return _keys_and_terms(tuple(keys.items()), width, rows)


@lru_cache(maxsize=1)
def _keys_and_terms(keys: tuple[tuple[str, str], ...], width: int, rows: int) -> Lines:
    blocks = [*shared_blocks(dict(keys)), *TERMS]
    while len(lines := help_lines(blocks, width)) > rows:
        title, last = blocks.pop()
        blocks += [(title, last[:-LEFT_OUT])] if len(last) > LEFT_OUT else []
    return drawable(lines)


def _stacked(blocks: Sequence[Lines]) -> Lines:
    """With a blank line between two."""
    return [line for block in blocks if block for line in ([], *block)][1:]


def _events(node: str, context: RowContext, width: int) -> Lines:
    """The newest ones of this node, "": of all."""
    picture = context.picture
    events = happenings(picture.findings, picture.ended, picture.events, node)[:MOST_EVENTS]
    title, lines = event_lines(events, width, with_nodes=not node)
    return [title, *([*line.cells] for line in lines[:MOST_EVENTS])] if lines else []


def _gpus(node: NodeView, context: RowContext, width: int, room: int) -> Lines:
    """Each GPU's last ten minutes, of as many as there is room for: first what something is wrong with, then what is
    used.
    """
    sample = node.sample
    alive = [gpu for gpu in sample.gpus if gpu.state == "ok"] if sample is not None else []
    tracks = [(gpu, track) for gpu in alive if (track := context.track(node, gpu.index)) is not None]
    used = [(gpu, track) for gpu, track in tracks if users_of(node, gpu)] or tracks
    across = max(1, min(width // GPU_WIDTH, len(used)))
    rows = min(-(-len(used) // across), (room + 1) // (GPU_LINES + 1))
    if rows < 1:
        return []
    marks = {gpu.index: context.gpu_line(node, gpu, graph=False).mark for gpu, _ in used}
    shown = sorted(used, key=lambda pair: not marks[pair[0].index])[: across * rows]
    shown.sort(key=lambda pair: pair[0].index)
    high, each = (room + 1) // rows - 1, width // across
    panels: list[Lines] = []
    for gpu, track in shown:
        users = users_of(node, gpu)
        waits = context.spans(context.doing_of_gpu(node, gpu, users), users)
        name, moment = f"GPU {gpu.index}", context.moment(node)
        panels.append(lane_lines(track, gpu, each - 2, high, waits=waits, moment=moment, name=name))
    return _stacked([side_by_side(panels[at : at + across], each) for at in range(0, len(panels), across)])
