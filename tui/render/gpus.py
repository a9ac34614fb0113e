"""A GPU as a table row."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.model import GpuSample, RankSample
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.glyphs import GLYPHS, bar, sparkline
from mltop.tui.render.states import STATE_STYLE, state_word
from mltop.tui.render.units import UNKNOWN, bytes_text, celsius, clock_time, known, number, of, percent, watts

TREND_WIDTH = 60
GAUGE_WIDTH = 8

GPU_COLUMNS = (
    Column("gpu", "GPU", 3, right=True),
    Column("busy", "BUSY", 4, right=True),
    Column("gauge", "", GAUGE_WIDTH, priority=5),
    Column("trend", "TREND", 8, right=True, priority=2, stretch=True, most=TREND_WIDTH, tail=True),
    Column("sm", "SM", 4, right=True, priority=3, optional=True),
    Column("tensor", "TC", 4, right=True, priority=3, optional=True),
    Column("clock", "MHZ/MAX", 9, right=True),
    Column("temperature", "TEMP", 4, right=True),
    Column("power", "POWER/LIM", 10, right=True),
    Column("memory", "MEM/TOTAL", 11, right=True),
    Column("throttle", "THROTTLE", 9),
    Column("rank", "RANK", 4, right=True),
    Column("pid", "PID", 7, right=True),
    Column("state", "STATE", 12, priority=6),
    Column("user", "USER", 8, priority=7),
    Column("name", "MODEL", 24, priority=8),
    Column("pcie", "PCIE", 5, priority=9, optional=True),
    Column("bus", "BUS ID", 12, priority=10),
    Column("command", "COMMAND", 24, priority=11, stretch=True),
)

# NVML's clocks event reasons, worst first: badge and style (nvml.h, nvmlClocksEventReason*).
_THROTTLE = {
    "hw_thermal": ("THM", "crit"),
    "power_brake": ("BRK", "crit"),
    "hw_slowdown": ("SLW", "warn"),
    "sw_thermal": ("STH", "warn"),
    "sw_power_cap": ("PWR", ""),  # normal under full load
    "applications_clocks": ("APP", ""),
    "sync_boost": ("SYN", ""),
    "display_clocks": ("DSP", ""),
    "gpu_idle": ("idle", "dim"),
}


def gpu_row(
    gpu: GpuSample,
    ranks: Sequence[RankSample],
    trend: Sequence[float | None] = (),
    simulated: bool = False,
    node: str = "",
) -> Row:
    """One row of GPU_COLUMNS. ``ranks`` are those that use this GPU, ``trend`` its busy values, oldest first.

    The key is the GPU's index, or "node/index" when ``node`` is given.
    """
    cells = {
        "gpu": Cell(str(gpu.index)),
        "busy": Cell(percent(gpu.busy)),
        "gauge": Cell(bar(gpu.busy, GAUGE_WIDTH)),
        "trend": Cell(sparkline(trend or [gpu.busy], TREND_WIDTH), "dim"),
        "sm": Cell(percent(gpu.sm_active)),
        "tensor": Cell(percent(gpu.tensor_active)),
        "clock": Cell(of(number(gpu.sm_clock_mhz), number(gpu.sm_clock_max_mhz))),
        "temperature": _temperature(gpu),
        "power": Cell(of(watts(gpu.power_w), watts(gpu.power_limit_w))),
        "memory": Cell(of(bytes_text(gpu.memory_used_bytes), bytes_text(gpu.memory_total_bytes))),
        "throttle": throttle_cell(gpu.throttle_reasons),
        "name": _name(gpu, simulated),
        "pcie": _pcie(gpu),
        "bus": Cell((gpu.pci_bus_id or UNKNOWN).removeprefix("00000000:")),
        **_owner_cells(gpu, ranks),
    }
    row = tuple(cells[column.key] for column in GPU_COLUMNS)
    key = f"{node}/{gpu.index}" if node else str(gpu.index)
    return Row(key, row, None if gpu.state == "ok" else _banner(gpu, ranks))


def throttle_cell(reasons: Sequence[str] | None) -> Cell:
    """Badges of the reasons that hold now, worst first; blank: none. New reasons keep their name."""
    if reasons is None:
        return Cell(UNKNOWN)
    known_ones = [reason for reason in _THROTTLE if reason in reasons]
    badges = [_THROTTLE[reason][0] for reason in known_ones]
    badges += [reason for reason in reasons if reason not in _THROTTLE]
    if len(badges) > 1 and "idle" in badges:
        badges.remove("idle")
    style = _THROTTLE[known_ones[0]][1] if known_ones else ""
    return Cell(" ".join(badges), style)


def ranks_text(ranks: Sequence[RankSample]) -> str:
    """The ranks' numbers, "?" for a dead one whose number is lost."""
    return ",".join("?" if rank.rank is None else str(rank.rank) for rank in ranks)


def _temperature(gpu: GpuSample) -> Cell:
    """Coloured when the GPU itself says it is too hot: it slows down, or no margin is left."""
    text = celsius(gpu.temperature_c)
    reasons = gpu.throttle_reasons or []
    margin = gpu.temperature_margin_c
    if "hw_thermal" in reasons:
        return Cell(text, "crit")
    too_hot = margin is not None and known(margin) and margin <= 0
    return Cell(text, "warn" if too_hot or "sw_thermal" in reasons else "")


def _name(gpu: GpuSample, simulated: bool) -> Cell:
    name = (gpu.name or UNKNOWN).removeprefix("NVIDIA ")
    return Cell(f"SIMULATED {name}" if simulated else name)


def _pcie(gpu: GpuSample) -> Cell:
    """Generation and width: 5x16."""
    gen, width = gpu.pcie.gen, gpu.pcie.width
    if gen is None and width is None:
        return Cell(UNKNOWN)
    return Cell(f"{number(gen)}x{number(width)}")


def _owner_cells(gpu: GpuSample, ranks: Sequence[RankSample]) -> dict[str, Cell]:
    """Who is on this GPU: its ranks, or else whatever process holds it."""
    if ranks:
        first = ranks[0]
        return {
            "rank": Cell(ranks_text(ranks)),
            "pid": Cell(_first_and_more([rank.pid for rank in ranks])),
            "state": Cell(state_word(first.state), STATE_STYLE.get(first.state[:1], "")),
            "user": Cell(first.user or UNKNOWN),
            "command": Cell(first.command or UNKNOWN),
        }
    nothing = Cell("")
    cells = dict.fromkeys(("rank", "state", "user", "command"), nothing)
    if gpu.processes is None:
        return {**cells, "pid": Cell(UNKNOWN)}
    return {**cells, "pid": Cell(_first_and_more([process.pid for process in gpu.processes]), "dim")}


def _first_and_more(pids: Sequence[int]) -> str:
    if len(pids) < 2:
        return str(pids[0]) if pids else ""
    return f"{pids[0]}+{len(pids) - 1}"


def _banner(gpu: GpuSample, ranks: Sequence[RankSample]) -> Cell:
    """The sentence of a GPU that does not answer: "LOST since 12:41:07 - GPU is lost; rank 3 pid 4711"."""
    text = gpu.state.upper()
    if gpu.last_seen_at is not None:
        text += f" since {clock_time(gpu.last_seen_at)}"
    text += f" {GLYPHS.dash} {gpu.error or 'no reason given by NVML'}"
    if ranks:
        text += f"; used by rank {ranks_text(ranks)} pid {_first_and_more([rank.pid for rank in ranks])}"
    return Cell(text, "crit")
