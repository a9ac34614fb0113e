"""What panes take of the past: one GPU's values over the last ten minutes, or hours (`past/` keeps them)."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from mltop.probes.model.news.row import REASON_BITS, REASONS
from mltop.probes.reach.view import NodeView

SPAN_S = 600.0  # of a graph
DRAWN_S = 800.0  # values for one: its columns are whole seconds, which come to more than ten minutes on a wide screen

Values = Sequence["float | None"]


def _lane(name: str, unit: float = 1.0) -> cached_property[Values]:
    """The values of one lane of a track, worked out when they are first used. ``unit``: what 1 in memory stands for."""
    return cached_property(lambda track: track.known(name, unit))


@dataclass(frozen=True)
class Track:
    """One GPU's values over a span of time, the oldest first, a value every ``step_s``; None: unknown.

    The newest value is of ``until`` (unix s, the node's clock). ``began``: index of the first value that was ever
    taken; before it nothing was watched. ``slot``: number of the newest value, grows by one with every step.
    ``length``: how many there are. ``read``: the values of a lane (`lanes.py`) in memory's units, NaN for unknown. A
    value of ten seconds is their mean; of the clock the lowest, of temperatures the highest, of memory the last, of
    reasons all that held.
    """

    until: float
    step_s: float
    began: int
    slot: int
    length: int
    read: Callable[[str], array[float]]

    clock_mhz = _lane("clock_mhz")
    power_w = _lane("power_w")
    temperature_c = _lane("temperature_c")
    busy = _lane("busy")
    sm_active = _lane("sm_active")
    tensor_active = _lane("tensor_active")
    dram_active = _lane("dram_active")
    nvlink_bytes_per_s = _lane("nvlink_bytes_per_s", 1e8)  # in and out together
    memory_used_bytes = _lane("memory_used_bytes", float(1 << 24))

    def known(self, lane: str, unit: float = 1.0) -> Values:
        """The values of a lane in the unit of its name. Of ten minutes mltop has watched the last few at first."""
        values = self.read(lane)
        return [*[None] * self.began, *known_values(values[self.began :], unit)]

    @cached_property
    def reasons(self) -> Sequence[int | None]:
        """Bits of REASONS."""
        values = self.known("reasons")  # below 0: the GPU did not answer
        whole = {bits: None if bits is None or bits < 0 else int(bits) for bits in set(values)}
        return [whole[bits] for bits in values]

    @cached_property
    def reasons_seen(self) -> Mapping[int, int]:
        """Every combination of bits that was seen, and how often: few, however long the track is."""
        return {bits: count for bits, count in Counter(self.reasons).items() if bits is not None}

    def share(self, reason: str) -> float | None:
        """The part of the time in which this reason held; None when nothing is known."""
        known_steps = sum(self.reasons_seen.values())
        steps = sum(count for bits, count in self.reasons_seen.items() if bits & REASON_BITS[reason])
        return steps / known_steps if known_steps else None

    def seen_reasons(self) -> list[str]:
        """The reasons that held at least once, in the order of REASONS."""
        return [reason for reason in REASONS if any(bits & REASON_BITS[reason] for bits in self.reasons_seen)]


def has(bits: int | None, reason: str) -> bool | None:
    """Whether a value of ``Track.reasons`` has this reason, never one that is not in REASONS; None: unknown."""
    return None if bits is None else bool(bits & REASON_BITS.get(reason, 0))


def known_values(values: array[float], unit: float = 1.0) -> Values:
    """None in place of NaN, in the unit of the name."""
    total = sum(values)
    if total == total:  # noqa: PLR0124 - NaN differs from itself: here is none
        return values.tolist() if unit == 1.0 else [value * unit for value in values]
    return [None if value != value else value * unit for value in values]  # noqa: PLR0124


class Tracks(Protocol):
    """What has tracks: `past/past.py`."""

    def track(self, node: str, gpu: int, until: float, span_s: float) -> Track | None: ...
    def is_settled(self, moment: float) -> bool: ...


class ShownHistory:
    """The tracks that one pane shows: they stay as they are while the screen does, however long that is."""

    def __init__(self) -> None:
        self._moment: float | None = None
        self._frozen: dict[tuple[str, int], Track | None] = {}

    def track(
        self, live: Tracks, paused: bool, node: NodeView, gpu: int, *, span_s: float = SPAN_S, ahead_s: float = 0.0
    ) -> Track | None:
        """The track of a GPU up to ``ahead_s`` after the moment that is shown; None where nothing has been kept of it
        yet. A pane always asks for the same ``span_s``.
        """
        moment, key = node.sampled_at, (node.node, gpu)
        if moment is None:
            return None
        if not paused:
            silent_s = 0.0 if node.state.state == "live" else node.state.age_s or 0.0
            return live.track(node.node, gpu, moment + silent_s, span_s)
        if self._moment != moment:
            self._moment, self._frozen = moment, {}
        if key not in self._frozen:
            is_settled = live.is_settled(moment)  # before it is read: more may come meanwhile
            track = live.track(node.node, gpu, moment + ahead_s, span_s)
            if not is_settled:
                return track
            self._frozen[key] = track
        return self._frozen[key]
