"""Everything that is known of one GPU, below its timeline. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltop.probes.model import GpuGaps, GpuProcess, GpuSample, KernelEvent, RankSample, Sample
from mltop.probes.model.units import UNKNOWN, bytes_text, clock_time, number, seconds
from mltop.tui.render.cells import Cell, Column, Row, table_lines, wrap
from mltop.tui.render.gpus.details import (
    FIRST_COLUMN,
    FIRST_LABEL,
    NO_SHARES,
    block_lines,
    blocks_of,
    side_by_side,
)
from mltop.tui.render.gpus.table import LINK_COLUMNS, link_row
from mltop.tui.render.ranks import short_command
from mltop.tui.render.states import STATE_STYLE, state_word
from mltop.tui.screens.lines import gap_cells

LINK_PANEL = 60  # cells: wider screens show links in several panels
MOST_EVENTS = 8


@dataclass(frozen=True)
class Baseline:
    """A GPU as it was when it was first looked at (``at``: unix s): counters are worth what they grew by since."""

    at: float
    gpu: GpuSample


class Baselines:
    """The GPUs that were looked at. Another board in the place, or a time that goes back (a replay), starts anew."""

    def __init__(self) -> None:
        self._baselines: dict[tuple[str, int], Baseline] = {}

    def of(self, node: str, gpu: GpuSample, at: float) -> Baseline:
        baseline = self._baselines.get((node, gpu.index))
        if baseline is None or baseline.gpu.uuid != gpu.uuid or at < baseline.at:
            baseline = self._baselines[node, gpu.index] = Baseline(at, gpu)
        return baseline


PROCESS_COLUMNS = (
    Column("pid", "PID", 8, right=True),
    Column("rank", "RANK", 5, right=True),
    Column("memory", "MEMORY", 6, right=True),
    Column("kind", "KIND", 8),
    Column("instance", "GI", 3, right=True, optional=True),
    Column("state", "STATE", 12, priority=1),
    Column("user", "USER", 8, priority=2),
    Column("age", "AGE", 5, right=True, priority=4),
    Column("parent", "PARENT", 7, right=True, priority=5),
    Column("command", "COMMAND", 16, priority=3, stretch=True),
)


def details(
    sample: Sample, gpu: GpuSample, baseline: Baseline, width: int, shares: Mapping[str, float] = NO_SHARES
) -> list[list[Cell]]:
    """All lines below the timeline. ``shares``: of the timeline's time in which each reason held the clock down."""
    gaps = GpuGaps(sample.gaps, gpu.index)
    blocks = blocks_of(gpu, gaps, baseline.gpu, shares)
    lines = block_lines([block for block in blocks if block.title.isupper()], width, FIRST_COLUMN, FIRST_LABEL)
    lines += [[], *process_lines(gpu, sample.ranks, gaps, width, sample.sampled_at)]
    lines += [[], *block_lines([block for block in blocks if not block.title.isupper()], width)]
    watched_s = sample.sampled_at - baseline.at
    since = f" (+: errors in the {seconds(watched_s)} that they are watched)" if watched_s > 0 else ""
    lines += _section(link_lines(gpu, baseline.gpu, width), f"NVLinks{since}")
    lines += _section(event_lines(sample.kernel_events, gpu, width), "kernel log")
    why = [line for gap in gaps.distinct() for line in wrap(gap_cells(gap), width, 5)]
    return lines + _section(why, "not known of this GPU")


def process_lines(
    gpu: GpuSample, ranks: Sequence[RankSample], gaps: GpuGaps, width: int, now: float | None = None
) -> list[list[Cell]]:
    """Who holds this GPU, a line each; ranks that NVML does not list are there too. ``now``: unix s."""
    if gpu.processes is None and not ranks:
        return [[Cell("processes ", "title"), Cell(f"{UNKNOWN} {gaps.why('processes')}", "dim")]]
    by_pid = {rank.pid: rank for rank in ranks if gpu.index in rank.gpus}
    listed = {process.pid: process for process in gpu.processes or ()}
    rows = []
    for pid in dict.fromkeys([*by_pid, *listed]):
        process, rank = listed.get(pid), by_pid.get(pid)
        who = rank or process
        started_at = who.started_at if who is not None else None
        parent = process.ppid if process is not None else None
        cells = (
            Cell(str(pid)),
            Cell("" if rank is None else number(rank.rank)),
            Cell(bytes_text(process.memory_bytes) if process is not None else UNKNOWN),
            Cell(process.kind if process is not None else UNKNOWN),
            Cell(number(process.gpu_instance) if process and process.gpu_instance is not None else ""),
            _state_cell(rank, process),
            Cell(who.user if who is not None else ""),
            Cell(seconds(max(0.0, now - started_at)) if now is not None and started_at is not None else ""),
            Cell("" if parent is None else str(parent)),
            _command_cell(rank, process),
        )
        rows.append(Row(str(pid), cells))
    if not rows:
        return [[Cell("no process holds this GPU", "dim")]]
    return table_lines(PROCESS_COLUMNS, rows, width)


# Why a process cannot be seen, beside its pid.
_ABSENT = {
    "ended": Cell("ended", "crit"),
    "elsewhere": Cell("not here", "warn"),
    "hidden": Cell("hidden", "warn"),
}


def _state_cell(rank: RankSample | None, process: GpuProcess | None) -> Cell:
    if rank is None and process is not None and process.absent in _ABSENT:
        return _ABSENT[process.absent]
    state = rank.state if rank is not None else process.state if process is not None else ""
    return Cell(state_word(state) if rank is not None or state else "", STATE_STYLE.get(state[:1], ""))


def _command_cell(rank: RankSample | None, process: GpuProcess | None) -> Cell:
    """Of what is no rank only the kernel's name is known."""
    if rank is not None:
        return Cell(short_command(rank.command))
    if process is None:
        return Cell("")
    return Cell(f"{process.probe} probe of mltop" if process.probe else process.name, "dim")


def link_lines(gpu: GpuSample, earlier: GpuSample, width: int) -> list[list[Cell]]:
    """A line per NVLink, in as many panels as fit beside each other."""
    links = gpu.nvlink.links
    if not links:
        return []
    before = {link.index: link.errors for link in earlier.nvlink.links}
    panels = max(1, min(3, width // LINK_PANEL))
    each = width // panels
    rows = []
    for link in links:
        old = before.get(link.index, {})
        grown = {name: value - old[name] for name, value in link.errors.items() if name in old and value > old[name]}
        rows.append(link_row(link, grown))
    header, *drawn = table_lines(LINK_COLUMNS, rows, each - 2)
    high = -(-len(drawn) // panels)
    return side_by_side([[header, *drawn[start : start + high]] for start in range(0, len(drawn), high)], each)


def event_lines(events: Sequence[KernelEvent], gpu: GpuSample, width: int) -> list[list[Cell]]:
    """What the kernel log said of this GPU, the newest first."""
    own = _device(gpu.pci_bus_id or "")
    of_gpu = [event for event in events if own is not None and _device(event.subject) == own]
    lines = []
    for event in reversed(of_gpu[-MOST_EVENTS:]):
        what = event.kind if event.code is None else f"{event.kind.capitalize()} {event.code}"
        cells = [Cell(f"{clock_time(event.at)}  ", "dim"), Cell(f"{what}  ", "bold"), Cell(event.text)]
        lines += wrap(cells, width, 10)
    return lines


def _device(bus_id: str) -> tuple[int, str, str] | None:
    """Of a PCI bus id: "0000:1b:00" in the log is "00000000:1B:00.0" in NVML."""
    parts = bus_id.lower().split(".")[0].split(":")
    try:
        return (int(parts[0], 16), parts[1], parts[2]) if len(parts) == 3 else None
    except ValueError:
        return None


def _section(lines: list[list[Cell]], title: str) -> list[list[Cell]]:
    return [[], [Cell(title, "title")], *lines] if lines else []
