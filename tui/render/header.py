"""The two lines above every screen: what is watched, and its totals.

Totals hold what live nodes say now; what other nodes said last is not mixed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.model import GpuSample, RankSample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import Cell, clip, line_width
from mltop.tui.render.nodes import mean, total
from mltop.tui.render.states import NODE_STYLE, gravest
from mltop.tui.render.units import UNKNOWN, age, celsius, clock_time, known, of, percent, watts
from mltop.tui.render.wrap import flow

WIDE = 100  # from here on there is room for everything
MIN_TITLE = 8  # cells of a title that is cut

_Gpus = Sequence[tuple[str, GpuSample]]  # with the node's name


@dataclass(frozen=True)
class _Mark:
    """What must be seen at any width: ``brief`` where ``text`` does not fit."""

    text: str
    brief: str
    style: str


def header_cells(
    view: FleetView, title: str, paused: bool = False, width: int = 80, shorter: Sequence[str] = ()
) -> list[list[Cell]]:
    """Two lines of at most ``width`` cells; what matters least is dropped first.

    ``shorter``: what may stand in place of ``title`` where it does not fit, long ones first. That the picture is
    simulated or paused, or that a node is not well, is never dropped.
    """
    live = [node.sample for node in view.nodes if node.sample is not None and node.state.state == "live"]
    gpus = [(sample.node, gpu) for sample in live for gpu in sample.gpus]
    seen = [gpu for node in view.nodes if node.sample is not None for gpu in node.sample.gpus]
    rest = [
        (3, _live_nodes(view.nodes)),
        (4, _gpu_states([gpu for _, gpu in gpus], len(seen), width < WIDE)),
        (5, [Cell(clock_time(view.taken_at), "dim")]),
    ]
    second = [
        (0, _labelled("busy", percent(mean([gpu.busy for _, gpu in gpus])))),
        (4, _power([gpu for _, gpu in gpus], len(seen))),
        (5, _hottest(gpus, len(view.nodes) > 1)),
        *_ranks([rank for sample in live for rank in sample.ranks], len(live), len(view.nodes)),
        _age(view.nodes),
    ]
    return [_first_line((title, *shorter), _marks(view, paused, width), rest, width), flow(second, width)]


def _first_line(
    titles: Sequence[str], marks: Sequence[_Mark], rest: Sequence[tuple[int, list[Cell]]], width: int
) -> list[Cell]:
    """The longest title that fits beside all marks, whose words grow shorter only after the title has."""
    written = [[Cell(mark.text, mark.style) for mark in marks]]
    for at in range(len(marks) - 1, -1, -1):
        written.append([*written[-1][:at], Cell(marks[at].brief, marks[at].style), *written[-1][at + 1 :]])
    for cells in written:
        for title in titles:
            parts = [(0, [Cell(title, "title")]), *((0, [cell]) for cell in cells)]
            if line_width(flow(parts, 10**6)) <= width:
                return flow([*parts, *rest], width)
    line = flow([(0, [cell]) for cell in written[-1]], width, gap=" ")
    room = width - line_width(line) - bool(line)
    if room < MIN_TITLE and line:
        return line
    return [*line, *([Cell(" ")] if line else []), Cell(clip(titles[-1], max(1, room)), "title")]


def _marks(view: FleetView, paused: bool, width: int) -> list[_Mark]:
    simulated = any(node.sample.simulated for node in view.nodes if node.sample is not None)
    marks = [_Mark("SIMULATED", "SIM", "warn")] if simulated else []
    marks += [_Mark("PAUSED", "PAUSED", "warn")] if paused else []
    worst = gravest(node.state.state for node in view.nodes)
    if worst != "live":
        text = _node_states(view.nodes, worst, brief=width < WIDE)
        marks.append(_Mark(text, worst.upper(), NODE_STYLE.get(worst, "warn")))
    return marks


def _labelled(label: str, value: str, style: str = "") -> list[Cell]:
    return [Cell(f"{label} ", "dim"), Cell(value, style)]


def _live_nodes(nodes: Sequence[NodeView]) -> list[Cell]:
    """How many nodes are live, when all are: otherwise a mark says it."""
    if any(node.state.state != "live" for node in nodes):
        return []
    return [Cell(f"{len(nodes)}/{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} live")]


def _node_states(nodes: Sequence[NodeView], worst: str, brief: bool) -> str:
    """ "node lost", or "61/64 nodes live, 1 lost, 2 stale": all states where there is room, else the gravest."""
    if len(nodes) == 1:
        return f"node {worst}"
    states = Counter(node.state.state for node in nodes)
    live = states.pop("live", 0)
    named = [worst] if brief else sorted(states)
    return ", ".join([f"{live}/{len(nodes)} nodes live", *(f"{states[state]} {state}" for state in named)])


def _gpu_states(gpus: Sequence[GpuSample], seen: int, brief: bool) -> list[Cell]:
    """ "15/16 GPUs ok" of the live nodes, and of how many others nothing is known now."""
    if not seen:
        return [Cell("no GPU seen", "dim")]
    if not gpus:
        return [Cell(f"{seen} {_gpu_word(seen)} unknown", "warn")]
    ok = sum(gpu.state == "ok" for gpu in gpus)
    unknown = seen - len(gpus)
    style = "crit" if ok < len(gpus) else "warn" if unknown else ""
    more = f", {unknown} unknown" if unknown and not brief else ""
    return [Cell(f"{ok}/{seen if brief else len(gpus)} {_gpu_word(seen)} ok{more}", style)]


def _gpu_word(number: int) -> str:
    return "GPU" if number == 1 else "GPUs"


def _power(gpus: Sequence[GpuSample], seen: int) -> list[Cell]:
    """Draw and limit over the same GPUs: those that report both; how many they are when not all do."""
    both = [gpu for gpu in gpus if known(gpu.power_w) and known(gpu.power_limit_w)]
    summed = both or [gpu for gpu in gpus if known(gpu.power_w)]
    limit = watts(total([gpu.power_limit_w for gpu in both]))
    drawn = watts(total([gpu.power_w for gpu in summed]))
    few = f" of {len(summed)} {_gpu_word(len(summed))}" if 0 < len(summed) < seen else ""
    return _labelled("power", (of(drawn, limit) if both else drawn) + few)


def _hottest(gpus: _Gpus, name_node: bool) -> list[Cell]:
    """The hottest GPU and which one it is."""
    found = [(gpu.temperature_c, node, gpu.index) for node, gpu in gpus if known(gpu.temperature_c)]
    if not found:
        return _labelled("hot", UNKNOWN)
    temperature, node, index = max(found)
    where = f"{node}/gpu{index}" if name_node else f"gpu{index}"
    return _labelled("hot", f"{celsius(temperature)} {where}")


def _ranks(ranks: Sequence[RankSample], live: int, nodes: int) -> list[tuple[int, list[Cell]]]:
    """How many ranks and jobs; "12+" when not every node says, unknown when none does."""
    more = "+" if live < nodes else ""
    counts = (len(ranks), len({rank.job for rank in ranks}))
    texts = [f"{number}{more}" if live else UNKNOWN for number in counts]
    return [(1, _labelled("ranks", texts[0])), (2, _labelled("jobs", texts[1]))]


def _age(nodes: Sequence[NodeView]) -> tuple[int, list[Cell]]:
    """How old the oldest sample is; it stays longer when that sample is not a live node's."""
    with_sample = [node.state for node in nodes if node.sample is not None and node.state.age_s is not None]
    oldest = max(with_sample, key=lambda state: state.age_s or 0.0, default=None)
    if oldest is None:
        return 6, _labelled("age", UNKNOWN)
    well = oldest.state == "live"
    return (6 if well else 3), _labelled("age", age(oldest.age_s), "" if well else NODE_STYLE.get(oldest.state, ""))
