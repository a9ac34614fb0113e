"""The two lines above every screen: what is watched, and its totals.

Totals hold what live nodes say now; what other nodes said last is not mixed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mltop.probes.model import Finding, GpuSample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import Cell, clip, line_width
from mltop.tui.render.fleet_totals import fleet_first, fleet_second, problem_counts, totals_of
from mltop.tui.render.header_parts import Mark, Part, gpu_states, gpu_word, labelled, live_nodes, rank_counts
from mltop.tui.render.names import short_names
from mltop.tui.render.nodes import mean, total
from mltop.tui.render.states import NODE_STYLE, gravest
from mltop.tui.render.units import UNKNOWN, age, celsius, clock_time, known, of, percent, watts
from mltop.tui.render.wrap import flow

WIDE = 100  # from here on there is room for everything
MIN_TITLE = 8  # cells of a title that is cut


def header_cells(
    view: FleetView,
    title: str,
    paused: bool = False,
    width: int = 80,
    *,
    shorter: Sequence[str] = (),
    findings: Sequence[Finding] = (),
    marked: int = 0,
) -> list[list[Cell]]:
    """Two lines of at most ``width`` cells; what matters least is dropped first.

    ``shorter``: what may stand in place of ``title`` where it does not fit, long ones first. That the picture is
    simulated or paused, or that a node is not well, is never dropped. ``findings`` are counted, and the user's
    ``marked`` nodes, where several nodes are watched.
    """
    marks = _marks(view, paused, width)
    if len(view.nodes) > 1:
        totals = totals_of(view)
        rest = fleet_first(view, totals, marked, width < WIDE)
        marks += [Mark(*problem_counts(findings))] if findings else []
        second = fleet_second(totals, len(view.nodes), short_names(tuple([node.node for node in view.nodes])))
    else:
        rest, second = _one_node(view, width < WIDE)
    return [_first_line((title, *shorter), marks, rest, width), flow(second, width)]


def _one_node(view: FleetView, brief: bool) -> tuple[list[Part], list[Part]]:
    live = [node.sample for node in view.nodes if node.sample is not None and node.state.state == "live"]
    gpus = [gpu for sample in live for gpu in sample.gpus]
    ranks = [rank for sample in live for rank in sample.ranks]
    seen = sum(len(node.sample.gpus) for node in view.nodes if node.sample is not None)
    heard = any(node.sample is not None for node in view.nodes)
    first = [
        (3, live_nodes(view.nodes)),
        (4, gpu_states(sum(gpu.state == "ok" for gpu in gpus), len(gpus), seen, heard, brief)),
        (5, [Cell(clock_time(view.taken_at), "dim")]),
    ]
    second = [
        (0, labelled("busy", percent(mean([gpu.busy for gpu in gpus])))),
        (4, _power(gpus, seen)),
        (5, _hottest(gpus)),
        *rank_counts(len(ranks), len({rank.job_key for rank in ranks}), len(live), len(view.nodes)),
        _age(view.nodes),
    ]
    return first, second


def _first_line(
    titles: Sequence[str], marks: Sequence[Mark], rest: Sequence[tuple[int, list[Cell]]], width: int
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


def _marks(view: FleetView, paused: bool, width: int) -> list[Mark]:
    simulated = any(node.glance.simulated for node in view.nodes if node.glance is not None)
    marks = [Mark("SIMULATED", "SIM", "warn")] if simulated else []
    marks += [Mark("PAUSED", "PAUSED", "warn")] if paused else []
    worst = gravest(node.state.state for node in view.nodes)
    if worst != "live":
        text = _node_states(view.nodes, worst, brief=width < WIDE)
        marks.append(Mark(text, worst.upper(), NODE_STYLE.get(worst, "warn")))
    return marks


def _node_states(nodes: Sequence[NodeView], worst: str, brief: bool) -> str:
    """ "node lost", or "61/64 nodes live, 1 lost, 2 stale": all states where there is room, else the gravest.

    While some connect: "connecting 41/64, 2 lost", live ones of all.
    """
    if len(nodes) == 1:
        return f"node {worst}"
    states = Counter(node.state.state for node in nodes)
    live, connecting = states.pop("live", 0), states.pop("connecting", 0)
    named = [worst] if brief and worst in states else sorted(states)
    first = f"connecting {live}/{len(nodes)}" if connecting else f"{live}/{len(nodes)} nodes live"
    return ", ".join([first, *(f"{states[state]} {state}" for state in named)])


def _power(gpus: Sequence[GpuSample], seen: int) -> list[Cell]:
    """Draw and limit over the same GPUs: those that report both; how many they are when not all do."""
    both = [gpu for gpu in gpus if known(gpu.power_w) and known(gpu.power_limit_w)]
    summed = both or [gpu for gpu in gpus if known(gpu.power_w)]
    limit = watts(total([gpu.power_limit_w for gpu in both]))
    drawn = watts(total([gpu.power_w for gpu in summed]))
    few = f" of {len(summed)} {gpu_word(len(summed))}" if 0 < len(summed) < seen else ""
    return labelled("power", (of(drawn, limit) if both else drawn) + few)


def _hottest(gpus: Sequence[GpuSample]) -> list[Cell]:
    """The hottest GPU and which one it is."""
    found = [(gpu.temperature_c, gpu.index) for gpu in gpus if known(gpu.temperature_c)]
    if not found:
        return labelled("hot", UNKNOWN)
    temperature, index = max(found)
    return labelled("hot", f"{celsius(temperature)} gpu{index}")


def _age(nodes: Sequence[NodeView]) -> tuple[int, list[Cell]]:
    """How old the oldest sample is; it stays longer when that sample is not a live node's."""
    with_sample = [node.state for node in nodes if node.sample is not None and node.state.age_s is not None]
    oldest = max(with_sample, key=lambda state: state.age_s or 0.0, default=None)
    if oldest is None:
        return 6, labelled("age", UNKNOWN)
    well = oldest.state == "live"
    return (6 if well else 3), labelled("age", age(oldest.age_s), "" if well else NODE_STYLE.get(oldest.state, ""))
