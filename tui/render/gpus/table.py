"""What a GPU's memory has behind it, as flags: nothing where all is well.

The NVLinks of a GPU: how many are up, how fast, and what errors each has counted.

A GPU as a table row, and the instances of one that is in MIG mode.

What a row of the GPU table is sorted by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mltop.probes.judge.health.gpu.xid_catalog import gpu_reset
from mltop.probes.model import GpuProcess, GpuSample, MigInstance, Nvlink, NvlinkLink, Pcie, RankSample
from mltop.tui.app.mishaps import spared
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.glyphs import GLYPHS, bar, sparkline
from mltop.tui.render.gpus.throttle import gpu_throttle_cell, throttle_cell, worst_share
from mltop.tui.render.states import STATE_STYLE, state_word
from mltop.tui.render.units import UNKNOWN, bytes_text, celsius, clock_time, count, known, number, of, percent, watts


def flags(gpu: GpuSample) -> list[tuple[str, str]]:
    """(text, style), the gravest first: "remap failed", "ecc 2", "remap!", "row 512", "corr 12k"."""
    ecc, remap = gpu.ecc, gpu.remap
    found: list[tuple[str, str]] = []
    if remap.failed:
        found.append(("remap failed", "crit"))
    if ecc.sram_threshold_exceeded:
        found.append(("sram!", "crit"))
    if ecc.uncorrected_volatile:
        found.append((f"ecc {count(ecc.uncorrected_volatile)}", "crit"))
    if gpu.recovery_action not in (None, "none"):
        found.append((f"wants {(gpu.recovery_action or '').replace('_', ' ')}", "crit"))
    if remap.pending or remap.repair_pending or gpu.retired_pages_pending:
        found.append(("remap!", "warn"))
    if remap.banks.none:
        found.append((f"bank {count(remap.banks.none)}", "warn"))
    rows = (remap.uncorrected or 0) + (remap.corrected or 0)
    if rows:
        found.append((f"row {count(rows)}", ""))
    if gpu.retired_pages:
        found.append((f"page {count(gpu.retired_pages)}", ""))
    if ecc.corrected_volatile:
        found.append((f"corr {count(ecc.corrected_volatile)}", ""))
    return found


def flags_cell(gpu: GpuSample) -> Cell:
    """All flags in the style of the gravest; blank: none."""
    found = flags(gpu)
    return Cell(" ".join(text for text, _ in found), found[0][1] if found else "")


LINK_COLUMNS = (
    Column("link", "LINK", 4, right=True),
    Column("state", "STATE", 5),
    Column("version", "GEN", 3, right=True),
    Column("speed", "SPEED", 7, right=True),
    Column("remote", "TO", 8),
    Column("errors", "ERRORS", 18, stretch=True),
)


def nvlink_cell(nvlink: Nvlink) -> Cell:
    """ "18/18 240G/s": links that are up, and both directions together; "–" where there is nothing to know."""
    links = nvlink.links
    up = sum(link.active is True for link in links)
    states_known = any(link.active is not None for link in links)
    parts = [f"{up}/{len(links)}"] if states_known else []
    rate = rate_of(nvlink.rx_bytes_per_s, nvlink.tx_bytes_per_s)
    if rate is not None:
        parts.append(decimal_rate(rate))
    if not parts:
        return Cell(UNKNOWN)
    return Cell(" ".join(parts), "crit" if states_known and any(link.active is False for link in links) else "")


def rate_of(rx: float | None, tx: float | None) -> float | None:
    """Both directions together; None when neither is known."""
    known_ones = [one for one in (rx, tx) if one is not None and known(one)]
    return sum(known_ones) if known_ones else None


def decimal_rate(bytes_per_s: float | None) -> str:
    """As link speeds are given, in powers of 1000: 26.6G/s."""
    text = count(bytes_per_s)
    return text if text == UNKNOWN else f"{text}/s"


def link_row(link: NvlinkLink, grown: Mapping[str, int]) -> Row:
    """One row of LINK_COLUMNS; ``grown``: by how much each counter grew since it is watched."""
    state, style = {True: ("up", ""), False: ("DOWN", "crit")}.get(link.active, (UNKNOWN, ""))  # type: ignore[arg-type]
    cells = (
        Cell(str(link.index)),
        Cell(state, style),
        Cell(number(link.version)),
        Cell(decimal_rate(link.speed_bytes_per_s)),
        Cell(link.remote or UNKNOWN),
        errors_cell(link.errors, grown),
    )
    return Row(str(link.index), cells)


def errors_cell(errors: Mapping[str, int], grown: Mapping[str, int]) -> Cell:
    """ "replay 12 (+3)": counters that are not 0, with their growth; "none", or "–" where no counter is known."""
    if not errors:
        return Cell(UNKNOWN)
    counted = {name: value for name, value in errors.items() if value}
    if not counted:
        return Cell("none", "dim")
    parts = [f"{name} {count(value)}{growth(grown.get(name, 0))}" for name, value in counted.items()]
    return Cell(", ".join(parts), "warn" if any(grown.get(name) for name in counted) else "")


def growth(grown: int | None) -> str:
    """ " (+3)"; "" of what has not grown."""
    return f" (+{count(grown)})" if grown else ""


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
        text += f"; {gpu_reset(gpu.index).action}"
    return Cell(text, "warn" if gpu.error_code == "no_permission" else "crit")


Value = float | str | None

_OF_GPU: dict[str, Callable[[GpuSample], Value]] = {
    "gpu": lambda gpu: gpu.index,
    "busy": lambda gpu: gpu.busy,
    "trend": lambda gpu: gpu.busy,
    "sm": lambda gpu: gpu.sm_active,
    "tensor": lambda gpu: gpu.tensor_active,
    "dram": lambda gpu: gpu.dram_active,
    "clock": lambda gpu: gpu.sm_clock_mhz,
    "temperature": lambda gpu: gpu.temperature_c,
    "hbm": lambda gpu: gpu.memory_temperature_c,
    "margin": lambda gpu: gpu.temperature_margin_c,
    "power": lambda gpu: gpu.power_w,
    "memory": lambda gpu: gpu.memory_used_bytes,
    "throttle": lambda gpu: -worst_share(gpu),  # words sort upwards, and the worst is to come first
    "flags": lambda gpu: -float(len(flags(gpu))),
    "nvlink": lambda gpu: rate_of(gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s),
    "pcie": lambda gpu: rate_of(gpu.pcie.rx_bytes_per_s, gpu.pcie.tx_bytes_per_s),
    "name": lambda gpu: gpu.name,
    "bus": lambda gpu: gpu.pci_bus_id,
}
_OF_RANK: dict[str, Callable[[RankSample], Value]] = {
    "rank": lambda rank: rank.rank,
    "pid": lambda rank: rank.pid,
    "user": lambda rank: rank.user or None,
    "state": lambda rank: rank.state or None,
    "command": lambda rank: rank.command or None,
}


def gpu_value(column: str, gpu: GpuSample, ranks: Sequence[RankSample]) -> Value:
    """None: unknown, or a GPU that does not answer. An instance is sorted with its GPU."""
    if gpu.state != "ok" and column != "gpu":
        return None
    if column in _OF_RANK:
        if ranks:
            return _OF_RANK[column](ranks[0])
        return gpu.processes[0].pid if column == "pid" and gpu.processes else None
    value = _OF_GPU[column](gpu) if column in _OF_GPU else None
    return value if isinstance(value, str) or known(value) else None
