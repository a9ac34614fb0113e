"""Ports of one name over all nodes, a row for each: how many are up, what they carry, and which nodes differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mltop.probes.model import LinkSample
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell, Column, columns_line, cut, header_line, line_width, row_of, wrap
from mltop.tui.render.fleet.heat import natural
from mltop.tui.render.links import bytes_per_s, gigabits, is_up, link_name
from mltop.tui.render.story import beside

READ_AT_ONCE = 64  # nodes: reading all of a large fleet's samples takes a while, and the screen must not wait
IDLE_SHARE = 0.25  # of what the rail's ports usually carry: less is told of
LEAST_USUAL = 1e8  # bytes/s that a rail's ports usually carry: below, nothing is compared
MOST_OUTLIERS = 12
_COLUMNS = (
    Column.of("name", "RAIL", 10, "name"),
    Column("up", "UP", 9, right=True, cell=lambda rail: f"{rail.up} of {rail.nodes}"),
    Column.of("rate", "RATE", 10, "rate_bits_per_s", gigabits, right=True),
    Column.of("rx", "RX", 9, "rx_bytes_per_s", bytes_per_s, right=True),
    Column.of("tx", "TX", 9, "tx_bytes_per_s", bytes_per_s, right=True),
)
_SHOWN = [(at, column.width) for at, column in enumerate(_COLUMNS)]


@dataclass(frozen=True)
class Outlier:
    """``grave``: it is down, or not there."""

    node: str
    what: str
    grave: bool


@dataclass(frozen=True)
class Rail:
    """``ports``: by node; ``up``: how many carry data; rates are medians over the nodes."""

    name: str
    nodes: int
    up: int
    rate_bits_per_s: float | None
    rx_bytes_per_s: float | None
    tx_bytes_per_s: float | None
    outliers: tuple[Outlier, ...]

    @property
    def gravity(self) -> tuple[int, int]:
        return sum(one.grave for one in self.outliers), len(self.outliers)


class PortsOfNodes:
    """The newest ports of each node, read a few nodes at a time."""

    def __init__(self) -> None:
        self.known: dict[str, Sequence[LinkSample]] = {}
        self._next = 0

    def read(self, views: Sequence[NodeView]) -> Mapping[str, Sequence[LinkSample]]:
        here = {view.node for view in views}
        self.known = {node: ports for node, ports in self.known.items() if node in here}
        for step in range(min(READ_AT_ONCE, len(views))):
            view = views[(self._next + step) % len(views)]
            self.known[view.node] = view.sample.links if view.sample is not None else ()
        self._next = (self._next + READ_AT_ONCE) % max(1, len(views))
        return self.known


def rails_of(ports: Mapping[str, Sequence[LinkSample]]) -> list[Rail]:
    """Those with outliers first, the gravest on top; the others by name."""
    by_name: dict[str, dict[str, LinkSample]] = {}
    for node, links in ports.items():
        for link in links:
            by_name.setdefault(link_name(link), {})[node] = link
    with_ports = sum(bool(links) for links in ports.values())
    rails = [_rail(name, of_nodes, with_ports, ports) for name, of_nodes in by_name.items()]
    return sorted(rails, key=lambda rail: (tuple(-part for part in rail.gravity), natural(rail.name)))


def _rail(
    name: str, of_nodes: Mapping[str, LinkSample], with_ports: int, all_ports: Mapping[str, Sequence[LinkSample]]
) -> Rail:
    rate = _median(link.rate_bits_per_s for link in of_nodes.values())
    received = _median(link.rx_bytes_per_s for link in of_nodes.values())
    sent = _median(link.tx_bytes_per_s for link in of_nodes.values())
    outliers = [one for node, link in of_nodes.items() if (one := _outlier(node, link, rate, received)) is not None]
    if len(of_nodes) > with_ports / 2:
        gone = (node for node, links in all_ports.items() if links and node not in of_nodes)
        outliers += [Outlier(node, "no port", True) for node in gone]
    outliers.sort(key=lambda one: (not one.grave, natural(one.node)))
    up = sum(is_up(link) for link in of_nodes.values())
    return Rail(name, len(of_nodes), up, rate, received, sent, tuple(outliers))


def _outlier(node: str, link: LinkSample, rate: float | None, usual: float | None) -> Outlier | None:
    if not is_up(link):
        return Outlier(node, (link.physical_state or link.state or link.error or "state unknown"), True)
    if rate is not None and link.rate_bits_per_s is not None and link.rate_bits_per_s < rate:
        return Outlier(node, gigabits(link.rate_bits_per_s), True)
    carried = link.rx_bytes_per_s
    if usual is not None and usual >= LEAST_USUAL and carried is not None and carried < IDLE_SHARE * usual:
        return Outlier(node, f"{bytes_per_s(carried)} in", False)
    return None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def rail_head(width: int) -> list[Cell]:
    return cut([*header_line(_COLUMNS, _SHOWN), Cell("  OUTLIERS", "head")], width)


def rail_lines(rail: Rail, width: int) -> list[list[Cell]]:
    """Whole, the outliers wrapped below each other's column."""
    first, *others = columns_line(_COLUMNS, row_of(_COLUMNS, rail, rail.name), _SHOWN)
    style = "crit" if rail.gravity[0] else "warn" if rail.outliers else ""
    head = [Cell(first.text, style), *others, Cell("  ")]
    cells: list[Cell] = []
    for one in rail.outliers[:MOST_OUTLIERS]:
        cells += [Cell(", " if cells else ""), Cell(f"{one.node} "), Cell(one.what, "crit" if one.grave else "warn")]
    left = len(rail.outliers) - MOST_OUTLIERS
    cells += [Cell(f" and {left} more", "dim")] if left > 0 else []
    if width - line_width(head) < 20:
        return [head, *([Cell("    "), *line] for line in wrap(cells, max(8, width - 4)) if cells)]
    return beside(head, cells or [Cell("none", "dim")], width)
