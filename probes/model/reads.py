"""Whether counters were read twice since a node is watched: of one reading nobody can say that it does not grow."""

from __future__ import annotations

from dataclasses import dataclass, field

from mltop.probes.model.sample import CounterKind, Sample

APART_S = 0.5  # two readings this far apart are two
UNTOLD_S = 30.0  # of samples that do not say when they were read: by then everything was read twice
KINDS: tuple[CounterKind, ...] = ("gpus", "links", "pci", "host")


@dataclass
class Reads:
    """``see`` takes a node's samples in the order of time."""

    _first: dict[CounterKind, float] = field(default_factory=dict)
    _twice: set[CounterKind] = field(default_factory=set)
    _began_at: float | None = None

    def see(self, sample: Sample) -> None:
        if len(self._twice) == len(KINDS):
            return
        now = sample.sampled_at
        self._began_at = now if self._began_at is None else self._began_at
        if not sample.counters_read_at and now - self._began_at >= UNTOLD_S:
            self._twice.update(KINDS)
        for kind in KINDS:
            read_at = sample.counters_read_at.get(kind)
            if read_at is not None and read_at >= self._first.setdefault(kind, now) + APART_S:
                self._twice.add(kind)

    @property
    def count(self) -> int:
        """How many kinds were read twice."""
        return len(self._twice)

    def twice(self, kind: str) -> bool:
        return kind in self._twice
