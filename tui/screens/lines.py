"""What panes say in lines: problems and gaps, how a node is, how it was reached, and its machine. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.investigate.advice import advised
from mltop.probes.model import Gap
from mltop.probes.model.units import UNKNOWN, bytes_text, clock_time, counted, known, number, of, percent, seconds
from mltop.probes.reach.view import Connection, NodeView
from mltop.tui.render.cells import Cell, flow, meter, wrap
from mltop.tui.render.empty import EMPTY, empty_lines
from mltop.tui.render.findings import is_missed, merged_gaps
from mltop.tui.render.fleet.heat import ratio
from mltop.tui.render.fleet.nodes import state_sentence
from mltop.tui.render.glyphs import GLYPHS

INDENT = 5


def unread_lines(gaps: Sequence[Gap], width: int, keys: str) -> list[list[Cell]]:
    """ "12 values unavailable  u why"; [] where all can be read. Of a whole part that cannot be it says why."""
    missed = [gap for gap in gaps if is_missed(gap)]
    # A whole source, rather than a single value (``gpu.3.power_w``).
    wholes = (gap for gap in missed if gap.source not in ("gpu", "host", "ranks") or not (gap.item or gap.fields))
    whole = next(wholes, None)
    count = counted(sum(max(1, len(gap.fields)) for gap in missed), "value")
    cells = [
        Cell(f"  {whole.what}: {whole.why}; " if whole is not None else "  "),
        Cell(f"{count} unavailable  ", "dim"),
    ]
    return wrap([*cells, Cell(keys, "keys"), Cell(" why", "dim")], width, 2) if missed else []


def unreadable_lines(gaps: Sequence[Gap], width: int) -> list[list[Cell]]:
    """What could not be read: which values, why, and what would help; below it what this hardware does not tell."""
    missed = merged_gaps(gap for gap in gaps if is_missed(gap))
    absent = [gap.what for gap in gaps if gap.kind == "unsupported"]
    lines: list[list[Cell]] = []
    for gap in missed:
        lines += [[]] if lines else []
        lines += wrap([Cell(gap.what, "title")], width, 2)
        lines += wrap([Cell(f"  {gap.why}")], width, 2)
        lines += wrap([Cell(f"  {GLYPHS.arrow} {advised(gap.fix)}", "key")], width, 4) if gap.fix else []
    if absent:
        lines += [[]] if lines else []
        lines += wrap([Cell(f"not available here: {', '.join(absent)}", "dim")], width, 2)
    return lines


def gap_cells(gap: Gap) -> list[Cell]:
    """E.g. ``GAP  nvml: no driver - install it``."""
    fix = f" {GLYPHS.dash} {advised(gap.fix)}" if gap.fix else ""
    return [Cell(f"{'GAP':<{INDENT}}", "dim"), Cell(f"{gap.what}: ", "bold"), Cell(gap.why), Cell(fix, "accent")]


MOST_REASON = 6  # lines
SKEW_S = 1.0  # clocks that differ by less are fine


def state_lines(node: NodeView, taken_at: float, since: float | None, width: int) -> list[list[Cell]]:
    """Why a node is not live, in full, since when, and when it was last heard of; [] for a live one."""
    state = node.state.state
    if state == "live":
        return []
    lines = wrap([state_sentence(node)], width, indent=2)[:MOST_REASON]
    heard = "nothing has come from it yet"
    if node.sample is not None and (passed_s := node.state.age_s) is not None:
        heard = f"last sample at {clock_time(taken_at - passed_s)}, {seconds(passed_s)} ago"
    parts = [
        (1, [Cell(f"{state} since {clock_time(since)}", "dim")] if since is not None else []),
        (0, [Cell(heard, "dim")]),
    ]
    return [*lines, [Cell("  "), *flow(parts, width - 2)], *next_lines(node, width)]


def next_lines(node: NodeView, width: int) -> list[list[Cell]]:
    """What comes next where a node does not answer, or has no GPUs."""
    if node.state.state in EMPTY:
        return empty_lines(node.state.state, width, node.node)
    return empty_lines("gpus", width) if node.sample is not None and not node.gpus else []


def host_cells(node: NodeView, width: int) -> list[Cell]:
    """E.g. ``HOST  cpu ━━── 27 of 96 CPUs  memory ╸─── 148G/2.0T  net 107M/s in  8M/s out  disk 212M/s  shm 0%``; first
    of all why what follows is not of now.
    """
    state = [] if node.state.state == "live" else [state_sentence(node)]
    if node.sample is None:
        return [Cell(f"{node.node} ", "bold"), *state]
    host = node.sample.host
    is_wide = width >= WIDE
    meter = 8 if is_wide else 5
    total, available = host.memory_total_bytes, host.memory_available_bytes
    cpus, used = percent(host.cpu_fraction), None if total is None or available is None else total - available
    if is_wide and host.cpu_count is not None and host.cpu_fraction is not None:
        cpus = f"{round(host.cpu_fraction * host.cpu_count)} of {host.cpu_count} CPUs"
    share = ratio(used, total)
    memory = of(bytes_text(used), bytes_text(total)) if is_wide else percent(share)
    received, sent = host.network_rx_bytes_per_s, host.network_tx_bytes_per_s
    network = f"{_per_s(received)} in  {_per_s(sent)} out" if is_wide else _per_s(_sum(received, sent))
    shm = ratio(host.shm_used_bytes, host.shm_total_bytes)
    known_loads = [load for load in (host.load_1m, host.load_5m, host.load_15m) if load is not None]
    loads = [number(load) if load >= 10 else f"{load:.1f}" for load in known_loads]
    parts = [
        (0, [Cell("HOST", "head")]),
        (0, state),
        (1, metered("cpu", host.cpu_fraction, cpus, meter)),
        (2, metered("memory" if is_wide else "mem", share, memory, meter)),
        (3, _labelled("net", network)),
        (4, _labelled("disk", _per_s(_sum(host.disk_read_bytes_per_s, host.disk_write_bytes_per_s)))),
        (5, _labelled("shm", percent(shm)) if shm is not None else []),
        (6, _labelled("load", " ".join(loads) or UNKNOWN)),
    ]
    return flow(parts, width, "   ")


WIDE = 110


def metered(label: str, share: float | None, text: str, cells: int) -> list[Cell]:
    """``cpu ━━╸── 27%``."""
    if share is None or not known(share):
        return [Cell(f"{label} ", "dim"), Cell(UNKNOWN)]
    return [Cell(f"{label} ", "dim"), *meter(share, cells), Cell(f" {text}")]


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _per_s(value: float | None) -> str:
    return UNKNOWN if value is None else f"{bytes_text(value)}/s"


def connection_cells(connection: Connection, width: int) -> list[Cell]:
    """E.g. ``via ssh  connected in 0.8s  python 3.11.7 at /usr/bin/python3  agent in ~/.cache/mltop``.

    [] for a node of which nothing but "local" is known.
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
