"""What the header of one node and that of a fleet have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.units import UNKNOWN

Part = tuple[int, list[Cell]]  # priority as in ``flow``


@dataclass(frozen=True)
class Mark:
    """What must be seen at any width: ``brief`` where ``text`` does not fit."""

    text: str
    brief: str
    style: str


def labelled(label: str, value: str, style: str = "") -> list[Cell]:
    return [Cell(f"{label} ", "dim"), Cell(value, style)]


def live_nodes(nodes: Sequence[NodeView]) -> list[Cell]:
    """How many nodes are live, when all are: otherwise a mark says it."""
    if any(node.state.state != "live" for node in nodes):
        return []
    return [Cell(f"{len(nodes)}/{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} live")]


def gpu_states(ok: int, live: int, seen: int, heard: bool, brief: bool) -> list[Cell]:
    """ "15/16 GPUs ok" of the ``live`` nodes' GPUs; of those ``seen`` elsewhere nothing is known now.

    ``heard``: whether any node has ever answered.
    """
    if not seen:
        return [Cell("no GPU seen" if heard else "GPUs unknown", "dim")]
    if not live:
        return [Cell(f"{seen} {gpu_word(seen)} unknown", "warn")]
    unknown = seen - live
    style = "crit" if ok < live else "warn" if unknown else ""
    more = f", {unknown} unknown" if unknown and not brief else ""
    return [Cell(f"{ok}/{seen if brief else live} {gpu_word(seen)} ok{more}", style)]


def gpu_word(number: int) -> str:
    return "GPU" if number == 1 else "GPUs"


def rank_counts(ranks: int, jobs: int, live: int, nodes: int) -> list[Part]:
    """How many ranks and jobs; "12+" when not every node says, unknown when none does."""
    more = "+" if live < nodes else ""
    texts = [f"{number}{more}" if live else UNKNOWN for number in (ranks, jobs)]
    return [(1, labelled("ranks", texts[0])), (2, labelled("jobs", texts[1]))]
