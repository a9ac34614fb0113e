"""The fleet as a heatmap: which metric, in which order nodes stand, and what one node is on it.

Height of a glyph: the metric; colour: status, nothing else. Pure, but for ``Heats``, which remembers levels so that a
value near a border does not flicker, and ``WorstFirst``, which moves a node only when its status changes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

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


BETTER_FOR_S = 10.0  # a node that recovers stays among the problems for so long: what flaps does not jump
RANKS = {"crit": 0, "warn": 1}
FINE_RANK = 2  # connecting nodes stand among the good ones: at the start nothing moves when they answer
_DIGITS = re.compile(r"(\d+)")


@lru_cache(maxsize=8192)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key in which node9 comes before node10."""
    parts = _DIGITS.split(name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part)


class WorstFirst:
    """Remembers which rank each node has and since when it would deserve a better one."""

    def __init__(self) -> None:
        self._ranks: dict[str, int] = {}
        self._better_since: dict[str, float] = {}

    def ordered(self, nodes: Iterable[tuple[str, str]], now_s: float) -> list[tuple[str, int]]:
        """(name, rank) of ``nodes``, pairs of (name, status); ``now_s`` grows from call to call."""
        ranked = [(name, self._rank(name, RANKS.get(status, FINE_RANK), now_s)) for name, status in nodes]
        return sorted(ranked, key=lambda node: (node[1], natural(node[0])))

    def _rank(self, name: str, deserved: int, now_s: float) -> int:
        rank = self._ranks.get(name, FINE_RANK)
        if deserved <= rank or now_s - self._better_since.setdefault(name, now_s) >= BETTER_FOR_S:
            self._better_since.pop(name, None)
            self._ranks[name] = rank = deserved
        return rank


def by_name(names: Iterable[str]) -> list[str]:
    return sorted(names, key=natural)


LEVELS = len(GLYPHS.ramp)
MARGIN = 0.25  # of a level: how far past a border a value must be before its glyph changes
UNKNOWN_CODE, LOST, ERROR = LEVELS, LEVELS + 1, LEVELS + 2  # codes above the levels
SIGNS = GLYPHS.ramp + GLYPHS.unknown + GLYPHS.lost + "E"
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
    """One node: ``codes`` has one level or sign per GPU, ``styles`` the style of each.

    ``status``: crit, warn, connecting, unknown (it has no GPU) or ok. ``state``: the node's; there are codes of live
    ones only. ``cell`` and ``cell_style`` stand for the whole node: its worst GPU.
    """

    node: str
    state: str
    status: str
    codes: bytes
    styles: tuple[str, ...]
    cell: str
    cell_style: str


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
        self._heats: dict[str, NodeHeat] = {}

    def of(
        self, view: NodeView, trouble: Trouble = FINE, matches: Callable[[NodeView, GpuSample], bool] | None = None
    ) -> NodeHeat:
        """The heat of one node. ``matches``: GPUs for which it is False are dim."""
        name, state, summary = view.state.node, view.state.state, view.summary
        why = (state, trouble, matches)
        of = (summary.sampled_at if summary is not None else None, *why)
        before, of_before = self._heats.get(name), self._made.get(name, ())
        if before is not None and of_before == of:
            return before
        self._made[name] = of
        codes = b""
        if state == "live" and summary is not None:
            codes = codes_of(summary.gpus, self.metric, before.codes if before is not None else b"")
            # The styles of a fine node follow from its codes; from second to second most often no level is another.
            if before is not None and before.codes == codes and of_before[1:] == why == ("live", FINE, None):
                return before
        heat = self._make(view, trouble, matches, codes)
        if heat == before:
            return before
        self._heats[name] = heat
        return heat

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget all other nodes."""
        for name in self._heats.keys() - set(names):
            del self._heats[name], self._made[name]

    def _make(
        self, view: NodeView, trouble: Trouble, matches: Callable[[NodeView, GpuSample], bool] | None, codes: bytes
    ) -> NodeHeat:
        state, summary = view.state.state, view.summary
        if state != "live" or summary is None:
            status = status_of_state(state, trouble)
            return NodeHeat(view.node, state, status, b"", (), letter(state), NODE_STYLE.get(state, "warn"))
        if trouble is FINE and matches is None and max(codes, default=UNKNOWN_CODE) < LEVELS:
            styles = _same("ok", len(codes))
        else:
            matching = _matching(view, matches) if matches is not None else None
            styles = tuple(
                "dim" if matching is not None and gpu.index not in matching else _gpu_style(gpu, code, trouble)
                for gpu, code in zip(summary.gpus, codes, strict=True)
            )
        gone = max(codes, default=0) > UNKNOWN_CODE
        status = "crit" if gone else trouble.node or ("ok" if codes else "unknown")
        worst = worst_code(codes, self.metric)
        cell_style = "dim" if status == "unknown" or (worst == UNKNOWN_CODE and status == "ok") else status
        return NodeHeat(view.node, state, status, codes, styles, SIGNS[worst], cell_style)


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
    for sign in (LOST, ERROR, UNKNOWN_CODE):
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


def _matching(view: NodeView, matches: Callable[[NodeView, GpuSample], bool]) -> set[int]:
    """Indexes of the GPUs that a filter lets through, which may ask for anything that is known of one."""
    return {gpu.index for gpu in view.sample.gpus if matches(view, gpu)} if view.sample is not None else set()


def _gpu_style(gpu: AnyGpu, code: int, trouble: Trouble) -> str:
    if code > UNKNOWN_CODE:
        return "crit"
    style = _graver(trouble.all_gpus, trouble.gpus.get(gpu.index, "")) if trouble is not FINE else ""
    return style or ("dim" if code == UNKNOWN_CODE else "ok")


@lru_cache(maxsize=256)
def _same(style: str, count: int) -> tuple[str, ...]:
    """Nearly all nodes look alike: their styles are one object."""
    return (style,) * count


def statuses(heats: Sequence[NodeHeat]) -> Counter[str]:
    """The number of nodes by status."""
    return Counter(heat.status for heat in heats)
