"""The last ten minutes of every GPU: clock, power, temperature, activity and throttle reasons, in compact arrays.

Four bytes per value: 64 nodes of 8 GPUs take 9 MB, and so do 512 of them, of which a value is kept every 8 s.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from mltop.probes.reach.view import AnyGpu, FleetView, NodeView, SampleSummary
from mltop.tui.render.guarded import guarded

SPAN_S = 600.0
NODES_PER_S = 64  # of so many the GPUs are taken in per second: of more nodes, values are kept less often
MOST_GPUS = 256  # per node; what claims a higher index is not remembered
TOLERANCE = 2.5  # this many intervals without a sample are a gap

# Bits of the throttle lane. A reason that is not here is not remembered.
REASONS = (
    "hw_thermal",
    "power_brake",
    "hw_slowdown",
    "sw_thermal",
    "sw_power_cap",
    "applications_clocks",
    "sync_boost",
    "display_clocks",
    "gpu_idle",
)
_BIT = {reason: 1 << bit for bit, reason in enumerate(REASONS)}

_UNKNOWN = math.nan
_LANES = 7
_CLOCK, _POWER, _TEMPERATURE, _BUSY, _SM, _TENSOR, _REASONS = range(_LANES)
_UNKNOWNS = array("f", [_UNKNOWN])
_NOTHING = array("f", [_UNKNOWN] * _LANES)

Values = Sequence["float | None"]


def _lane(lane: int) -> cached_property[Values]:
    """The values of one lane of a track, worked out when they are first used."""
    return cached_property(lambda track: _known(track.raw[lane]))


@dataclass(frozen=True)
class Track:
    """One GPU's last ten minutes, the oldest first, a value every ``step_s``; None: unknown.

    The newest value is of ``until`` (unix s, the node's clock). ``began``: index of the first value that was ever
    taken; before it nothing was watched. ``slot``: number of the newest value, grows by one with every step.
    ``raw``: all lanes with NaN for unknown.
    """

    until: float
    step_s: float
    began: int
    slot: int
    raw: Sequence[array[float]]

    @property
    def length(self) -> int:
        return len(self.raw[0])

    clock_mhz = _lane(_CLOCK)
    power_w = _lane(_POWER)
    temperature_c = _lane(_TEMPERATURE)
    busy = _lane(_BUSY)
    sm_active = _lane(_SM)
    tensor_active = _lane(_TENSOR)

    @cached_property
    def reasons(self) -> Sequence[int | None]:
        """Bits of REASONS."""
        values = _known(self.raw[_REASONS])
        whole = {bits: None if bits is None else int(bits) for bits in set(values)}
        return [whole[bits] for bits in values]

    @cached_property
    def reasons_seen(self) -> Mapping[int, int]:
        """Every combination of bits that was seen, and how often: few, however long the track is."""
        return {bits: count for bits, count in Counter(self.reasons).items() if bits is not None}

    def share(self, reason: str) -> float | None:
        """The part of the time in which this reason held; None when nothing is known."""
        known_steps = sum(self.reasons_seen.values())
        steps = sum(count for bits, count in self.reasons_seen.items() if bits & _BIT[reason])
        return steps / known_steps if known_steps else None

    def seen_reasons(self) -> list[str]:
        """The reasons that held at least once, in the order of REASONS."""
        return [reason for reason in REASONS if any(bits & _BIT[reason] for bits in self.reasons_seen)]


def has(bits: int | None, reason: str) -> bool | None:
    """Whether a value of ``Track.reasons`` has this reason, never one that is not in REASONS; None: unknown."""
    return None if bits is None else bool(bits & _BIT.get(reason, 0))


class NodeHistory:
    """A ring of one node: ``length`` slots of ``step_s``, each with all lanes of all its GPUs."""

    __slots__ = ("_at", "_began", "_gpus", "_ring", "_slot", "length", "step_s")

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.length = max(1, round(SPAN_S / step_s))
        self._gpus = 0
        self._ring: array[float] = array("f")
        self._slot = self._began = 0
        self._at = -math.inf

    def take(self, summary: SampleSummary) -> None:
        """Take a sample; one of a slot that is there already changes nothing. Where time goes back (a replay), what was
        later is forgotten.
        """
        slot = self._slot_of(summary.sampled_at)
        if slot == self._slot:
            return
        gpus = summary.gpus
        if gpus and (len(gpus) > self._gpus or gpus[-1].index >= self._gpus):
            self._widen(1 + max([gpu.index for gpu in gpus if gpu.index < MOST_GPUS], default=-1))
        row = _row(gpus, self._gpus)
        elapsed_s = summary.sampled_at - self._at
        if not 0 < elapsed_s < SPAN_S:
            self._go_back(slot) if -SPAN_S < elapsed_s < 0 else self._start(slot)
        else:
            seamless = elapsed_s <= TOLERANCE * max(summary.interval_s, self.step_s)
            between = row if seamless else _NOTHING * self._gpus
            for missed in range(self._slot + 1, slot):
                self._put(missed, between)
        self._put(slot, row)
        self._slot, self._at = slot, summary.sampled_at

    def track(self, gpu: int, until: float) -> Track | None:
        """The last ten minutes up to ``until`` (unix s), None for a GPU never seen.

        Where the newest sample is much older than ``until``, what lies between is unknown.
        """
        if gpu >= self._gpus:
            return None
        due = 0 <= until - self._at <= TOLERANCE * self.step_s
        newest = self._slot if due else max(self._slot_of(until), self._began)
        first = newest - self.length + 1
        began = min(max(0, self._began - first), self.length - 1)
        raw = [self._lane(gpu, lane, newest) for lane in range(_LANES)]
        return Track(until, self.step_s, began, newest, raw)

    def copy(self) -> NodeHistory:
        """A history that stands still while this one goes on."""
        copied = NodeHistory(self.step_s)
        copied._gpus, copied._ring = self._gpus, self._ring[:]
        copied._slot, copied._began, copied._at = self._slot, self._began, self._at
        return copied

    def _slot_of(self, at: float) -> int:
        return int(at // self.step_s)

    def _start(self, slot: int) -> None:
        """Begin anew at ``slot``: of what came before nothing is known."""
        self._ring = _NOTHING * (self._gpus * self.length)
        self._began = slot

    def _go_back(self, slot: int) -> None:
        for later in range(slot + 1, self._slot + 1):
            self._put(later, _NOTHING * self._gpus)
        self._began = min(self._began, slot)

    def _put(self, slot: int, row: array[float]) -> None:
        width = len(row)
        start = slot % self.length * width
        self._ring[start : start + width] = row

    def _widen(self, gpus: int) -> None:
        """Make room for more GPUs, of which nothing is known up to now."""
        if gpus <= self._gpus:
            return
        old, before = self._ring, self._gpus * _LANES
        added = _NOTHING * (gpus - self._gpus)
        ring: array[float] = array("f")
        for slot in range(self.length):
            ring += (old[slot * before : (slot + 1) * before] or _NOTHING * self._gpus) + added
        self._ring, self._gpus = ring, gpus

    def _lane(self, gpu: int, lane: int, newest: int) -> array[float]:
        """``length`` values up to the slot ``newest``, the oldest first."""
        after = newest - self._slot
        if not -self.length < after < self.length:
            return _UNKNOWNS * self.length
        around = self._ring[gpu * _LANES + lane :: self._gpus * _LANES]
        oldest = (self._slot + 1) % self.length
        ordered = around[oldest:] + around[:oldest]
        unknown = _UNKNOWNS * abs(after)
        return ordered[after:] + unknown if after >= 0 else unknown + ordered[:after]


class History:
    """The histories of all nodes. Fed with every view; of many nodes, some are looked at each time, in turns."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeHistory] = {}
        self._turns = 1
        self._turn = 0

    def feed(self, view: FleetView) -> None:
        turns = max(1, -(-len(view.nodes) // NODES_PER_S))
        if turns != self._turns:
            self._nodes.clear()
            self._turns = turns
        self._turn = (self._turn + 1) % turns
        nodes = self._nodes
        for node in view.nodes[self._turn :: turns]:
            if (summary := node.summary) is None:
                continue
            if node.node not in nodes:
                nodes[node.node] = NodeHistory(float(max(turns, round(summary.interval_s))))
            guarded("the history of a node", partial(nodes[node.node].take, summary), None)
        for gone in nodes.keys() - {node.node for node in view.nodes}:
            del nodes[gone]

    def of(self, node: str) -> NodeHistory | None:
        """The history of a node; None where no sample has come so far."""
        return self._nodes.get(node)


def _row(gpus: Sequence[AnyGpu], count: int) -> array[float]:
    """All lanes of ``count`` GPUs, unknown where one is lost or hidden."""
    row = _NOTHING * count
    for gpu in gpus:
        if gpu.state == "ok" and 0 <= gpu.index < count:
            values = (gpu.sm_clock_mhz, gpu.power_w, gpu.temperature_c, gpu.busy, gpu.sm_active, gpu.tensor_active)
            lanes = [_UNKNOWN if value is None else value for value in (*values, _bits(gpu.throttle_reasons))]
            row[gpu.index * _LANES : (gpu.index + 1) * _LANES] = array("f", lanes)
    return row


def _bits(reasons: Sequence[str] | None) -> float | None:
    return None if reasons is None else float(sum([_BIT.get(reason, 0) for reason in reasons]))


def _known(values: array[float]) -> Values:
    total = sum(values)
    if total == total:  # noqa: PLR0124 - NaN differs from itself: here is none
        return values.tolist()
    return [None if value != value else value for value in values]  # noqa: PLR0124


class ShownHistory:
    """The tracks that one pane shows: they stand still while the screen is paused, however long that is."""

    def __init__(self) -> None:
        self._frozen: dict[str, NodeHistory] = {}

    def track(self, live: History, paused: bool, node: NodeView, gpu: int) -> Track | None:
        """The track of a GPU; None where nothing has been kept of it yet."""
        sample = node.sample
        history = live.of(node.node)
        if paused and history is not None:
            history = self._frozen.setdefault(node.node, history.copy())
        elif not paused:
            self._frozen.clear()
        if sample is None or history is None:
            return None
        silent_s = 0.0 if node.state.state == "live" else node.state.age_s or 0.0
        return history.track(gpu, sample.sampled_at + silent_s)
