"""Pairs of nodes, or of the GPUs of a node, as squares: one cell for each pair. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.model.probe import CopiesResult, PairResult
from mltop.tui.render.cells import Cell
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.probe_collectives import SLOW_PAIR, usual_busbw
from mltop.tui.render.probe_units import GIGA, bandwidth, digits, middle
from mltop.tui.render.units import UNKNOWN

MATRIX_LABEL = 14
PEER_WIDTH = 7


def pair_matrix(pairs: Sequence[PairResult], width: int) -> list[list[Cell]]:
    """Node by node, how fast each pair was: the height of a glyph is the share of the fastest. Nothing if too wide."""
    nodes = sorted({node for pair in pairs for node in pair.nodes}, key=lambda node: (len(node), node))
    label = min(MATRIX_LABEL, max(map(len, nodes), default=0))
    each = 2 if label + 1 + 2 * len(nodes) <= width else 1
    if len(nodes) < 3 or label + 1 + each * len(nodes) > width:
        return []
    of_pair = {frozenset(pair.nodes): pair for pair in pairs}  # the last round counts
    usual, most = usual_busbw(pairs)
    lines: list[list[Cell]] = [[Cell("Pairs", "title"), Cell(f"  {_matrix_legend(most)}", "dim")]]
    for row in nodes:
        cells = [Cell(f"{row[-label:]:<{label}} ")]
        for column in nodes:
            glyph, style = _pair_glyph(of_pair.get(frozenset((row, column))), row == column, usual, most)
            cells.append(Cell(glyph.ljust(each), style))
        lines.append(cells)
    return lines


def _pair_glyph(pair: PairResult | None, same: bool, usual: float | None, most: float | None) -> tuple[str, str]:
    if same:
        return " ", ""
    if pair is None:
        return GLYPHS.unknown, "dim"
    if pair.busbw_bytes_per_s is None or not usual or not most:
        return GLYPHS.lost, "crit"
    slow = pair.busbw_bytes_per_s < SLOW_PAIR * usual
    return GLYPHS.height(pair.busbw_bytes_per_s / most), "warn" if slow else ""


def _matrix_legend(most: float | None) -> str:
    ramp = GLYPHS.ramp
    return f"{ramp[0]} 0, {ramp[-1]} {bandwidth(most)}; {GLYPHS.lost} failed, {GLYPHS.unknown} not measured"


def peer_matrix(results: Sequence[CopiesResult], width: int) -> list[list[Cell]]:
    """From GPU (rows) to GPU (columns) of one node, GB/s; "!": 15 % below the median; dim: through the host."""
    rates = {(one.gpu, peer.to_gpu): peer for one in results for peer in one.peers}
    rows = sorted({from_gpu for from_gpu, _ in rates if from_gpu is not None})
    columns = sorted({to_gpu for _, to_gpu in rates})
    if not rates or PEER_WIDTH * (len(columns) + 1) > width:
        return []
    usual = middle(peer.bytes_per_s for peer in rates.values())
    node = results[0].node
    lines = [
        [Cell(f"{node}: from GPU (row) to GPU", "title"), Cell("  GB/s, ! slow, h through the host", "dim")],
        [Cell(" " * PEER_WIDTH), *(Cell(f"{column:>{PEER_WIDTH}}", "dim") for column in columns)],
    ]
    for row in rows:
        cells = [Cell(f"{row:>{PEER_WIDTH}}", "dim")]
        for column in columns:
            peer = rates.get((row, column))
            if row == column or peer is None:
                cells.append(Cell(f"{'' if row == column else UNKNOWN:>{PEER_WIDTH}}", "dim"))
                continue
            slow = peer.bytes_per_s is not None and usual is not None and peer.bytes_per_s < SLOW_PAIR * usual
            text = UNKNOWN if peer.bytes_per_s is None else digits(peer.bytes_per_s / GIGA)
            text += "h" * (peer.direct is False) + "!" * slow
            cells.append(Cell(f"{text:>{PEER_WIDTH}}", "warn" if slow else "dim" if peer.direct is False else ""))
        lines.append(cells)
    return lines
