"""What panes say in lines: problems and gaps, how a node is, how it was reached, and its machine. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.investigate.advice import advised
from mltop.probes.model import Finding, Gap, HostSample
from mltop.probes.model.units import bytes_text, clock_time, number, of, percent, seconds
from mltop.probes.model.vocabulary import REFUSALS
from mltop.probes.reach.view import Connection, FleetView, NodeView
from mltop.tui.render.cells import Cell, flow, wrap
from mltop.tui.render.findings import is_missed, of_gravity, severity_cell
from mltop.tui.render.fleet.nodes import state_sentence
from mltop.tui.render.glyphs import GLYPHS

INDENT = 5


def problem_lines(findings: Sequence[Finding], gaps: Sequence[Gap], width: int, room: int) -> list[list[Cell]]:
    """A node's problems in at most ``room`` lines: wrapped where that fits, else one for each, else the worst.

    Single values that are not known are only counted.
    """
    gaps = [gap for gap in _beside(findings, gaps) if is_missed(gap)]
    entries = [finding_cells(finding) for finding in sorted(findings, key=of_gravity)]
    entries += [gap_cells(gap) for gap in gaps if not _is_detail(gap)]
    details = sum(map(_is_detail, gaps))
    if details:
        values = "value is" if details == 1 else "values are"
        entries.append([Cell(f"{details} {values} not known: 2 shows why", "dim")])
    wrapped = [line for entry in entries for line in wrap(entry, width, INDENT)]
    if len(wrapped) <= room:
        return wrapped
    if len(entries) <= room:
        return entries
    hidden = len(entries) - room + 1
    return [*entries[: room - 1], [Cell(f"{hidden} more: 2 shows all", "dim")]] if room > 0 else []


def all_problem_lines(findings: Sequence[Finding], gaps: Sequence[Gap], width: int) -> list[list[Cell]]:
    """Everything that is wrong with a node, wrapped at ``width``."""
    entries = [finding_cells(finding) for finding in sorted(findings, key=of_gravity)]
    entries += [gap_cells(gap) for gap in _beside(findings, gaps) if is_missed(gap)]
    absent = [gap.what for gap in gaps if gap.kind == "unsupported"]
    if absent:
        entries.append([Cell(f"{'':<{INDENT}}"), Cell(f"not supported here: {', '.join(absent)}", "dim")])
    return [line for entry in entries for line in wrap(entry, width, INDENT)]


def finding_cells(finding: Finding) -> list[Cell]:
    """E.g. ``CRIT GPU 3 throttled by HW thermal slowdown — check the airflow``."""
    severity = severity_cell(finding.severity)
    action = f" {GLYPHS.dash} {finding.action}" if finding.action else ""
    return [
        Cell(f"{severity.text:<{INDENT}}", severity.style),
        Cell(finding.message),
        Cell(action, "accent"),
    ]


def gap_cells(gap: Gap) -> list[Cell]:
    """E.g. ``GAP  nvml: no driver - install it``."""
    fix = f" {GLYPHS.dash} {advised(gap.fix)}" if gap.fix else ""
    return [Cell(f"{'GAP':<{INDENT}}", "dim"), Cell(f"{gap.what}: ", "bold"), Cell(gap.why), Cell(fix, "accent")]


def _beside(findings: Sequence[Finding], gaps: Sequence[Gap]) -> list[Gap]:
    """The gaps without those that findings were made of: that the driver is gone, or does not answer."""
    found = {finding.id for finding in findings if finding.severity == "critical"}
    codes = {*(REFUSALS if "gpu.driver" in found else ()), *(("stuck",) if "nvml.stuck" in found else ())}
    of_nvml = [gap for gap in gaps if gap.source == "nvml" and not gap.fields and gap.code in codes]
    told = {gap.code: gap for gap in reversed(of_nvml)}.values()  # of several with one code the first
    return [gap for gap in gaps if not any(gap is other for other in told)]


def _is_detail(gap: Gap) -> bool:
    """A single value (``gpu.3.power_w``) rather than a whole source."""
    return gap.source in ("gpu", "host", "ranks") and bool(gap.item or gap.fields)


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
        """Unix s; None for a node that was never seen."""
        return self._since[node][1] if node in self._since else None


def state_lines(node: NodeView, taken_at: float, since: float | None, width: int) -> list[list[Cell]]:
    """Why a node is not live, in full, since when, and when it was last heard of; [] for a live one."""
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
    return f"last sample at {clock_time(taken_at - passed_s)}, {seconds(passed_s)} ago"


def host_cells(node: NodeView, width: int) -> list[Cell]:
    """E.g. ``cpu 31% of 192  memory 848G/2.0T  load 64 60 58``; first of all why what follows is not of now."""
    state = [] if node.state.state == "live" else [state_sentence(node)]
    if node.sample is None:
        return [Cell(f"{node.node} ", "bold"), *state]
    host = node.sample.host
    parts = [
        (0, state),
        (0, _labelled("cpu", f"{percent(host.cpu_fraction)} of {number(host.cpu_count)}")),
        (1, _labelled("memory", of(bytes_text(_used_memory(host)), bytes_text(host.memory_total_bytes)))),
        (2, _labelled("load", " ".join(map(_load, _known_loads(host))))),
        (3, _labelled("shm", of(bytes_text(host.shm_used_bytes), bytes_text(host.shm_total_bytes)))),
        (4, _labelled("in", _per_s(host.network_rx_bytes_per_s))),
        (4, _labelled("out", _per_s(host.network_tx_bytes_per_s))),
        (5, _labelled("up", seconds(host.uptime_s))),
        (6, _labelled("kernel", host.kernel)),
    ]
    return flow(parts, width)


def _used_memory(host: HostSample) -> int | None:
    if host.memory_total_bytes is None or host.memory_available_bytes is None:
        return None
    return host.memory_total_bytes - host.memory_available_bytes


def _known_loads(host: HostSample) -> list[float | None]:
    """The loads over 1, 5 and 15 minutes that are known; one unknown when none is."""
    loads = [load for load in (host.load_1m, host.load_5m, host.load_15m) if load is not None]
    return [*loads] or [None]


def _load(value: float | None) -> str:
    return number(value) if value is None or value >= 10 else f"{value:.1f}"


def _per_s(value: float | None) -> str:
    return f"{bytes_text(value)}/s"


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
