"""How a node is and how it was reached, as lines. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.reach.view import Connection, FleetView, NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.nodes import state_sentence
from mltop.tui.render.units import age, clock_time, seconds
from mltop.tui.render.wrap import flow, wrap

MOST_REASON = 6  # lines
SKEW_S = 1.0  # clocks that differ by less are fine


class StatesSince:
    """Remembers since when every node is in its state, as far as this screen has seen it."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}

    def feed(self, view: FleetView) -> None:
        for node in view.nodes:
            if self._since.get(node.node, ("", 0.0))[0] != node.state.state:
                self._since[node.node] = (node.state.state, view.taken_at)

    def of(self, node: str) -> float | None:
        """Unix s; None of a node that was never seen."""
        return self._since[node][1] if node in self._since else None


def state_lines(node: NodeView, taken_at: float, since: float | None, width: int) -> list[list[Cell]]:
    """Why a node is not live, in full, since when, and when it was last heard of; nothing of a live one."""
    state = node.state.state
    if state == "live":
        return []
    lines = wrap([state_sentence(node)], width, indent=2)[:MOST_REASON]
    again = [] if state in ("connecting", "stale") else [Cell("R tries again now", "accent")]
    parts = [
        (1, [Cell(f"{state} since {clock_time(since)}", "dim")] if since is not None else []),
        (0, [Cell(_last_heard(node, taken_at), "dim")]),
        (2, again),
    ]
    return [*lines, [Cell("  "), *flow(parts, width - 2)]]


def _last_heard(node: NodeView, taken_at: float) -> str:
    passed_s = node.state.age_s
    if node.sample is None or passed_s is None:
        return "nothing has come from it yet"
    return f"last sample at {clock_time(taken_at - passed_s)}, {age(passed_s)} ago"


def connection_cells(connection: Connection, width: int) -> list[Cell]:
    """E.g. ``via ssh  connected in 0.8s  python 3.11.7 at /usr/bin/python3  agent in ~/.cache/mltop``.

    Nothing of a node of which nothing but "local" is known.
    """
    boot, hello = connection.boot, connection.hello
    if boot is None and hello is None and connection.connect_s is None and connection.via == "local":
        return []
    python = boot.python if boot is not None else hello.python if hello is not None else ""
    skew_s = None if connection.via == "local" else connection.clock_skew_s
    parts = [
        (0, _labelled("via", connection.via)),
        (1, _labelled("connected in", seconds(connection.connect_s))),
        (2, _labelled("python", python)),
        (3, _agent(connection)),
        (1, [Cell(f"clock {skew_s:+.0f}s", "warn")] if skew_s is not None and abs(skew_s) >= SKEW_S else []),
        (2, [Cell(f"restarted {connection.restarts} times", "warn")] if connection.restarts > 1 else []),
    ]
    return flow(parts, width)


def _agent(connection: Connection) -> Sequence[Cell]:
    """Where the agent lies on the node."""
    boot = connection.boot
    if boot is None:
        return _labelled("mltop", connection.hello.version if connection.hello is not None else "")
    if not boot.root:
        return _labelled("agent", "in memory only: no folder could be written")
    return _labelled("agent", f"in {boot.root}" + ("" if boot.cached else ", new"))


def _labelled(label: str, value: str) -> list[Cell]:
    return [Cell(f"{label} ", "dim"), Cell(value)] if value else []
