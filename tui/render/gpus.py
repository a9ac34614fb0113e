"""A GPU as a table row, and the instances of one that is in MIG mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from mltop.probes.judge.health.gpu_recovery import advice
from mltop.probes.model import GpuProcess, GpuSample, MigInstance, Pcie, RankSample
from mltop.tui.mishaps import spared
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.glyphs import GLYPHS, bar, sparkline
from mltop.tui.render.gpu_flags import flags, flags_cell
from mltop.tui.render.nvlink import decimal_rate, nvlink_cell, rate_of
from mltop.tui.render.states import STATE_STYLE, state_word
from mltop.tui.render.throttle import gpu_throttle_cell, throttle_cell
from mltop.tui.render.units import UNKNOWN, bytes_text, celsius, clock_time, known, number, of, percent, watts

__all__ = ["GPU_COLUMNS", "gpu_columns", "gpu_row", "mig_row", "ranks_text", "spins", "throttle_cell"]

TREND_WIDTH = 60
GAUGE_WIDTH = 6
COARSE = "coarse"  # what GPU-Util is: the share of time in which any kernel was resident

# A rank that waits in a collective: its kernel is resident all the time and does next to nothing.
SPINS_BUSY, SPINS_SM, SPINS_TENSOR = 0.95, 0.25, 0.02
SPINS_MARK = "!" if GLYPHS.ascii_only else "≠"

GPU_COLUMNS = (
    Column("gpu", "GPU", 3, right=True),
    Column("busy", "BUSY", 4, right=True),
    Column("gauge", "", GAUGE_WIDTH, priority=15),
    Column("trend", "TREND", 7, right=True, priority=8, stretch=True, most=TREND_WIDTH, tail=True),
    Column("sm", "SM", 4, right=True),
    Column("tensor", "TC", 4, right=True, priority=2),
    Column("dram", "DRAM", 4, right=True, priority=4),
    Column("clock", "MHZ/MAX", 9, right=True),
    Column("temperature", "TEMP", 4, right=True),
    Column("hbm", "HBM", 4, right=True, priority=7, optional=True),
    Column("margin", "MARGIN", 6, right=True, priority=10, optional=True),
    Column("power", "PWR/LIM", 8, right=True),
    Column("memory", "MEMORY", 8, right=True),
    Column("throttle", "THROTTLE", 10, stretch=True, most=20),
    Column("flags", "FLAGS", 8, optional=True),
    Column("nvlink", "NVLINK", 12, right=True, priority=5, optional=True),
    Column("pcie", "PCIE", 11, right=True, priority=6, optional=True),
    Column("rank", "RANK", 4, right=True),
    Column("pid", "PID", 7, right=True, priority=3),
    Column("user", "USER", 8, priority=9),
    Column("state", "STATE", 12, priority=11),
    Column("name", "MODEL", 24, priority=12),
    Column("bus", "BUS ID", 12, priority=14),
    Column("command", "COMMAND", 24, priority=13, stretch=True),
)


# By GpuSample.error_code, where that says more than the state.
_BANNERS = {"needs_reset": "NEEDS RESET", "no_permission": "NO PERMISSION"}
_BY_KEY = {column.key: column for column in GPU_COLUMNS}


def gpu_columns(gpus: Sequence[GpuSample]) -> tuple[Column, ...]:
    """GPU_COLUMNS for these GPUs.

    Where only GPU-Util is known of what they do, its gauge says that it is coarse. Flags that are no alarm (a row of
    memory that was repaired long ago) take no room from what moves.
    """
    changed: dict[str, Column] = {}
    if not any(gpu.sm_active is not None or any_instance_known(gpu) for gpu in gpus):
        changed = {"gauge": replace(_BY_KEY["gauge"], title=COARSE, priority=0)}
        changed |= {key: replace(_BY_KEY[key], priority=7) for key in ("tensor", "dram")}
    none: list[tuple[str, str]] = []
    if not any(style for gpu in gpus for _, style in spared("a GPU's flags", partial(flags, gpu), none)):
        changed["flags"] = replace(_BY_KEY["flags"], priority=7)
    return tuple(changed.get(column.key, column) for column in GPU_COLUMNS)


def any_instance_known(gpu: GpuSample) -> bool:
    return any(instance.sm_active is not None for instance in gpu.mig_instances)


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
        "gauge": Cell(bar(gpu.busy, GAUGE_WIDTH), "dim"),
        "trend": Cell(sparkline(trend or [gpu.busy], TREND_WIDTH), "dim"),
        "sm": _sm(gpu),
        "tensor": Cell(percent(gpu.tensor_active)),
        "dram": Cell(percent(gpu.dram_active)),
        "clock": Cell(of(number(gpu.sm_clock_mhz), number(gpu.sm_clock_max_mhz))),
        "temperature": _temperature(gpu),
        "hbm": _memory_temperature(gpu),
        "margin": Cell(celsius(gpu.temperature_margin_c)),
        "power": Cell(of(watts(gpu.power_w), watts(gpu.power_limit_w))),
        "memory": Cell(memory_text(gpu.memory_used_bytes, gpu.memory_total_bytes)),
        "throttle": gpu_throttle_cell(gpu),
        "flags": flags_cell(gpu),
        "nvlink": nvlink_cell(gpu.nvlink),
        "pcie": pcie_cell(gpu.pcie),
        "name": _name(gpu, simulated),
        "bus": Cell((gpu.pci_bus_id or UNKNOWN).removeprefix("00000000:")),
        **_owner_cells(gpu, ranks),
    }
    row = tuple(cells[column.key] for column in GPU_COLUMNS)
    key = f"{node}/{gpu.index}" if node else str(gpu.index)
    return Row(key, row, None if gpu.state == "ok" else _banner(gpu, ranks))


def mig_row(gpu: GpuSample, instance: MigInstance) -> Row:
    """An instance below its GPU: its own memory, activity and processes; clocks and heat are the whole GPU's."""
    own = [one for one in gpu.processes or () if one.gpu_instance == instance.gpu_instance]
    branch = "`" if GLYPHS.ascii_only else "└"
    cells = dict.fromkeys((column.key for column in GPU_COLUMNS), Cell(""))
    cells |= {
        "gpu": Cell(f"{branch}{instance.index}", "dim"),
        "busy": Cell("MIG", "dim"),
        "sm": Cell(percent(instance.sm_active)),
        "tensor": Cell(percent(instance.tensor_active)),
        "dram": Cell(percent(instance.dram_active)),
        "clock": Cell(instance.name or UNKNOWN, "dim"),
        "memory": Cell(memory_text(instance.memory_used_bytes, instance.memory_total_bytes)),
        "pid": _pids(gpu.processes if gpu.processes is None else own),
    }
    return Row(f"{gpu.index}.{instance.index}", tuple(cells[column.key] for column in GPU_COLUMNS))


def spins(gpu: GpuSample) -> bool:
    """Whether a kernel is resident all the time and hardly any SM works: what a hung collective looks like."""
    busy, sm, tensor = gpu.busy, gpu.sm_active, gpu.tensor_active
    if busy is None or sm is None or tensor is None:
        return False
    return busy >= SPINS_BUSY and sm < SPINS_SM and tensor < SPINS_TENSOR


def ranks_text(ranks: Sequence[RankSample]) -> str:
    """The ranks' numbers, "?" for a dead one whose number is lost."""
    return ",".join("?" if rank.rank is None else str(rank.rank) for rank in ranks)


def memory_text(used: int | None, total: int | None) -> str:
    """ "74/80G", "512M/80G": whole units, two digits where that is less than ten."""
    return of(_whole(bytes_text(used)), _whole(bytes_text(total)))


def pcie_cell(pcie: Pcie) -> Cell:
    """Generation, width and both directions together: "5x16 1.2G/s"; "!": narrower than it could be.

    Idle links run at a low generation: only the width tells something on its own.
    """
    gen, width = pcie.gen, pcie.width
    if gen is None and width is None:
        return Cell(UNKNOWN)
    narrow = width is not None and pcie.width_max is not None and width < pcie.width_max
    rate = rate_of(pcie.rx_bytes_per_s, pcie.tx_bytes_per_s)
    text = f"{number(gen)}x{number(width)}{'!' * narrow}"
    return Cell(text if rate is None else f"{text} {decimal_rate(rate)}", "warn" if narrow else "")


def _sm(gpu: GpuSample) -> Cell:
    """Marked where it contradicts BUSY: 100% ≠11%."""
    text = percent(gpu.sm_active)
    return Cell(f"{SPINS_MARK}{text}", "accent") if spins(gpu) else Cell(text)


def _whole(text: str) -> str:
    """74.2G is 74G; 7.4G stays."""
    whole, point, rest = text.partition(".")
    return whole + rest[1:] if point and len(whole) > 1 else text


def _temperature(gpu: GpuSample) -> Cell:
    """Coloured when the GPU itself says it is too hot: it slows down, or no margin is left."""
    text = celsius(gpu.temperature_c)
    reasons = gpu.throttle_reasons or []
    margin = gpu.temperature_margin_c
    if "hw_thermal" in reasons:
        return Cell(text, "crit")
    too_hot = margin is not None and known(margin) and margin <= 0
    return Cell(text, "warn" if too_hot or "sw_thermal" in reasons else "")


def _memory_temperature(gpu: GpuSample) -> Cell:
    now, most = gpu.memory_temperature_c, gpu.memory_temperature_max_c
    too_hot = now is not None and most is not None and now >= most
    return Cell(celsius(now), "warn" if too_hot else "")


def _name(gpu: GpuSample, simulated: bool) -> Cell:
    name = (gpu.name or UNKNOWN).removeprefix("NVIDIA ")
    return Cell(f"SIMULATED {name}" if simulated else name)


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
    cells = dict.fromkeys(("rank", "state", "user", "command"), Cell(""))
    return {**cells, "pid": _pids(gpu.processes)}


def _pids(processes: Sequence[GpuProcess] | None) -> Cell:
    if processes is None:
        return Cell(UNKNOWN)
    return Cell(_first_and_more([process.pid for process in processes]), "dim")


def _first_and_more(pids: Sequence[int]) -> str:
    if len(pids) < 2:
        return str(pids[0]) if pids else ""
    return f"{pids[0]}+{len(pids) - 1}"


def _banner(gpu: GpuSample, ranks: Sequence[RankSample]) -> Cell:
    """The sentence of a GPU that does not answer: "LOST since 12:41:07, rank 3 pid 4711 - GPU is lost". Whose it was
    stands first: the reason may be longer than the screen is wide.
    """
    text = _BANNERS.get(gpu.error_code, gpu.state.upper())
    if gpu.last_seen_at is not None:
        text += f" since {clock_time(gpu.last_seen_at)}"
    if ranks:
        text += f", rank {ranks_text(ranks)} pid {_first_and_more([rank.pid for rank in ranks])}"
    elif gpu.processes:
        text += f", held by pid {_first_and_more([process.pid for process in gpu.processes])}"
    text += f" {GLYPHS.dash} {gpu.error or 'no reason given by NVML'}"
    if gpu.error_code == "needs_reset":
        text += f"; {advice('gpu_reset', gpu.index)[0]}"
    return Cell(text, "warn" if gpu.error_code == "no_permission" else "crit")
