"""The devices of a probe as rows of a table: how far each is, what was measured, and in which order. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from mltop.probes.investigate.probing.wanted import DeviceProgress
from mltop.probes.judge.probes.compare import NO_COMPARISON, Comparison
from mltop.probes.judge.probes.transfers import JUDGES
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import units
from mltop.probes.model.probe import (
    CopiesResult,
    DeviceResult,
    MatmulResult,
    MemoryResult,
    PastResult,
    Phase,
    shape_text,
)
from mltop.tui.render.cells import Cell, Column, EitherCell, Row, Value, row_of, wrap
from mltop.tui.render.glyphs import bar, sparkline
from mltop.tui.render.gpus.table import pcie_text
from mltop.tui.render.gpus.throttle import ALARMING, BADGES, throttle_cell
from mltop.tui.render.units import heights, middle

STAGE_WIDTH = 14
GAUGE_WIDTH = 20
MOST_FIRST = 40  # cells of the first column


# What a result is compared with: its own earlier ones, its peers of this run, or a published figure, in this order.

MUCH = 0.15  # slower than this is shown as gravely slow
SLOW_WAY = 0.85  # of the median of all: of pairs of nodes, of copies between GPUs


@dataclass(frozen=True)
class Against:
    """A result beside others. ``share``: of what is usual, 0.88 is 12 % less. ``against``: own | peers | table."""

    share: float
    against: str
    slow: bool = False

    @property
    def cell(self) -> Cell:
        style = "" if not self.slow else "crit" if self.share < 1 - MUCH else "warn"
        return Cell(f"{units.signed_percent(self.share - 1)} {self.against}", style)


NOT_KNOWN = Cell(units.UNKNOWN, "dim")


class Compared:
    """All results of one run. ``past``: by what it is of; what was not there before ``began_at`` (unix s) is left out.

    Each device's own history is looked at when it is first asked for: a table draws 50 of 4,096.
    """

    def __init__(
        self, results: Iterable[DeviceResult], past: Mapping[str, Sequence[PastResult]], began_at: float | None
    ) -> None:
        self._results = [result for result in results if result.main]
        self._past, self._began_at = past, began_at
        self._made: dict[int, Against | None] = {}
        self._peers: dict[int, Comparison] = {}
        for kind, alike in grouped(self._results, lambda result: result.KIND).items():
            ways = JUDGES[kind].beside_peers(alike)
            self._peers |= {id(result): ways[result.main][id(result)] for result in alike}

    def of(self, result: DeviceResult) -> Against | None:
        """The comparison that says most; None while nothing is there to compare it with."""
        if id(result) not in self._made:
            peers = self._peers.get(id(result))
            self._made[id(result)] = None if peers is None else self._compare(result, peers)
        return self._made[id(result)]

    def _compare(self, result: DeviceResult, peers: Comparison) -> Against | None:
        judge, earlier = JUDGES[result.KIND], self.earlier(result)
        own = judge.history(result.main, result, earlier) if earlier else NO_COMPARISON
        # A comparison that can tell slow from fast goes before one that cannot.
        for comparison, against in ((own, "own"), (peers, "peers")):
            if comparison.slow is not None and comparison.share is not None:
                return Against(comparison.share, against, comparison.slow)
        figure = next(iter(judge.figures(result)), None) if judge.shows_figures else None
        shares = {
            "own": own.share,
            "table": None if figure is None else figure.rate / figure.good,
            "peers": peers.share if peers.count > 1 else None,
        }
        return next((Against(share, against) for against, share in shares.items() if share is not None), None)

    def earlier(self, result: DeviceResult) -> list[PastResult]:
        """Its own earlier main figures, the oldest first, whatever the versions were; none that this run has left."""
        key = result.key(result.main) if result.main and not result.is_wrong else None
        own = self._past.get(result.subject, ())
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
    def key(self) -> str:
        device = self.progress
        return f"{device.node}/{device.gpu}/{device.uuid}/{device.rank}"

    @property
    def about(self) -> tuple[str, int | None]:
        return self.progress.node, self.progress.gpu

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
THROTTLE_WIDTH = 11


def load_phase(result: DeviceResult) -> Phase | None:
    """The phase that says most: of load without a pause, else the longest."""
    by_name = {phase.name: phase for phase in result.phases}
    return by_name.get("sustained") or max(result.phases, key=lambda phase: phase.seconds, default=None)


def _of(key: str, title: str, width: int, path: str, show: Callable[[Any], Cell | str], **layout: Any) -> Column:
    """A column about an attribute of a line, or of its result or phase: of unknown ones too. It is sorted by ``value``
    of it, else by a figure itself, by anything else as its cell says it.
    """
    value = layout.pop("value", show)

    def get(line: Line) -> Any:
        item: Any = line
        for name in path.split("."):
            item = getattr(item, name, None)
        return item

    def cell(line: Line) -> Cell | str:
        item = get(line)
        return NOT_KNOWN if item is None and "." not in path else show(item)

    def sorts_by(line: Line) -> Value:
        item = get(line)
        shown = item if item is None or isinstance(item, (int, float)) else value(item)
        return (shown.text or None) if isinstance(shown, Cell) else shown

    return Column(key, title, width, cell=cell, value=sorts_by, **layout)


_figure = partial(_of, right=True)


# Columns that all kinds share.


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


def _throttle(phase: Phase) -> Cell:
    """Where there is no room, the worst alone, and for how much of the time only where that fits."""
    if not phase.throttle_share and phase.sm_clock_mhz is None:
        return Cell(units.UNKNOWN)
    alarming = {reason: share for reason, share in phase.throttle_share.items() if reason in ALARMING and share > 0.01}
    shares = alarming or phase.throttle_share
    cell, worst = throttle_cell([], shares), next((reason for reason in BADGES if reason in shares), "")
    if not worst:
        return cell
    short = throttle_cell([], {worst: shares[worst]})
    short = short if len(short.text) <= THROTTLE_WIDTH else throttle_cell([worst])
    return EitherCell(cell.text, cell.style, short.text)


def _throttled_most(phase: Phase) -> float:
    return max((share for name, share in phase.throttle_share.items() if name != "gpu_idle"), default=0.0)


def _note(result: DeviceResult) -> Cell:
    """What is worth knowing of how it was measured."""
    notes = [getattr(result, "code_path", "")] if result.KIND == "matmul" else []
    notes += ["still heating"] if getattr(result, "still_heating", False) else []
    notes += [f"{len(result.gaps)} not known"] if result.gaps else []
    return Cell(", ".join(filter(None, notes)), "dim")


_AGAINST = _figure("against", "AGAINST", 10, "compared", attrgetter("cell"), value=attrgetter("share"), priority=1)
_ON_LOAD = (
    _figure("clock", "MHZ", 4, "phase.sm_clock_mhz", units.number, priority=2, optional=True),
    _figure("clock_max", "MAX", 4, "phase.sm_clock_max_mhz", units.number, priority=7, optional=True),
    _figure("power", "PWR/LIM", 9, "phase", _power, value=attrgetter("power_w"), priority=3, optional=True),
    _figure("temperature", "TEMP", 4, "phase.temperature_c", units.celsius, priority=6, optional=True),
    _of("throttle", "THROTTLE", THROTTLE_WIDTH, "phase", _throttle, value=_throttled_most, priority=4, optional=True),
)
_LAST = (
    Column("history", "HISTORY", HISTORY_WIDTH, True, 8, optional=True, cell=_history, value=_AGAINST.value),
    _of("note", "NOTE", 14, "result", _note, stretch=True, most=40, priority=9, optional=True),
    _of("name", "MODEL", 24, "result.name", lambda name: (name or units.UNKNOWN).removeprefix("NVIDIA "), priority=12),
)

# matmul.


def _efficiency(result: MatmulResult) -> str:
    return units.of(units.percent(result.burst_efficiency), units.percent(result.sustained_efficiency))


def _wrong(result: MatmulResult) -> Cell:
    """Whether every GEMM had the bits of the first: "0 in 3.1P"."""
    if result.corrupt_iterations:
        return Cell(f"{result.corrupt_iterations} of {result.checked_iterations}!", "crit")
    if result.upload_intact is False:
        return Cell("UPLOAD!", "crit")
    if not result.checked_iterations:
        return NOT_KNOWN
    return Cell(f"0 in {units.work_done(result.checked_pflop).removesuffix('FLOP').replace(' ', '')}")


def matmul_how(result: MatmulResult) -> list[str]:
    tried = f" (best of {result.shapes_tried} shapes)" if result.shapes_tried > 1 else ""
    parts = [f"{result.dtype} burst {shape_text(result.shape)}{tried}"] if result.shape else []
    parts += [f"held {shape_text(result.sustained_shape)}"] if result.sustained_shape else []
    return parts + ([result.code_path] if result.code_path else [])


def _shape(shape: Sequence[int] | None) -> Cell:
    return Cell(shape_text(shape), "dim") if shape else NOT_KNOWN


MATMUL = (
    _figure("burst", "BURST", 5, "result.burst_tflops", units.flops),
    _figure("sustained", "HELD", 5, "result.sustained_tflops", units.flops),
    _figure("efficiency", "EFF", 6, "result", _efficiency, value=attrgetter("efficiency"), priority=5, optional=True),
    _AGAINST,
    *_ON_LOAD,
    _figure("checked", "WRONG", 9, "result", _wrong, value=attrgetter("share_wrong")),
    *_LAST,
    _of("shape", "SHAPE", 17, "result.shape", _shape, priority=13),
    _figure("best", "BEST", 5, "result.burst_best_tflops", units.flops, priority=14),
    _figure("low", "P5", 5, "result.burst_p5_tflops", units.flops, priority=15),
)

# memory and copies.

_DATA = {None: NOT_KNOWN, True: Cell("intact"), False: Cell("DAMAGED", "crit")}
_INTACT = _of("intact", "DATA", 8, "result", lambda result: _DATA[result.intact])
_SIZE = _figure("size", "SIZE", 5, "result.size_bytes", units.size_text, priority=10)


def copies_how(result: MemoryResult | CopiesResult) -> list[str]:
    return [f"{result.iterations} copies of {units.size_text(result.size_bytes)}"] if result.size_bytes else []


def _way(way: str, title: str, width: int = 8, **layout: Any) -> Column:
    return _figure(way, title, width, f"result.{way}_bytes_per_s", units.bandwidth, **layout)


MEMORY = (
    _way("copy", "COPY"),
    _figure("best", "BEST", 8, "result.copy_best_bytes_per_s", units.bandwidth, priority=7),
    _AGAINST,
    _INTACT,
    *_ON_LOAD,
    _SIZE,
    *_LAST,
)


def _slowest_peer(result: CopiesResult) -> float | None:
    return min((peer.bytes_per_s for peer in result.peers if peer.bytes_per_s is not None), default=None)


def _peers(result: CopiesResult) -> Cell:
    """The slowest way to another GPU of the node, and to which; "!": slow among this GPU's own."""
    slowest, usual = _slowest_peer(result), middle(peer.bytes_per_s for peer in result.peers)
    to = next((peer.to_gpu for peer in result.peers if peer.bytes_per_s == slowest), None)
    if slowest is None or usual is None:
        return Cell("")
    slow = slowest < SLOW_WAY * usual
    return Cell(f"{units.bandwidth(slowest)} to {to}{'!' * slow}", "warn" if slow else "")


COPIES = (
    _way("to_device", "TO GPU"),
    _way("to_host", "TO HOST"),
    _way("to_device_together", "ALL TO GPU", 10, priority=4),
    _way("to_host_together", "TO HOST", priority=4),
    _AGAINST,
    _INTACT,
    _of("pcie", "PCIE", 8, "phase", lambda phase: pcie_text(phase.pcie_gen, phase.pcie_width), priority=3),
    _figure("peers", "SLOWEST PEER", 13, "result", _peers, value=_slowest_peer, priority=2, optional=True),
    _SIZE,
    *_LAST,
)

STAGES = (_of("stage", "STAGE", 20, "progress.stage", str, stretch=True),)


def listed(title: str, texts: Sequence[str], width: int) -> list[list[Cell]]:
    """A title and a line for each text; nothing of no texts."""
    lines: list[list[Cell]] = [[Cell(title, "title")]] if texts else []
    for text in texts:
        lines += wrap([Cell("  "), Cell(text, "dim")], width, indent=4)
    return lines
