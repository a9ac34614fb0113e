"""A GPU as a row of a table, the instances of one that is in MIG mode, and its NVLinks: one row for each column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from mltop.probes.judge.health.gpu.xid_catalog import gpu_reset
from mltop.probes.model import GpuProcess, GpuSample, MigInstance, Nvlink, NvlinkLink, Pcie, RankSample
from mltop.probes.model.gpu import SPINNING_BUSY, SPINNING_TENSOR
from mltop.probes.model.incident import UNKNOWN_DOING, Doing
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import (
    UNKNOWN,
    celsius,
    clock_time,
    count,
    known,
    number,
    of,
    percent,
    watts,
    whole_bytes_text,
)
from mltop.tui.render.cells import METER, Cell, Column, MeteredCell, Row, Value, row_of
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.gpus.throttle import ALARMING, gpu_throttle_cell, throttle_cell, worst_share
from mltop.tui.render.guarded import guarded
from mltop.tui.render.ranks import ORDER_OF_STATES
from mltop.tui.render.states import doing_cell, mark_cell
from mltop.tui.render.units import BYTES, CELSIUS, COUNT, MEGAHERTZ, SHARE, WATTS, Unit

__all__ = ["GPU_COLUMNS", "gpu_columns", "gpu_row", "mig_row", "ranks_text", "spins", "throttle_cell"]

GRAPH_WIDTHS = ((160, 52), (110, 21), (0, 12))  # from which width of the screen on: cells
COOL_C, HOT_C = 5.0, 1.0  # of headroom: with less it is warm, and too hot

SPINS_SM = 0.25  # of the SMs: more of them work in real kernels

# By GpuSample.error_code, where that says more than the state.
_BANNERS = {"needs_reset": "NEEDS RESET", "no_permission": "NO PERMISSION"}


class GpuLine(NamedTuple):
    """What a row of GPU_COLUMNS is about. ``ranks`` use the GPU; ``doing``: what it does, at the time ``now`` (unix s);
    ``mark``: the style of the gravest that is wrong with it; ``graph``, ``clocks``: its activity and its clock over
    time; ``shares``: of that time in which each reason held the clock down.
    """

    gpu: GpuSample
    ranks: Sequence[RankSample] = ()
    simulated: bool = False
    doing: Doing = UNKNOWN_DOING
    now: float = 0.0
    mark: str = ""
    graph: Cell = Cell("")
    clocks: Cell = Cell("")
    shares: Mapping[str, float] = MappingProxyType({})


def _gpu(
    key: str,
    title: str,
    width: int,
    name: str,
    unit: Unit = SHARE,
    *,
    cell: Callable[[GpuSample], Cell | str] | None = None,
    **layout: Any,
) -> Column:
    """A figure of the GPU itself: the field ``name`` of GpuSample, as ``unit`` shows it where there is no ``cell``."""
    if cell is not None:
        layout["cell"] = lambda line: cell(line.gpu)
    layout.setdefault("right", True)
    return Column.of(key, title, width, f"gpu.{name}", unit=unit, **layout)


def _rank(name: str, title: str, width: int, cell: Callable[[str], Cell | str] = str, **layout: Any) -> Column:
    """A column about the first rank that uses the GPU: its field ``name``; blank where no rank does."""
    get: Callable[[RankSample], str] = attrgetter(name)

    def show(line: GpuLine) -> Cell | str:
        return cell(get(line.ranks[0]) or UNKNOWN) if line.ranks else ""

    return Column(
        name, title, width, cell=show, value=lambda line: get(line.ranks[0]) if line.ranks else None, **layout
    )


def flags(gpu: GpuSample) -> list[tuple[str, str]]:
    """(text, style), the gravest first: "remap failed", "ecc 2", "remap!", "row 1", "corr 12k"."""
    ecc, remap, action = gpu.ecc, gpu.remap, gpu.recovery_action
    rows = (remap.uncorrected or 0) + (remap.corrected or 0)
    possible = (
        (remap.failed, "remap failed", "crit"),
        (ecc.sram_threshold_exceeded, "sram!", "crit"),
        (ecc.uncorrected_volatile, f"ecc {count(ecc.uncorrected_volatile)}", "crit"),
        (action not in (None, "none"), f"wants {(action or '').replace('_', ' ')}", "crit"),
        (remap.pending or remap.repair_pending or gpu.retired_pages_pending, "remap!", "warn"),
        (remap.banks.none, f"bank {count(remap.banks.none)}", "warn"),
        (rows, f"row {count(rows)}", ""),
        (gpu.retired_pages, f"page {count(gpu.retired_pages)}", ""),
        (ecc.corrected_volatile, f"corr {count(ecc.corrected_volatile)}", ""),
    )
    return [(text, style) for holds, text, style in possible if holds]


def flags_cell(gpu: GpuSample) -> Cell:
    """All flags in the style of the gravest; blank: none."""
    raised = flags(gpu)
    return Cell(" ".join(text for text, _ in raised), raised[0][1] if raised else "")


def nvlink_cell(nvlink: Nvlink) -> Cell:
    """ "240G/s", both directions together; "17/18" where a link is down; "–" where there is nothing to know."""
    rate = rate_of(nvlink)
    if any(link.active is False for link in nvlink.links):
        return Cell(f"{links_up(nvlink)} up", "crit")
    return Cell(decimal_rate(rate) if rate is not None else links_up(nvlink))


def links_up(nvlink: Nvlink) -> str:
    """ "18/18"; "–" where no link says."""
    if all(link.active is None for link in nvlink.links):
        return UNKNOWN
    return f"{sum(link.active is True for link in nvlink.links)}/{len(nvlink.links)}"


def rate_of(link: Nvlink | Pcie) -> float | None:
    """Both directions together; None when neither is known."""
    rates = [rate for rate in (link.rx_bytes_per_s, link.tx_bytes_per_s) if rate is not None and known(rate)]
    return sum(rates) if rates else None


def decimal_rate(bytes_per_s: float | None) -> str:
    """A rate in powers of 1000, as link speeds are given: 26.6G/s."""
    return f"{count(bytes_per_s)}/s" if bytes_per_s is not None and known(bytes_per_s) else UNKNOWN


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


class NvlinkLine(NamedTuple):
    """What a row of LINK_COLUMNS is about. ``grown``: by how much each counter grew since it was first looked at."""

    link: NvlinkLink
    grown: Mapping[str, int]


def _state(line: NvlinkLine) -> Cell:
    active = line.link.active
    return Cell(UNKNOWN) if active is None else Cell("up") if active else Cell("DOWN", "crit")


LINK_COLUMNS = (
    Column("link", "LINK", 4, right=True, cell=lambda line: str(line.link.index)),
    Column("state", "STATE", 5, cell=_state),
    Column("version", "GEN", 3, right=True, cell=lambda line: number(line.link.version)),
    Column("speed", "SPEED", 7, right=True, cell=lambda line: decimal_rate(line.link.speed_bytes_per_s)),
    Column("remote", "TO", 8, cell=lambda line: line.link.remote or UNKNOWN),
    Column("errors", "ERRORS", 18, stretch=True, cell=lambda line: errors_cell(line.link.errors, line.grown)),
)


def link_row(link: NvlinkLink, grown: Mapping[str, int]) -> Row:
    """One row of LINK_COLUMNS."""
    return row_of(LINK_COLUMNS, NvlinkLine(link, grown), str(link.index))


def spins(gpu: GpuSample) -> bool:
    """Whether a kernel is resident all the time and hardly any SM works: what a hung collective looks like."""
    busy, sm, tensor = gpu.busy, gpu.sm_active, gpu.tensor_active
    if busy is None or sm is None or tensor is None:
        return False
    return busy >= SPINNING_BUSY and sm < SPINS_SM and tensor < SPINNING_TENSOR


def ranks_text(ranks: Sequence[RankSample]) -> str:
    """The ranks' numbers, "?" for a dead one whose number is lost."""
    return ",".join("?" if rank.rank is None else str(rank.rank) for rank in ranks)


def memory_text(device: GpuSample | MigInstance) -> str:
    """ "74/80G", "512M/80G": whole units, two digits where that is less than ten; "unified": the host's."""
    if isinstance(device, GpuSample) and device.unified_memory:
        return "unified"
    return of(whole_bytes_text(device.memory_used_bytes), whole_bytes_text(device.memory_total_bytes))


def pcie_cell(pcie: Pcie) -> Cell:
    """Generation, width and both directions together: "5x16 1.2G/s"; "!": narrower than it could be.

    Idle links run at a low generation: only the width tells something on its own.
    """
    link, rate = pcie_link(pcie, brief=True), rate_of(pcie)
    return link if rate is None or not tells_link(pcie) else Cell(f"{link.text} {decimal_rate(rate)}", link.style)


def tells_link(pcie: Pcie) -> bool:
    return pcie.gen is not None or pcie.width is not None


def pcie_link(pcie: Pcie, brief: bool = False) -> Cell:
    """ "Gen5 x16"; "Gen5 x8!" where it is narrower than it could be; ``brief``: as ``pcie_text``."""
    narrow = pcie.width is not None and pcie.width_max is not None and pcie.width < pcie.width_max
    return Cell(pcie_text(pcie.gen, pcie.width, brief) + "!" * narrow, "warn" if narrow else "")


def pcie_text(gen: int | None, width: int | None, brief: bool = False) -> str:
    """ "Gen5 x16", ``brief`` "5x16"; "–" where neither is known."""
    if gen is None and width is None:
        return UNKNOWN
    return f"{number(gen)}x{number(width)}" if brief else f"Gen{number(gen)} x{number(width)}"


def _heat(gpu: GpuSample) -> Cell:
    """Coloured by headroom, or when the GPU itself says that it is too hot."""
    text = celsius(gpu.temperature_c)
    reasons = gpu.throttle_reasons or []
    margin = gpu.temperature_margin_c
    if "hw_thermal" in reasons or (margin is not None and margin < HOT_C):
        return Cell(text, "crit")
    warm = margin is not None and margin < COOL_C
    return Cell(text, "warn" if warm or "sw_thermal" in reasons else "")


def _memory_heat(gpu: GpuSample) -> Cell:
    now, most = gpu.memory_temperature_c, gpu.memory_temperature_max_c
    too_hot = now is not None and most is not None and now >= most
    return Cell(celsius(now), "warn" if too_hot else "")


def _pids(line: GpuLine) -> Cell:
    """Who is on this GPU: its ranks, or else whatever process holds it."""
    return Cell(_first_and_more(line.ranks)) if line.ranks else _processes_cell(line.gpu.processes)


def _processes_cell(processes: Sequence[GpuProcess] | None) -> Cell:
    return Cell(UNKNOWN) if processes is None else Cell(_first_and_more(processes), "dim")


def _first_pid(line: GpuLine) -> int | None:
    owners = line.ranks or line.gpu.processes
    return owners[0].pid if owners else None


def _clock(gpu: GpuSample) -> Cell:
    """In GHz; coloured where it is held down."""
    if gpu.sm_clock_mhz is None or not known(gpu.sm_clock_mhz):
        return Cell(UNKNOWN)
    held = any(reason in ALARMING for reason in gpu.throttle_reasons or ())
    return Cell(f"{gpu.sm_clock_mhz / 1000:.2f}", "warn" if held else "")


def _least_held(line: GpuLine) -> float:
    return -max(line.shares.get(reason, 0.0) for reason in ALARMING)


def _doing(line: GpuLine) -> Cell:
    return doing_cell(line.doing, line.now)


def _gravity(line: GpuLine) -> int:
    return ORDER_OF_STATES.index(line.doing.state)


def _worst_held(line: GpuLine) -> Cell:
    """What held the clock down worst in the time of the graphs: "too hot 33%"."""
    worst = next((reason for reason in ALARMING if line.shares.get(reason)), None)
    return Cell("") if worst is None else throttle_cell([worst], {worst: line.shares[worst]})


def _power(gpu: GpuSample) -> Cell:
    """Coloured while the cap lowers the clock; the limit is dim."""
    text = of(watts(gpu.power_w), watts(gpu.power_limit_w))
    drawn, slash, limit = text.partition("/")
    capped = "sw_power_cap" in (gpu.throttle_reasons or ()) and is_below(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)
    parts = Cell(drawn, "warn" if capped else ""), Cell(slash + limit, "dim")
    return MeteredCell(text, "", parts, _share(gpu.power_w, gpu.power_limit_w))


def _memory(gpu: GpuSample) -> Cell:
    text = memory_text(gpu)
    used = None if gpu.unified_memory else gpu.memory_used_bytes
    return MeteredCell(text, "", (Cell(text),), _share(used, gpu.memory_total_bytes))


def _share(value: float | None, most: float | None) -> float | None:
    return value / most if value is not None and most else None


def is_below(now: float | None, most: float | None) -> bool:
    return now is not None and most is not None and now < most


def _name(line: GpuLine) -> str:
    name = (line.gpu.name or UNKNOWN).removeprefix("NVIDIA ")
    return f"SIMULATED {name}" if line.simulated else name


def _first_and_more(owners: Sequence[RankSample | GpuProcess]) -> str:
    """The first one's pid, and how many others there are: "8120+3"; "" of none."""
    more = f"+{len(owners) - 1}" if len(owners) > 1 else ""
    return f"{owners[0].pid}{more}" if owners else ""


def _banner(gpu: GpuSample, ranks: Sequence[RankSample]) -> Cell:
    """The sentence of a GPU that does not answer: "LOST since 12:41:07, rank 3 pid 4711 - GPU is lost". Whose it was
    stands first: the reason may be longer than the screen is wide.
    """
    text = _BANNERS.get(gpu.error_code, gpu.state.upper())
    if gpu.last_seen_at is not None:
        text += f" since {clock_time(gpu.last_seen_at)}"
    if ranks:
        text += f", rank {ranks_text(ranks)} pid {_first_and_more(ranks)}"
    elif gpu.processes:
        text += f", held by pid {_first_and_more(gpu.processes)}"
    text += f" {GLYPHS.dash} {gpu.error or 'no reason given by NVML'}"
    if gpu.error_code == "needs_reset":
        text += f"; {gpu_reset(gpu.index).action}"
    return Cell(text, "warn" if gpu.error_code == "no_permission" else "crit")


_GRAPH: dict[str, Any] = {"priority": 3, "stretch": True, "most": GRAPH_WIDTHS[0][1]}
_USED = {"field": "mem_used", "meaning": "memory in use"}
_THROTTLE: dict[str, Any] = {"stretch": True, "most": 20, "priority": 8}
_RATE: dict[str, Any] = {"right": True, "optional": True}
STATE_WIDTHS = (9, 13)

_of = Column.of
GPU_COLUMNS = (
    Column("mark", "", 1, cell=lambda line: mark_cell(line.mark), gap=0),
    _gpu("gpu", "GPU", 3, "index", COUNT, field="gpu", meaning="the GPU's index"),
    _gpu("sm", "SM", 4, "sm_active", field="sm", meaning="SMs that were active"),
    _gpu("busy", "BUSY", 4, "busy", priority=9, field="busy", meaning="NVML's GPU-Util"),
    Column("graph", "last 10 min", GRAPH_WIDTHS[-1][1], cell=lambda line: line.graph, **_GRAPH),
    _of("clocks", "SM clock, 10 min", 16, "gpu.sm_clock_mhz", cell=lambda of: of.clocks, stretch=True, extra=True),
    # Words sort upwards, and the worst is to come first.
    Column("held", "HELD, 10 MIN", 15, cell=_worst_held, value=_least_held, extra=True),
    _gpu("tensor", "TC", 4, "tensor_active", priority=4, field="tensor", meaning="tensor cores active"),
    _gpu("dram", "DRAM", 4, "dram_active", priority=5, field="dram", meaning="memory interface active"),
    _gpu("clock", "GHZ", 4, "sm_clock_mhz", MEGAHERTZ, cell=_clock, priority=6, field="mhz", meaning="SM clock"),
    _gpu("power", "POWER", 8, "power_w", WATTS, cell=_power, priority=1, field="power", meaning="what it draws"),
    _gpu("temperature", "TEMP", 4, "temperature_c", CELSIUS, cell=_heat, field="temp", meaning="temperature"),
    _gpu("hbm", "HBM", 4, "memory_temperature_c", CELSIUS, priority=12, cell=_memory_heat, optional=True),
    _gpu("margin", "HEADROOM", 8, "temperature_margin_c", CELSIUS, priority=13, optional=True),
    _gpu("memory", "MEMORY", 8, "memory_used_bytes", BYTES, cell=_memory, priority=2, **_USED),
    _of("nvlink", "NVLINK", 8, "gpu.nvlink", nvlink_cell, value=lambda of: rate_of(of.gpu.nvlink), priority=7, **_RATE),
    _of("pcie", "PCIE", 11, "gpu.pcie", pcie_cell, value=lambda line: rate_of(line.gpu.pcie), priority=11, **_RATE),
    _of(
        "throttle", "THROTTLED BY", 12, "gpu", gpu_throttle_cell, value=lambda line: -worst_share(line.gpu), **_THROTTLE
    ),
    _of("flags", "FLAGS", 16, "gpu", flags_cell, value=lambda line: -float(len(flags(line.gpu))), optional=True),
    _of("rank", "RANK", 4, "ranks", ranks_text, right=True, value=lambda of: of.ranks[0].rank if of.ranks else None),
    Column("state", "STATE", STATE_WIDTHS[0], cell=_doing, value=_gravity, stretch=True, most=14),
    Column("pid", "PID", 7, right=True, priority=10, cell=_pids, value=_first_pid),
    _rank("user", "USER", 8, priority=14),
    _of("name", "MODEL", 24, "gpu.name", cell=_name, priority=16, field="model", meaning="its product name"),
    _of("bus", "BUS ID", 12, "gpu.pci_bus_id", lambda text: (text or UNKNOWN).removeprefix("00000000:"), priority=17),
    _rank("command", "COMMAND", 24, priority=15, stretch=True),
)
OVER_TIME = ("gpu", "clocks", "clock", "held", "graph", "sm")  # what is shown where time matters
_BY_KEY = {column.key: column for column in GPU_COLUMNS}


def gpu_row(line: GpuLine, *, node: str = "", columns: Sequence[Column] = GPU_COLUMNS) -> Row:
    """One row of GPU_COLUMNS, or of some of them.

    The key is the GPU's index, or "node/index" when ``node`` is given.
    """
    key = f"{node}/{line.gpu.index}" if node else str(line.gpu.index)
    banner = None if line.gpu.state == "ok" else _banner(line.gpu, line.ranks)
    return row_of(columns, line, key, banner)


def free_row(gpus: Sequence[GpuSample]) -> Row:
    """One row for several that nobody uses: ``4-7  idle, no process; 0% SM, 66-72 W, 34C``."""
    which = str(Ranges.of([gpu.index for gpu in gpus]))
    sm = _range((None if gpu.sm_active is None else 100 * gpu.sm_active for gpu in gpus), "% SM")
    power = _range((gpu.power_w for gpu in gpus), "W")
    heat = _range((gpu.temperature_c for gpu in gpus), "C")
    figures = ", ".join(filter(None, (sm, power, heat)))
    text = "idle, no process" + (f"; {figures}" if figures else "")
    place = _BY_KEY["gpu"].width
    if len(which) > place:
        which, text = "", f"{which}  {text}"
    cells = [Cell(which, "dim") if column.key == "gpu" else Cell("") for column in GPU_COLUMNS]
    return Row(str(gpus[0].index), tuple(cells), Cell(text, "dim"))


def _range(values: Iterable[float | None], unit: str) -> str:
    """ "66-72W", or "34C" when all are alike; "" when none is known."""
    numbers = sorted(round(value) for value in values if value is not None and known(value))
    if not numbers:
        return ""
    return f"{numbers[0]}{unit}" if numbers[0] == numbers[-1] else f"{numbers[0]}-{numbers[-1]}{unit}"


def mig_row(gpu: GpuSample, instance: MigInstance) -> Row:
    """An instance below its GPU: its own memory, activity and processes; clocks and heat are the whole GPU's."""
    processes = gpu.processes and [one for one in gpu.processes if one.gpu_instance == instance.gpu_instance]
    own = {
        "gpu": Cell(f"{'`' if GLYPHS.ascii_only else '└'}{instance.index}", "dim"),
        "sm": Cell(percent(instance.sm_active)),
        "busy": Cell("MIG", "dim"),
        "tensor": Cell(percent(instance.tensor_active)),
        "dram": Cell(percent(instance.dram_active)),
        "memory": Cell(memory_text(instance)),
        "state": Cell(instance.name or UNKNOWN, "dim"),
        "pid": _processes_cell(processes),
    }
    cells = tuple([own.get(column.key, Cell("")) for column in GPU_COLUMNS])
    return Row(f"{gpu.index}.{instance.index}", cells)


def gpu_value(column: str, line: GpuLine) -> Value:
    """The value that a row is sorted by. None: unknown, or a GPU that does not answer. Instances go with their GPU."""
    answers = line.gpu.state == "ok" or column == "gpu"
    return _BY_KEY[column].sorts_by(line) if answers else None


def gpu_columns(gpus: Sequence[GpuSample], width: int = 80) -> tuple[Column, ...]:
    """GPU_COLUMNS for these GPUs, in ``width`` cells: a wide screen has a wide graph before it has more columns.

    Where only GPU-Util is known of what they do, it takes the place of SM activity. Flags that are no alarm (a row
    of memory that was repaired long ago) take no room from what moves.
    """
    graph = next(cells for least, cells in GRAPH_WIDTHS if width >= least)
    is_wide = width >= GRAPH_WIDTHS[1][0]
    state, more = STATE_WIDTHS[is_wide], (METER + 1) * is_wide  # for meters of power and memory
    changed = {"graph": replace(_BY_KEY["graph"], width=graph), "state": replace(_BY_KEY["state"], width=state)}
    changed |= {key: replace(_BY_KEY[key], width=_BY_KEY[key].width + more) for key in ("power", "memory")}
    activity = [gpu.sm_active for gpu in gpus]
    activity += [instance.sm_active for gpu in gpus for instance in gpu.mig_instances]
    if all(value is None for value in activity):
        changed |= {key: replace(_BY_KEY[key], priority=18) for key in ("sm", "tensor", "dram")}
        changed["busy"] = replace(_BY_KEY["busy"], priority=0)
        changed["graph"] = replace(changed["graph"], title="busy, 10 min")
    none: list[tuple[str, str]] = []
    if not any(style for gpu in gpus for _, style in guarded("a GPU's flags", partial(flags, gpu), none)):
        changed["flags"] = replace(_BY_KEY["flags"], priority=12, width=8)
    return tuple(changed.get(column.key, column) for column in GPU_COLUMNS)
