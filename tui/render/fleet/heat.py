"""The fleet as a heatmap: which metric, in which order nodes stand, and what one node is on it.

Height and colour of a glyph: the metric; what a hung job's GPUs do lies over it. Pure, but for ``Heats``, which
remembers levels so that a value near a border does not flicker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MethodType

from mltop.probes.judge.states import HELD_BYTES, JobStates, holds_gpu
from mltop.probes.model import Finding, GpuSample
from mltop.probes.model.units import bytes_text, celsius, known, mhz, percent, watts
from mltop.probes.reach.view import AnyGpu, NodeView
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import NODE_STYLE

COLDEST_C, HOTTEST_C = 30.0, 90.0  # data centre GPUs idle near the one and slow down near the other


@dataclass(frozen=True)
class Metric:
    """``share``: 0..1 of the scale from ``low`` to ``high``, None: unknown. ``text``: the figure with its unit.

    ``low_is_bad``: the GPU that stands for its node is the lowest one, otherwise the highest.
    """

    key: str
    title: str
    low: str
    high: str
    share: Callable[[AnyGpu], float | None]
    text: Callable[[AnyGpu], str]
    low_is_bad: bool = True


def activity(gpu: AnyGpu) -> float | None:
    """The share of SMs that work; where that is not known, of the time in which any kernel was resident."""
    return gpu.busy if gpu.sm_active is None else gpu.sm_active


def clock(gpu: AnyGpu) -> float | None:
    return ratio(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)


def temperature(gpu: AnyGpu) -> float | None:
    return None if gpu.temperature_c is None else (gpu.temperature_c - COLDEST_C) / (HOTTEST_C - COLDEST_C)


def power(gpu: AnyGpu) -> float | None:
    return ratio(gpu.power_w, gpu.power_limit_w)


def memory(gpu: AnyGpu) -> float | None:
    return ratio(gpu.memory_used_bytes, gpu.memory_total_bytes)


def ratio(part: float | None, whole: float | None) -> float | None:
    """The share that ``part`` is of ``whole``; None where either is not known, or the whole is 0."""
    return None if part is None or not whole else part / whole


METRICS = (
    Metric("activity", "activity", "0%", "100%", activity, lambda gpu: percent(activity(gpu))),
    Metric("clock", "SM clock of its maximum", "0%", "100%", clock, lambda gpu: mhz(gpu.sm_clock_mhz)),
    Metric(
        "temperature",
        "temperature",
        celsius(COLDEST_C),
        celsius(HOTTEST_C),
        temperature,
        lambda gpu: celsius(gpu.temperature_c),
        low_is_bad=False,
    ),
    Metric("power", "power of its limit", "0%", "100%", power, lambda gpu: watts(gpu.power_w)),
    Metric(
        "memory", "memory used", "0%", "100%", memory, lambda gpu: bytes_text(gpu.memory_used_bytes), low_is_bad=False
    ),
)


def next_metric(now: Metric) -> Metric:
    return METRICS[(METRICS.index(now) + 1) % len(METRICS)]


def activity_source(gpus: Iterable[AnyGpu]) -> str:
    """The name of the activity that these GPUs report: "SM active", "GPU-Util", "SM active or GPU-Util", or ""."""
    words = {"SM active" if gpu.sm_active is not None else "GPU-Util" for gpu in gpus if known(activity(gpu))}
    return " or ".join(sorted(words, reverse=True))


_DIGITS = re.compile(r"(\d+)")


@lru_cache(maxsize=8192)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key in which node9 comes before node10."""
    parts = _DIGITS.split(name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part)


LEVELS = len(GLYPHS.ramp)
MARGIN = 0.25  # of a level: how far past a border a value must be before its glyph changes
UNKNOWN_CODE, LOST, ERROR, WAITS, STANDS = range(LEVELS, LEVELS + 5)  # codes above the levels
SIGNS = GLYPHS.ramp + GLYPHS.unknown + GLYPHS.lost + "E" + GLYPHS.waits + GLYPHS.alarm
# The style of each code.
STYLES_OF = (
    *(f"ramp-{step}" for step in range(LEVELS)),
    *("dim", "crit", "crit", "graph-waits", "stands"),
)
MARK = "%" if GLYPHS.ascii_only else "◆"
LETTERS = {"lost": "L", "stale": "S", "refused": "R", "connecting": "c"}
NO_GPU = "no GPU"
_STYLE_OF = {"critical": "crit", "warning": "warn"}
_GRAVITY = {"crit": 0, "warn": 1}


@dataclass(frozen=True)
class Trouble:
    """Worst styles (crit, warn or "") that findings give a node, all its GPUs, and single ones by index."""

    node: str = ""
    all_gpus: str = ""
    gpus: Mapping[int, str] = field(default_factory=dict)


FINE = Trouble()


@dataclass(frozen=True)
class NodeHeat:
    """One node: ``codes`` has one level or sign per GPU, ``dim`` the GPUs that a filter leaves out.

    ``status``: stands (it holds a job up), crit, warn, connecting, unknown (it has no GPU) or ok. ``state``: the
    node's; there are codes of live ones only. ``cell`` and ``cell_style`` stand for the whole node: its worst GPU.
    """

    node: str
    state: str
    status: str
    codes: bytes
    cell: str
    cell_style: str
    dim: frozenset[int] = frozenset()

    def styles(self) -> list[str]:
        """Of each GPU."""
        return ["dim" if at in self.dim else STYLES_OF[code] for at, code in enumerate(self.codes)]


def level(share: float | None, before: int = UNKNOWN_CODE) -> int:
    """0 … LEVELS - 1 of a fraction 0..1, UNKNOWN of None and NaN; stays ``before`` while just past its border."""
    if share is None or not known(share):
        return UNKNOWN_CODE
    exact = min(max(share, 0.0), 1.0) * LEVELS
    now = min(int(exact), LEVELS - 1)
    if before >= LEVELS or now == before:
        return now
    past = exact - (before + 1) if now > before else before - exact
    return before if past < MARGIN else now


def troubles(findings: Iterable[Finding]) -> dict[str, Trouble]:
    """By node; a finding about ``GPU 3`` colours that GPU, one about the machine only the node."""
    nodes: dict[str, str] = {}
    everywhere: dict[str, str] = {}
    gpus: dict[str, dict[int, str]] = {}
    for finding in findings:
        style = _STYLE_OF.get(finding.severity, "")
        if not style or finding.until is not None:
            continue
        nodes[finding.node] = _graver(style, nodes.get(finding.node, ""))
        index = finding.gpu
        if index is not None:
            of_node = gpus.setdefault(finding.node, {})
            of_node[index] = _graver(style, of_node.get(index, ""))
        elif finding.is_of_all_gpus:
            everywhere[finding.node] = _graver(style, everywhere.get(finding.node, ""))
    return {name: Trouble(style, everywhere.get(name, ""), gpus.get(name, {})) for name, style in nodes.items()}


def _graver(style: str, other: str) -> str:
    return style if _GRAVITY.get(style, 2) < _GRAVITY.get(other, 2) else other


class Heats:
    """Makes NodeHeats of one metric; a node of which nothing changed keeps its object."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._made: dict[str, tuple[object, ...]] = {}  # what it was made of
        self._levels: dict[str, bytes] = {}
        self._heats: dict[str, NodeHeat] = {}

    def of(
        self,
        view: NodeView,
        trouble: Trouble = FINE,
        matches: Callable[[NodeView, GpuSample], bool] | None = None,
        standing: JobStates | None = None,
    ) -> NodeHeat:
        """The heat of one node. ``matches``: GPUs for which it is False are dim. ``standing``: what its job does, where
        that stands still.
        """
        name, state = view.state.node, view.state.state
        why = (state, trouble, matches, standing)
        of = (view.sampled_at, *why)
        before, of_before = self._heats.get(name), self._made.get(name, ())
        if before is not None and len(of) == len(of_before) and all(map(_same_thing, of, of_before)):
            return before
        self._made[name] = of
        codes = b""
        if state == "live" and view.newest is not None:
            codes = codes_of(view.gpus, self.metric, self._levels.get(name, b""))
            self._levels[name] = codes
            if standing is not None and self.metric is METRICS[0]:
                codes = _with_states(codes, view, standing)
        heat = self._make(view, trouble, matches, codes)
        if heat == before:
            return before
        self._heats[name] = heat
        return heat

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget all other nodes."""
        for name in self._heats.keys() - set(names):
            del self._heats[name], self._made[name]
            self._levels.pop(name, None)

    def _make(
        self, view: NodeView, trouble: Trouble, matches: Callable[[NodeView, GpuSample], bool] | None, codes: bytes
    ) -> NodeHeat:
        state = view.state.state
        if state != "live" or view.newest is None:
            status = status_of_state(state, trouble)
            return NodeHeat(view.node, state, status, b"", letter(state), NODE_STYLE.get(state, "warn"))
        dim: frozenset[int] = frozenset()
        if matches is not None:
            matching = {gpu.index for gpu in view.sample.gpus if matches(view, gpu)} if view.sample is not None else ()
            dim = frozenset([at for at, gpu in enumerate(view.gpus) if gpu.index not in matching])
        gone = LOST in codes or ERROR in codes
        status = "stands" if STANDS in codes else "crit" if gone else trouble.node or ("ok" if codes else "unknown")
        used = [code for code, gpu in zip(codes, view.gpus, strict=True) if code >= LEVELS or is_used(gpu)]
        code = worst_code(bytes(used) or codes, self.metric)  # what does not answer counts as used
        cell, style = SIGNS[code], STYLES_OF[code]
        if status in ("crit", "warn") and code not in (LOST, ERROR):
            cell, style = GLYPHS.finding, status
        return NodeHeat(view.node, state, status, codes, cell, "dim" if status == "unknown" else style, dim)


def is_used(gpu: AnyGpu) -> bool:
    """Whether somebody holds memory on it or anything runs; where neither is known it counts as used."""
    held, busy = gpu.memory_used_bytes, gpu.busy
    return held is None or held >= HELD_BYTES or busy is None or busy > 0


def _same_thing(new: object, old: object) -> bool:
    """Findings and states are other objects when they are others; a filter's method is another one each time."""
    return new is old or (isinstance(new, (float, str, MethodType)) and new == old)


# What a level becomes where its GPU waits; what is lost stays lost.
_ALL_WAIT = bytes.maketrans(bytes(range(LEVELS + 1)), bytes([WAITS]) * (LEVELS + 1))


def _with_states(codes: bytes, view: NodeView, standing: JobStates) -> bytes:
    """What the GPUs of a job that stands still do, in place of how much."""
    gpus, ranks = view.gpus, len(view.ranks)
    shown = bytearray(codes)
    if standing.stands and ranks >= len(gpus):
        shown = bytearray(codes.translate(_ALL_WAIT))
    elif standing.stands:
        for at, gpu in enumerate(gpus):
            if codes[at] not in (LOST, ERROR) and holds_gpu(gpu, len(gpus), ranks):
                shown[at] = WAITS
    for (where, index), doing in standing.gpus.items():
        if where == view.node and doing.state in ("stands", "alone"):
            places = [at for at, gpu in enumerate(gpus) if gpu.index == index and codes[at] not in (LOST, ERROR)]
            for place in places:
                shown[place] = STANDS
    return bytes(shown)


def codes_of(gpus: Sequence[AnyGpu], metric: Metric, before: bytes = b"") -> bytes:
    """A level or sign per GPU; levels that are just past a border stay as ``before``."""
    share = metric.share
    if len(before) != len(gpus):
        before = bytes([UNKNOWN_CODE]) * len(gpus)
    codes = []
    for gpu, old in zip(gpus, before, strict=True):
        if gpu.state == "ok":
            value = share(gpu)
            # Nearly always the level stays: 4,096 GPUs a second are asked.
            if value is not None and old < LEVELS and old < value * LEVELS < old + 1:
                codes.append(old)
            else:
                codes.append(level(value, old))
        else:
            codes.append(LOST if gpu.state == "lost" else ERROR)
    return bytes(codes)


def worst_code(codes: bytes, metric: Metric) -> int:
    """Lost before error before unknown: what is not known may be the worst."""
    if not codes:
        return UNKNOWN_CODE
    for sign in (STANDS, LOST, ERROR, WAITS, UNKNOWN_CODE):
        if sign in codes:
            return sign
    return min(codes) if metric.low_is_bad else max(codes)


def letter(state: str) -> str:
    """One glyph for a node that is not live."""
    return LETTERS.get(state, state[:1].upper() or GLYPHS.unknown)


def status_of_state(state: str, trouble: Trouble = FINE) -> str:
    """crit, warn, connecting or ok of a node that is not live, or of which there is no sample."""
    own = {"connecting": "connecting", "stale": "warn", "live": "connecting"}.get(state, "crit")
    return trouble.node if _GRAVITY.get(trouble.node, 3) < _GRAVITY.get(own, 2) else own
