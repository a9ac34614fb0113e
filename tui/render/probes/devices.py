"""The devices of a probe as rows of a table: how far each is, what was measured, and in which order. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from mltop.probes.investigate.probing.wanted import DeviceProgress
from mltop.probes.judge.probes.compare import Comparison, against_past, kept_of, slower_than_peers
from mltop.probes.judge.probes.matmul import published
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import units
from mltop.probes.model.probe import CopiesResult, DeviceResult, MatmulResult, PastResult, Phase
from mltop.tui.render.cells import Cell, Column, Row, Value, row_of
from mltop.tui.render.glyphs import bar, sparkline
from mltop.tui.render.gpus.table import pcie_text
from mltop.tui.render.gpus.throttle import ALARMING, BADGES, throttle_cell
from mltop.tui.render.units import heights, middle

STAGE_WIDTH = 14
GAUGE_WIDTH = 20
MOST_FIRST = 40  # cells of the first column


# What a result is compared with: its own earlier ones, its peers of this run, or a published figure, in this order.

MUCH = 0.15  # slower than this is shown as gravely slow


@dataclass(frozen=True)
class Against:
    """A result beside others. ``share``: of what is usual there, 0.88 for 12 % less. ``of``: own | peers | table."""

    share: float
    of: str
    slow: bool = False

    @property
    def cell(self) -> Cell:
        style = "" if not self.slow else "crit" if self.share < 1 - MUCH else "warn"
        return Cell(f"{units.signed_percent(self.share - 1)} {self.of}", style)


NOT_KNOWN = Cell(units.UNKNOWN, "dim")


class Compared:
    """All results of one run. ``past``: by what it is of; what was not there before ``began_at`` (unix s) is left out.

    Each device is compared when it is first asked for: a table draws 50 of 4,096.
    """

    def __init__(
        self, results: Iterable[DeviceResult], past: Mapping[str, Sequence[PastResult]], began_at: float | None
    ) -> None:
        self._past = past
        self._began_at = began_at
        self._made: dict[tuple[str, str], Against | None] = {}
        self._peers: dict[tuple[str, str], Comparison] = {}
        valued = ((result, value) for result in results if (value := result.rate) is not None)
        # Only what is alike is compared.
        alike = grouped(valued, lambda pair: (type(pair[0]), pair[0].name, pair[0].kind, getattr(pair[0], "dtype", "")))
        for values in alike.values():
            self._peers |= slower_than_peers({(result.node, result.uuid): value for result, value in values})

    def of(self, result: DeviceResult) -> Against | None:
        """The comparison that says most; None while nothing is there to compare it with."""
        key = (result.node, result.uuid)
        if key not in self._made:
            self._made[key] = self._compare(result, self._peers.get(key))
        return self._made[key]

    def _compare(self, result: DeviceResult, peers: Comparison | None) -> Against | None:
        earlier, value, own = self.earlier(result), result.rate, None
        if earlier and value is not None:
            own = against_past(result.subject, earlier[0].key, value, result.versions, earlier)
        # A comparison that can tell slow from fast goes before one that cannot.
        for comparison, of in ((own, "own"), (peers, "peers")):
            if comparison is not None and comparison.slow is not None and comparison.share is not None:
                return Against(comparison.share, of, comparison.slow)
        figure = published(result) if isinstance(result, MatmulResult) else None
        shares = {
            "own": None if own is None else own.share,
            "table": None if figure is None else figure.share,
            "peers": peers.share if peers is not None and peers.count > 1 else None,
        }
        return next((Against(share, of) for of, share in shares.items() if share is not None), None)

    def earlier(self, result: DeviceResult) -> list[PastResult]:
        """Its own earlier main figures, the oldest first, whatever the versions were; none that this run has left."""
        key = next((key for _, key, kept in kept_of(result) if kept and kept == result.rate), "")
        own = self._past.get(result.subject, ()) if key else ()
        return [past for past in own if past.key == key and (self._began_at is None or past.at < self._began_at)]


@dataclass(frozen=True)
class Line:
    """One device: how far it is, and its result once there is one, which is compared with those in ``beside``.

    ``name``: what the first column shows. ``refused``: it was left out on purpose. ``at``: its place among all.
    """

    progress: DeviceProgress
    name: str
    beside: Compared | None = None
    refused: bool = False
    at: int = 0

    @property
    def result(self) -> DeviceResult | None:
        return self.progress.result

    @property
    def compared(self) -> Against | None:
        return self.beside.of(self.result) if self.beside is not None and self.result is not None else None

    @property
    def phase(self) -> Phase | None:
        return None if self.result is None else load_phase(self.result)


def done(result: DeviceResult) -> DeviceProgress:
    """The progress of a device that is known by its result alone."""
    return DeviceProgress(result.node, result.gpu, result.uuid, result.name, stage="done", fraction=1.0, result=result)


def columns_of(table: Sequence[Column], lines: Sequence[Line], title: str) -> tuple[Column, ...]:
    """The columns of a table behind that of the names, which is as wide as these lines need."""
    width = min(MOST_FIRST, max([len(title), *(len(line.name) for line in lines)]))
    name = Column.of("gpu", title, width, "name", right=title == "GPU", value=lambda line: float(line.at))
    return (name, *table)


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
    if not progress.stage:
        return Cell("waits", "dim")
    gauge = (
        ""
        if progress.fraction is None
        else f" {bar(progress.fraction, GAUGE_WIDTH)} {units.percent(progress.fraction)}"
    )
    return Cell(f"{progress.stage:<{STAGE_WIDTH}}{gauge}", "accent")


def slowest_first(line: Line) -> tuple[int, float]:
    """The order without a choice of the user: wrong results, failures, the slowest, those under way, those left out."""
    if line.result is None:
        return (4 if line.refused else 1, 0.0) if line.progress.problem else (3, 0.0)
    if line.result.is_wrong:
        return 0, 0.0
    return 2, line.result.rate if line.result.rate is not None else -1.0


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

    def of_line(line: Line) -> Value:
        return (value or words)(line.result) if line.result is not None else None

    return Column.of(key, title, width, "result", show, value=of_line, **layout)


def _figure(key: str, title: str, width: int, name: str, show: Callable[[Any], str], **layout: Any) -> Column:
    """A column about the field ``name`` of the result."""
    return _of(key, title, width, lambda result: show(getattr(result, name)), attrgetter(name), right=True, **layout)


def _of_phase(
    key: str, title: str, width: int, name: str, show: Callable[[Phase], Cell | str], **layout: Any
) -> Column:
    """A column about the GPU under load, sorted by the field ``name`` of the phase."""

    def cell(line: Line) -> Cell | str:
        return units.UNKNOWN if line.phase is None else show(line.phase)

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
    if line.result is None or line.beside is None:
        return Cell("")
    earlier = [past.value for past in line.beside.earlier(line.result)]
    values = [*earlier, *known([line.result.rate])][-HISTORY_WIDTH:]
    return Cell(sparkline(heights(values), HISTORY_WIDTH) if len(values) > 1 else "", "dim")


def _power(phase: Phase) -> Cell:
    """ "498/500W!": the limit was lowered below the card's own."""
    limit, default = phase.power_limit_w, phase.power_limit_default_w
    lowered = limit is not None and default is not None and limit < default - 1
    return Cell(units.of(units.watts(phase.power_w), units.watts(limit)) + "!" * lowered, "warn" if lowered else "")


def _throttle(result: DeviceResult, brief: bool = False) -> Cell:
    """``brief``: the worst alone, and for how much of the time only where that fits."""
    phase = load_phase(result)
    if phase is None or (not phase.throttle_share and phase.sm_clock_mhz is None):
        return Cell(units.UNKNOWN)
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


def _clock(phase: Phase) -> str:
    return units.of(units.number(phase.sm_clock_mhz), units.number(phase.sm_clock_max_mhz))


_AGAINST = Column("against", "AGAINST", 10, right=True, priority=1, cell=_against, value=_against_value)
_THROTTLE = _of("throttle", "THROTTLE", 19, _throttle, _throttle_value, priority=4, optional=True)
_ON_LOAD = (
    _of_phase("clock", "MHZ/MAX", 9, "sm_clock_mhz", _clock, priority=2),
    _of_phase("power", "PWR/LIM", 9, "power_w", _power, priority=3),
    _of_phase("temperature", "TEMP", 4, "temperature_c", lambda phase: units.celsius(phase.temperature_c), priority=6),
    _THROTTLE,
)
_LAST = (
    Column("history", "HISTORY", HISTORY_WIDTH, True, 8, optional=True, cell=_history, value=_against_value),
    _of("note", "NOTE", 14, _note, stretch=True, most=40, priority=9, optional=True),
    _of("name", "MODEL", 24, lambda result: (result.name or units.UNKNOWN).removeprefix("NVIDIA "), priority=12),
)


# matmul.


def _efficiency(result: MatmulResult) -> str:
    return units.of(units.percent(result.burst_efficiency), units.percent(result.sustained_efficiency))


def _checked(result: MatmulResult, brief: bool = False) -> Cell:
    """Whether every GEMM had the bits of the first; ``brief``: in a few letters, "0 in 3.1P"."""
    wrong, checked = result.corrupt_iterations, result.checked_iterations
    if wrong:
        return Cell(f"{wrong} of {checked}!" if brief else f"{wrong} WRONG of {checked}", "crit")
    if result.upload_intact is False:
        return Cell("UPLOAD!" if brief else "UPLOAD DAMAGED", "crit")
    if not checked:
        return NOT_KNOWN
    work = units.work_done(result.checked_pflop)
    return Cell(f"0 in {work.removesuffix('FLOP').replace(' ', '')}" if brief else f"no error in {work}")


def _wrong_value(result: MatmulResult) -> Value:
    return float(result.corrupt_iterations) if result.checked_iterations else None


MATMUL = (
    _figure("burst", "BURST", 5, "burst_tflops", units.flops),
    _figure("sustained", "HELD", 5, "sustained_tflops", units.flops),
    _of("efficiency", "EFF", 6, _efficiency, attrgetter("efficiency"), right=True, priority=5, optional=True),
    _AGAINST,
    *_ON_LOAD,
    _of("checked", "CHECKED", 22, _checked, _wrong_value),
    *_LAST,
    _of("shape", "SHAPE", 17, lambda result: Cell(shape_text(result.shape) or units.UNKNOWN, "dim"), priority=13),
    _figure("best", "BEST", 5, "burst_best_tflops", units.flops, priority=14),
    _figure("low", "P5", 5, "burst_p5_tflops", units.flops, priority=15),
)


# memory and copies.


_DATA = {None: NOT_KNOWN, True: Cell("intact"), False: Cell("DAMAGED", "crit")}
_INTACT = _of("intact", "DATA", 8, lambda result: _DATA[result.intact])
_SIZE = _figure("size", "SIZE", 5, "size_bytes", units.size_text, priority=10)

MEMORY = (
    _figure("copy", "COPY", 8, "copy_bytes_per_s", units.bandwidth),
    _figure("best", "BEST", 8, "copy_best_bytes_per_s", units.bandwidth, priority=7),
    _AGAINST,
    _INTACT,
    *_ON_LOAD,
    _SIZE,
    *_LAST,
)


def _pcie(result: CopiesResult) -> str:
    phase = load_phase(result)
    return units.UNKNOWN if phase is None else pcie_text(phase.pcie_gen, phase.pcie_width)


def _slowest_peer(result: CopiesResult) -> float | None:
    return min((peer.bytes_per_s for peer in result.peers if peer.bytes_per_s is not None), default=None)


def _peers(result: CopiesResult) -> Cell:
    """The slowest way to another GPU of the node, and to which; "!": slow among this GPU's own."""
    slowest, usual = _slowest_peer(result), middle(peer.bytes_per_s for peer in result.peers)
    to = next((peer.to_gpu for peer in result.peers if peer.bytes_per_s == slowest), None)
    if slowest is None or usual is None:
        return Cell("")
    slow = slowest < SLOW_PEER * usual
    return Cell(f"{units.bandwidth(slowest)} to {to}{'!' * slow}", "warn" if slow else "")


COPIES = (
    _figure("to_device", "TO GPU", 8, "to_device_bytes_per_s", units.bandwidth),
    _figure("to_host", "TO HOST", 8, "to_host_bytes_per_s", units.bandwidth),
    _figure("to_device_together", "ALL TO GPU", 10, "to_device_together_bytes_per_s", units.bandwidth, priority=4),
    _figure("to_host_together", "TO HOST", 8, "to_host_together_bytes_per_s", units.bandwidth, priority=4),
    _AGAINST,
    _INTACT,
    _of("pcie", "PCIE", 8, _pcie, priority=3),
    _of("peers", "SLOWEST PEER", 13, _peers, _slowest_peer, right=True, priority=2, optional=True),
    _SIZE,
    *_LAST,
)

STAGES = (Column("stage", "STAGE", 20, stretch=True, value=lambda line: line.progress.stage),)
# On narrow terminals these columns take the place of those with the same key: the fastest clock there is would cost
# the temperature, or what throttles.
BRIEF = {
    "clock": _of_phase("clock", "MHZ", 4, "sm_clock_mhz", lambda phase: units.number(phase.sm_clock_mhz), priority=2),
    "checked": _of("checked", "WRONG", 9, partial(_checked, brief=True), _wrong_value, right=True),
    "throttle": _of(
        "throttle", "THROTTLE", BRIEF_WIDTH, partial(_throttle, brief=True), _throttle_value, priority=4, optional=True
    ),
}


def shape_text(shape: Sequence[int]) -> str:
    """ "8192x8192x8192"."""
    return "x".join(map(str, shape))
