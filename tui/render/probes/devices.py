"""The devices of a probe as rows of a table: how far each is, its result, and in which order. Pure functions.

What was measured on each device, column by column: matmul, memory, copies. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mltop.probes.investigate.probing.wanted import DeviceProgress
from mltop.probes.model.probe import CopiesResult, DeviceResult, MatmulResult, MemoryResult, Phase
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.glyphs import bar, sparkline
from mltop.tui.render.gpus.throttle import ALARMING, throttle_cell
from mltop.tui.render.probes.comparison import NOT_KNOWN, Against, main_value
from mltop.tui.render.probes.summary import nameless
from mltop.tui.render.units import (
    UNKNOWN,
    bandwidth,
    celsius,
    flops,
    heights,
    known,
    middle,
    number,
    of,
    percent,
    size_text,
    watts,
    work_done,
)

STAGE_WIDTH = 14
GAUGE_WIDTH = 20
SortValue = float | str | None


@dataclass(frozen=True)
class Line:
    """One device: how far it is, its result once there is one, and what that is compared with.

    ``name``: what stands in the first column; ``past``: its own earlier main values, the oldest first.
    ``refused``: it was left out on purpose.
    """

    progress: DeviceProgress
    name: str
    result: DeviceResult | None = None
    against: Callable[[DeviceResult], Against | None] = lambda _: None
    past: Callable[[DeviceResult], Sequence[float]] = lambda _: ()
    refused: bool = False


@dataclass(frozen=True)
class Shown:
    """A column, its cell, and what it is sorted by. Both get a result of the table's kind."""

    column: Column
    cell: Callable[[Line, Any], Cell]
    value: Callable[[Line, Any], SortValue]


def columns_of(shown: Sequence[Shown], first_width: int, first_title: str) -> tuple[Column, ...]:
    return (Column("gpu", first_title, first_width, right=first_title == "GPU"), *(one.column for one in shown))


def device_row(shown: Sequence[Shown], line: Line, key: str) -> Row:
    """One row of ``columns_of(shown)``; while there is no result, how far it is or why there is none."""
    if line.result is None:
        cells = (Cell(line.name), *([Cell("")] * len(shown)))
        return Row(key, cells, banner_of(line))
    return Row(key, (Cell(line.name), *(one.cell(line, line.result) for one in shown)))


def banner_of(line: Line) -> Cell:
    """ "sustained      ━━━━━━━━━━━━──────── 62%", or why it is not measured."""
    progress = line.progress
    if progress.problem:
        word = "left out" if line.refused else "failed"
        return Cell(f"{word}: {nameless(progress.problem, progress.gpu)}", "warn" if line.refused else "crit")
    if progress.result is not None:
        return Cell("measured", "ok")
    if not progress.stage:
        return Cell("waits", "dim")
    gauge = "" if progress.fraction is None else f" {bar(progress.fraction, GAUGE_WIDTH)} {percent(progress.fraction)}"
    return Cell(f"{progress.stage:<{STAGE_WIDTH}}{gauge}", "accent")


def value_of(shown: Mapping[str, Shown], column: str, line: Line) -> SortValue:
    """What a row is sorted by; None: unknown."""
    if line.result is None or column not in shown:
        return None
    value = shown[column].value(line, line.result)
    return value if isinstance(value, str) or known(value) else None


def slowest_first(line: Line) -> tuple[int, float]:
    """The order without a choice of the user: wrong results, failures, the slowest, those under way, those left out."""
    if line.result is None:
        return (4 if line.refused else 1, 0.0) if line.progress.problem else (3, 0.0)
    if is_wrong(line.result):
        return 0, 0.0
    value = main_value(line.result)
    return 2, value if value is not None else -1.0


def is_wrong(result: DeviceResult) -> bool:
    if isinstance(result, MatmulResult):
        return result.corrupt_iterations > 0 or result.upload_intact is False
    return isinstance(result, (MemoryResult, CopiesResult)) and result.intact is False


HISTORY_WIDTH = 10
SLOW_PEER = 0.85  # of the median of a GPU's ways to others


def load_phase(result: DeviceResult) -> Phase | None:
    """The phase that says most: of load without a pause, else the longest."""
    by_name = {phase.name: phase for phase in result.phases}
    return by_name.get("sustained") or max(result.phases, key=lambda phase: phase.seconds, default=None)


# Columns that all kinds share.


def _against(line: Line, result: DeviceResult) -> Cell:
    against = line.against(result)
    return NOT_KNOWN if against is None else against.cell


def _against_value(line: Line, result: DeviceResult) -> SortValue:
    against = line.against(result)
    return None if against is None else against.share


def _history(line: Line, result: DeviceResult) -> Cell:
    """Earlier main values and this one."""
    now = main_value(result)
    values = [*line.past(result), *([now] if now is not None else [])][-HISTORY_WIDTH:]
    return Cell(sparkline(heights(values), HISTORY_WIDTH) if len(values) > 1 else "", "dim")


def _of_phase(name: str) -> Callable[[Line, DeviceResult], SortValue]:
    def value(_: Line, result: DeviceResult) -> SortValue:
        phase = load_phase(result)
        found: float | None = getattr(phase, name) if phase is not None else None
        return found

    return value


def _clock(_: Line, result: DeviceResult) -> Cell:
    phase = load_phase(result)
    return Cell(UNKNOWN if phase is None else of(number(phase.sm_clock_mhz), number(phase.sm_clock_max_mhz)))


def _power(_: Line, result: DeviceResult) -> Cell:
    """ "498/500W!": the limit was lowered below the card's own."""
    phase = load_phase(result)
    if phase is None:
        return Cell(UNKNOWN)
    limit, default = phase.power_limit_w, phase.power_limit_default_w
    lowered = limit is not None and default is not None and limit < default - 1
    return Cell(of(watts(phase.power_w), watts(limit)) + "!" * lowered, "warn" if lowered else "")


def _temperature(_: Line, result: DeviceResult) -> Cell:
    phase = load_phase(result)
    return Cell(UNKNOWN if phase is None else celsius(phase.temperature_c))


def _throttle(_: Line, result: DeviceResult) -> Cell:
    phase = load_phase(result)
    if phase is None or (not phase.throttle_share and phase.sm_clock_mhz is None):
        return Cell(UNKNOWN)
    alarming = {reason: share for reason, share in phase.throttle_share.items() if reason in ALARMING and share > 0.01}
    return throttle_cell([], alarming or phase.throttle_share)


def _throttle_value(_: Line, result: DeviceResult) -> SortValue:
    phase = load_phase(result)
    shares = {name: share for name, share in phase.throttle_share.items() if name != "gpu_idle"} if phase else {}
    return max(shares.values(), default=None if phase is None else 0.0)


def _note(_: Line, result: DeviceResult) -> Cell:
    """What is worth knowing of how it was measured."""
    notes = [result.code_path] if isinstance(result, MatmulResult) and result.code_path else []
    notes += ["still heating"] if isinstance(result, MatmulResult) and result.still_heating else []
    notes += [f"{len(result.gaps)} not known"] if result.gaps else []
    return Cell(", ".join(notes), "dim")


_AGAINST = Shown(Column("against", "AGAINST", 10, right=True, priority=1), _against, _against_value)
_CLOCK = Shown(Column("clock", "MHZ/MAX", 9, right=True, priority=2, optional=True), _clock, _of_phase("sm_clock_mhz"))
_POWER = Shown(Column("power", "PWR/LIM", 9, right=True, priority=3, optional=True), _power, _of_phase("power_w"))
_TEMPERATURE = Shown(
    Column("temperature", "TEMP", 4, right=True, priority=6, optional=True), _temperature, _of_phase("temperature_c")
)
_THROTTLE = Shown(Column("throttle", "THROTTLE", 19, priority=4, optional=True), _throttle, _throttle_value)
_ON_LOAD = (_CLOCK, _POWER, _TEMPERATURE, _THROTTLE)
_LAST = (
    Shown(Column("history", "HISTORY", HISTORY_WIDTH, right=True, priority=8, optional=True), _history, _against_value),
    Shown(
        Column("note", "NOTE", 14, stretch=True, most=40, priority=9, optional=True),
        _note,
        lambda line, result: _note(line, result).text or None,
    ),
    Shown(Column("name", "MODEL", 24, priority=12), lambda _, r: Cell(_model(r)), lambda _, r: _model(r)),
)


def _model(result: DeviceResult) -> str:
    return (result.name or UNKNOWN).removeprefix("NVIDIA ")


# matmul.


def _efficiency(_: Line, result: MatmulResult) -> Cell:
    return Cell(of(percent(result.burst_efficiency), percent(result.sustained_efficiency)))


def _checked(_: Line, result: MatmulResult) -> Cell:
    """Whether every GEMM had the bits of the first."""
    if result.corrupt_iterations:
        return Cell(f"{result.corrupt_iterations} WRONG of {result.checked_iterations}", "crit")
    if result.upload_intact is False:
        return Cell("UPLOAD DAMAGED", "crit")
    if not result.checked_iterations:
        return NOT_KNOWN
    return Cell(f"no error in {work_done(result.checked_pflop)}")


def _wrong(line: Line, result: MatmulResult) -> Cell:
    """The same in a few letters: "0 in 3.1P"."""
    whole = _checked(line, result)
    if result.corrupt_iterations:
        return Cell(f"{result.corrupt_iterations} of {result.checked_iterations}!", whole.style)
    if whole.style or whole is NOT_KNOWN:
        return Cell("UPLOAD!", whole.style) if whole.style == "crit" else whole
    return Cell(f"0 in {work_done(result.checked_pflop).removesuffix('FLOP').replace(' ', '')}")


def _wrong_value(_: Line, result: MatmulResult) -> SortValue:
    return float(result.corrupt_iterations) if result.checked_iterations else None


def _shape(_: Line, result: MatmulResult) -> Cell:
    return Cell("x".join(map(str, result.shape)) or UNKNOWN, "dim")


MATMUL = (
    Shown(
        Column("burst", "BURST", 5, right=True), lambda _, r: Cell(flops(r.burst_tflops)), lambda _, r: r.burst_tflops
    ),
    Shown(
        Column("sustained", "HELD", 5, right=True),
        lambda _, r: Cell(flops(r.sustained_tflops)),
        lambda _, r: r.sustained_tflops,
    ),
    Shown(
        Column("efficiency", "EFF", 6, right=True, priority=5, optional=True),
        _efficiency,
        lambda _, r: r.sustained_efficiency or r.burst_efficiency,
    ),
    _AGAINST,
    *_ON_LOAD,
    Shown(Column("checked", "CHECKED", 22), _checked, _wrong_value),
    *_LAST,
    Shown(Column("shape", "SHAPE", 17, priority=13), _shape, lambda _, r: "x".join(map(str, r.shape)) or None),
    Shown(
        Column("best", "BEST", 5, right=True, priority=14),
        lambda _, r: Cell(flops(r.burst_best_tflops)),
        lambda _, r: r.burst_best_tflops,
    ),
    Shown(
        Column("low", "P5", 5, right=True, priority=15),
        lambda _, r: Cell(flops(r.burst_p5_tflops)),
        lambda _, r: r.burst_p5_tflops,
    ),
)


# memory and copies.


def _rate(key: str, title: str, field: str, width: int = 8, priority: int = 0) -> Shown:
    def value(_: Line, result: DeviceResult) -> SortValue:
        found: float | None = getattr(result, field)
        return found

    return Shown(
        Column(key, title, width, right=True, priority=priority),
        lambda _, result: Cell(bandwidth(getattr(result, field))),
        value,
    )


def _intact(_: Line, result: MemoryResult | CopiesResult) -> Cell:
    return NOT_KNOWN if result.intact is None else Cell("intact") if result.intact else Cell("DAMAGED", "crit")


_INTACT = Shown(Column("intact", "DATA", 8), _intact, lambda line, r: _intact(line, r).text)
_SIZE = Shown(
    Column("size", "SIZE", 5, right=True, priority=10),
    lambda _, r: Cell(size_text(r.size_bytes)),
    lambda _, r: r.size_bytes,
)

MEMORY = (
    _rate("copy", "COPY", "copy_bytes_per_s"),
    _rate("best", "BEST", "copy_best_bytes_per_s", priority=7),
    _AGAINST,
    _INTACT,
    *_ON_LOAD,
    _SIZE,
    *_LAST,
)


def _pcie(_: Line, result: CopiesResult) -> Cell:
    phase = load_phase(result)
    if phase is None or (phase.pcie_gen is None and phase.pcie_width is None):
        return Cell(UNKNOWN)
    return Cell(f"{number(phase.pcie_gen)}x{number(phase.pcie_width)}")


def _slowest_peer(_: Line, result: CopiesResult) -> SortValue:
    return min((one.bytes_per_s for one in result.peers if one.bytes_per_s is not None), default=None)


def _peers(line: Line, result: CopiesResult) -> Cell:
    """The slowest way to another GPU of the node, and to which; "!": slow among this GPU's own."""
    slowest, usual = _slowest_peer(line, result), middle(one.bytes_per_s for one in result.peers)
    to = next((one.to_gpu for one in result.peers if one.bytes_per_s == slowest), None)
    if not isinstance(slowest, float) or usual is None:
        return Cell("")
    slow = slowest < SLOW_PEER * usual
    return Cell(f"{bandwidth(slowest)} to {to}{'!' * slow}", "warn" if slow else "")


COPIES = (
    _rate("to_device", "TO GPU", "to_device_bytes_per_s"),
    _rate("to_host", "TO HOST", "to_host_bytes_per_s"),
    _rate("to_device_together", "ALL TO GPU", "to_device_together_bytes_per_s", 10, priority=4),
    _rate("to_host_together", "TO HOST", "to_host_together_bytes_per_s", priority=4),
    _AGAINST,
    _INTACT,
    Shown(Column("pcie", "PCIE", 5, priority=3), _pcie, lambda line, r: _pcie(line, r).text),
    Shown(Column("peers", "SLOWEST PEER", 13, right=True, priority=2, optional=True), _peers, _slowest_peer),
    _SIZE,
    *_LAST,
)

# While ranks start: nothing of their own is shown beside how far they are.
STAGES = (Shown(Column("stage", "STAGE", 20, stretch=True), lambda *_: Cell(""), lambda line, _: line.progress.stage),)
_BRIEF = {
    "checked": Shown(Column("checked", "WRONG", 9, right=True), _wrong, _wrong_value),
    "throttle": replace(_THROTTLE, column=replace(_THROTTLE.column, width=9)),
}
TABLES: Mapping[str, Sequence[Shown]] = {"matmul": MATMUL, "memory": MEMORY, "copies": COPIES, "stages": STAGES}
# On narrow terminals.
BRIEF = {kind: tuple(_BRIEF.get(one.column.key, one) for one in shown) for kind, shown in TABLES.items()}
