"""The two lines above every screen: what is watched, and its totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mltop.probes.model import GpuSample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.nodes import mean, total
from mltop.tui.render.units import UNKNOWN, age, celsius, clock_time, of, percent, watts
from mltop.tui.render.wrap import flow


def header_cells(view: FleetView, title: str, paused: bool = False, width: int = 80) -> list[list[Cell]]:
    """Two lines of at most ``width`` cells (``title`` may be longer); what matters least is dropped first."""
    samples = [node.sample for node in view.nodes if node.sample is not None]
    gpus = [(sample.node, gpu) for sample in samples for gpu in sample.gpus]
    ranks = [rank for sample in samples for rank in sample.ranks]
    simulated = any(sample.simulated for sample in samples)
    first: list[tuple[int, list[Cell]]] = [
        (0, [Cell(title, "title")]),
        (1, [Cell("SIMULATED", "warn")] if simulated else []),
        (2, [Cell("PAUSED", "warn")] if paused else []),
        (3, _nodes(view.nodes, brief=width < 100)),
        (4, _gpu_states([gpu for _, gpu in gpus])),
        (5, [Cell(clock_time(view.taken_at), "dim")]),
    ]
    second = [
        (0, _labelled("busy", percent(mean([gpu.busy for _, gpu in gpus])))),
        (3, _power([gpu for _, gpu in gpus])),
        (4, _hottest(gpus, len(view.nodes) > 1)),
        (1, _labelled("ranks", str(len(ranks)))),
        (2, _labelled("jobs", str(len({rank.job for rank in ranks})))),
        (5, _age(view.nodes)),
    ]
    return [flow(first, width), flow(second, width)]


def _labelled(label: str, value: str, style: str = "") -> list[Cell]:
    return [Cell(f"{label} ", "dim"), Cell(value, style)]


def _nodes(nodes: Sequence[NodeView], brief: bool) -> list[Cell]:
    """ "1/2 nodes live, 1 stale": the states that are not live are named where there is room."""
    states = Counter(node.state.state for node in nodes)
    live = states.pop("live", 0)
    others = "" if brief else "".join(f", {count} {state}" for state, count in sorted(states.items()))
    style = "crit" if states.keys() & {"lost", "refused"} else "warn" if states.keys() & {"stale"} else ""
    return [Cell(f"{live}/{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} live{others}", style)]


def _gpu_states(gpus: Sequence[GpuSample]) -> list[Cell]:
    if not gpus:
        return [Cell("no GPU seen", "dim")]
    ok = sum(gpu.state == "ok" for gpu in gpus)
    return [Cell(f"{ok}/{len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'} ok", "" if ok == len(gpus) else "crit")]


def _power(gpus: Sequence[GpuSample]) -> list[Cell]:
    drawn, limit = total([gpu.power_w for gpu in gpus]), total([gpu.power_limit_w for gpu in gpus])
    return _labelled("power", of(watts(drawn), watts(limit)))


def _hottest(gpus: Sequence[tuple[str, GpuSample]], name_node: bool) -> list[Cell]:
    """The hottest GPU and which one it is."""
    known = [(gpu.temperature_c, node, gpu.index) for node, gpu in gpus if gpu.temperature_c is not None]
    if not known:
        return _labelled("hottest", UNKNOWN)
    temperature, node, index = max(known)
    where = f"{node}/gpu{index}" if name_node else f"gpu{index}"
    return _labelled("hottest", f"{celsius(temperature)} {where}")


def _age(nodes: Sequence[NodeView]) -> list[Cell]:
    """How old the oldest sample of a live node is."""
    ages = [node.state.age_s for node in nodes if node.state.state == "live" and node.state.age_s is not None]
    return _labelled("age", age(max(ages, default=None)))
