"""The devices of a probe as rows of a table: how far each is, what was measured, and in which order. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mltop.probes.investigate.probing.wanted import DeviceProgress
from mltop.probes.model.probe import CopiesResult, DeviceResult, MatmulResult, MemoryResult, Phase
from mltop.probes.model.units import (
    UNKNOWN,
    bandwidth,
    celsius,
    flops,
    number,
    of,
    percent,
    size_text,
    watts,
    work_done,
)
from mltop.tui.render.cells import Cell, Column, Row, Value, row_of
from mltop.tui.render.glyphs import bar, sparkline
from mltop.tui.render.gpus.table import pcie_text
from mltop.tui.render.gpus.throttle import ALARMING, BADGES, throttle_cell
from mltop.tui.render.probes.comparison import NOT_KNOWN, Against, main_value
from mltop.tui.render.units import heights, middle

STAGE_WIDTH = 14
GAUGE_WIDTH = 20


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

    @property
    def compared(self) -> Against | None:
        return None if self.result is None else self.against(self.result)

    @property
    def phase(self) -> Phase | None:
        return None if self.result is None else load_phase(self.result)


def columns_of(table: Sequence[Column], first_width: int, first_title: str) -> tuple[Column, ...]:
    return (Column.of("gpu", first_title, first_width, "name", right=first_title == "GPU"), *table)


def device_row(columns: Sequence[Column], line: Line, key: str) -> Row:
    """One row of ``columns_of``; while there is no result, how far it is or why there is none."""
    if line.result is None:
        return Row(key, (Cell(line.name), *([Cell("")] * (len(columns) - 1))), banner_of(line))
    return row_of(columns, line, key)


def banner_of(line: Line) -> Cell:
    """ "sustained      ━━━━━━━━━━━━──────── 62%", or why it is not measured."""
    progress = line.progress
    if progress.problem:
        word = "left out" if line.refused else "failed"
        return Cell(f"{word}: {progress.problem}", "warn" if line.refused else "crit")
    if progress.result is not None:
        return Cell("measured", "ok")
    if not progress.stage:
        return Cell("waits", "dim")
    gauge = "" if progress.fraction is None else f" {bar(progress.fraction, GAUGE_WIDTH)} {percent(progress.fraction)}"
    return Cell(f"{progress.stage:<{STAGE_WIDTH}}{gauge}", "accent")


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


def _of(
    key: str,
    title: str,
    width: int,
    show: Callable[[Any], Cell | str],
    value: Callable[[Any], Value] | None = None,
    **layout: Any,
) -> Column:
    """A column about a result of the table's kind; without ``value`` it is sorted by the words of its cell."""

    def words(result: DeviceResult) -> Value:
        cell = show(result)
        return (cell if isinstance(cell, str) else cell.text) or None

    return Column.of(key, title, width, "result", show, value=lambda line: (value or words)(line.result), **layout)


def _figure(key: str, title: str, width: int, name: str, show: Callable[[Any], str], **layout: Any) -> Column:
    """A column about the field ``name`` of the result."""
    return Column.of(key, title, width, f"result.{name}", show, right=True, **layout)


def _of_phase(
    key: str, title: str, width: int, name: str, show: Callable[[Phase], Cell | str], **layout: Any
) -> Column:
    """A column about the GPU under load, sorted by the field ``name`` of the phase."""

    def cell(line: Line) -> Cell | str:
        return UNKNOWN if line.phase is None else show(line.phase)

    def value(line: Line) -> Value:
        return getattr(line.phase, name, None)

    return Column(key, title, width, right=True, optional=True, cell=cell, value=value, **layout)


# Columns that all kinds share.


def _against(line: Line) -> Cell:
    return NOT_KNOWN if line.compared is None else line.compared.cell


def _against_value(line: Line) -> Value:
    return None if line.compared is None else line.compared.share


def _history(line: Line) -> Cell:
    """Earlier main values and this one."""
    if line.result is None:
        return Cell("")
    now = main_value(line.result)
    values = [*line.past(line.result), *([] if now is None else [now])][-HISTORY_WIDTH:]
    return Cell(sparkline(heights(values), HISTORY_WIDTH) if len(values) > 1 else "", "dim")


def _power(phase: Phase) -> Cell:
    """ "498/500W!": the limit was lowered below the card's own."""
    limit, default = phase.power_limit_w, phase.power_limit_default_w
    lowered = limit is not None and default is not None and limit < default - 1
    return Cell(of(watts(phase.power_w), watts(limit)) + "!" * lowered, "warn" if lowered else "")


def _throttle(result: DeviceResult, brief: bool = False) -> Cell:
    """``brief``: the worst alone, and for how much of the time only where that fits."""
    phase = load_phase(result)
    if phase is None or (not phase.throttle_share and phase.sm_clock_mhz is None):
        return Cell(UNKNOWN)
    alarming = {reason: share for reason, share in phase.throttle_share.items() if reason in ALARMING and share > 0.01}
    shares = alarming or phase.throttle_share
    worst = next((reason for reason in BADGES if reason in shares), "")
    if not brief or not worst:
        return throttle_cell([], shares)
    cell = throttle_cell([], {worst: shares[worst]})
    return cell if len(cell.text) <= BRIEF_WIDTH else throttle_cell([worst])


BRIEF_WIDTH = 11  # cells of what throttles, on narrow terminals


def _throttle_value(result: DeviceResult) -> Value:
    phase = load_phase(result)
    shares = {name: share for name, share in phase.throttle_share.items() if name != "gpu_idle"} if phase else {}
    return max(shares.values(), default=None if phase is None else 0.0)


def _note(result: DeviceResult) -> Cell:
    """What is worth knowing of how it was measured."""
    notes = [result.code_path] if isinstance(result, MatmulResult) and result.code_path else []
    notes += ["still heating"] if isinstance(result, MatmulResult) and result.still_heating else []
    notes += [f"{len(result.gaps)} not known"] if result.gaps else []
    return Cell(", ".join(notes), "dim")


def _model(result: DeviceResult) -> str:
    return (result.name or UNKNOWN).removeprefix("NVIDIA ")


def _clock(phase: Phase) -> str:
    return of(number(phase.sm_clock_mhz), number(phase.sm_clock_max_mhz))


_AGAINST = Column("against", "AGAINST", 10, right=True, priority=1, cell=_against, value=_against_value)
_THROTTLE = _of("throttle", "THROTTLE", 19, _throttle, _throttle_value, priority=4, optional=True)
_ON_LOAD = (
    _of_phase("clock", "MHZ/MAX", 9, "sm_clock_mhz", _clock, priority=2),
    _of_phase("power", "PWR/LIM", 9, "power_w", _power, priority=3),
    _of_phase("temperature", "TEMP", 4, "temperature_c", lambda phase: celsius(phase.temperature_c), priority=6),
    _THROTTLE,
)
_LAST = (
    Column("history", "HISTORY", HISTORY_WIDTH, True, 8, optional=True, cell=_history, value=_against_value),
    _of("note", "NOTE", 14, _note, stretch=True, most=40, priority=9, optional=True),
    _of("name", "MODEL", 24, _model, priority=12),
)


# matmul.


def _efficiency(result: MatmulResult) -> str:
    return of(percent(result.burst_efficiency), percent(result.sustained_efficiency))


def _efficiency_value(result: MatmulResult) -> Value:
    return result.sustained_efficiency or result.burst_efficiency


def _checked(result: MatmulResult, brief: bool = False) -> Cell:
    """Whether every GEMM had the bits of the first; ``brief``: in a few letters, "0 in 3.1P"."""
    wrong, checked = result.corrupt_iterations, result.checked_iterations
    if wrong:
        return Cell(f"{wrong} of {checked}!" if brief else f"{wrong} WRONG of {checked}", "crit")
    if result.upload_intact is False:
        return Cell("UPLOAD!" if brief else "UPLOAD DAMAGED", "crit")
    if not checked:
        return NOT_KNOWN
    work = work_done(result.checked_pflop)
    return Cell(f"0 in {work.removesuffix('FLOP').replace(' ', '')}" if brief else f"no error in {work}")


def _wrong_value(result: MatmulResult) -> Value:
    return float(result.corrupt_iterations) if result.checked_iterations else None


MATMUL = (
    _figure("burst", "BURST", 5, "burst_tflops", flops),
    _figure("sustained", "HELD", 5, "sustained_tflops", flops),
    _of("efficiency", "EFF", 6, _efficiency, _efficiency_value, right=True, priority=5, optional=True),
    _AGAINST,
    *_ON_LOAD,
    _of("checked", "CHECKED", 22, _checked, _wrong_value),
    *_LAST,
    _of("shape", "SHAPE", 17, lambda result: Cell(shape_text(result.shape) or UNKNOWN, "dim"), priority=13),
    _figure("best", "BEST", 5, "burst_best_tflops", flops, priority=14),
    _figure("low", "P5", 5, "burst_p5_tflops", flops, priority=15),
)


# memory and copies.


def _intact(result: MemoryResult | CopiesResult) -> Cell:
    return NOT_KNOWN if result.intact is None else Cell("intact") if result.intact else Cell("DAMAGED", "crit")


_INTACT = _of("intact", "DATA", 8, _intact)
_SIZE = _figure("size", "SIZE", 5, "size_bytes", size_text, priority=10)

MEMORY = (
    _figure("copy", "COPY", 8, "copy_bytes_per_s", bandwidth),
    _figure("best", "BEST", 8, "copy_best_bytes_per_s", bandwidth, priority=7),
    _AGAINST,
    _INTACT,
    *_ON_LOAD,
    _SIZE,
    *_LAST,
)


def _pcie(result: CopiesResult) -> str:
    phase = load_phase(result)
    return UNKNOWN if phase is None else pcie_text(phase.pcie_gen, phase.pcie_width)


def _slowest_peer(result: CopiesResult) -> float | None:
    return min((peer.bytes_per_s for peer in result.peers if peer.bytes_per_s is not None), default=None)


def _peers(result: CopiesResult) -> Cell:
    """The slowest way to another GPU of the node, and to which; "!": slow among this GPU's own."""
    slowest, usual = _slowest_peer(result), middle(peer.bytes_per_s for peer in result.peers)
    to = next((peer.to_gpu for peer in result.peers if peer.bytes_per_s == slowest), None)
    if slowest is None or usual is None:
        return Cell("")
    slow = slowest < SLOW_PEER * usual
    return Cell(f"{bandwidth(slowest)} to {to}{'!' * slow}", "warn" if slow else "")


COPIES = (
    _figure("to_device", "TO GPU", 8, "to_device_bytes_per_s", bandwidth),
    _figure("to_host", "TO HOST", 8, "to_host_bytes_per_s", bandwidth),
    _figure("to_device_together", "ALL TO GPU", 10, "to_device_together_bytes_per_s", bandwidth, priority=4),
    _figure("to_host_together", "TO HOST", 8, "to_host_together_bytes_per_s", bandwidth, priority=4),
    _AGAINST,
    _INTACT,
    _of("pcie", "PCIE", 8, _pcie, priority=3),
    _of("peers", "SLOWEST PEER", 13, _peers, _slowest_peer, right=True, priority=2, optional=True),
    _SIZE,
    *_LAST,
)

# While ranks start: nothing of their own is shown beside how far they are.
STAGES = (Column("stage", "STAGE", 20, stretch=True, value=lambda line: line.progress.stage),)
_BRIEF = {
    "checked": _of("checked", "WRONG", 9, partial(_checked, brief=True), _wrong_value, right=True),
    "throttle": _of(
        "throttle", "THROTTLE", BRIEF_WIDTH, partial(_throttle, brief=True), _throttle_value, priority=4, optional=True
    ),
}
TABLES: Mapping[str, Sequence[Column]] = {"matmul": MATMUL, "memory": MEMORY, "copies": COPIES, "stages": STAGES}
# On narrow terminals.
BRIEF = {kind: tuple(_BRIEF.get(column.key, column) for column in columns) for kind, columns in TABLES.items()}


def shape_text(shape: Sequence[int]) -> str:
    """ "8192x8192x8192"."""
    return "x".join(map(str, shape))
