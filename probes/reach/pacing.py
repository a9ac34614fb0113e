"""Who may connect now, how long it may take, and when a failed channel is tried again."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mltop.probes.reach.channel import SILENCE_S


@dataclass(frozen=True)
class Limits:
    """Deadlines and counts of connecting, in seconds; tests shorten them.

    ``connecting``, ``per_gate``: channels between start and hello at once, in all and behind one jump host; one that
    takes longer than ``slot_s`` gives its place to the next. ``spawns_per_turn``: processes started between two looks
    at what arrived. ``hello_s``: from the last sign of progress to the agent's hello. ``silence_s``: without any frame
    the link counts as dead. ``ping_s``: between two pings. ``settled_s``: a channel that lived so long starts its
    backoff anew. ``end_grace_s``: from closing a process's stdin to killing it.
    """

    connecting: int = 32
    per_gate: int = 8
    slot_s: float = 2.0
    spawns_per_turn: int = 2
    hello_s: float = 22.0
    silence_s: float = SILENCE_S
    ping_s: float = 5.0
    retry_first_s: float = 1.0
    retry_most_s: float = 60.0
    settled_s: float = 30.0
    end_grace_s: float = 5.0


Key = TypeVar("Key")


@dataclass
class Backoff:
    """Full jitter: a pause is anywhere between nothing and a bound that doubles with every failure in a row.

    Nodes that fail together do not come back together. ``random_unit`` gives numbers in [0, 1).
    """

    first_s: float
    most_s: float
    failures: int = 0
    random_unit: Callable[[], float] = random.random

    def next_s(self) -> float:
        bound_s: float = min(self.most_s, self.first_s * 2 ** min(self.failures, 30))
        self.failures += 1
        return bound_s * self.random_unit()

    def reset(self) -> None:
        self.failures = 0


@dataclass
class Pacer(Generic[Key]):
    """Places for channels between start and hello. A gate of "" has no limit of its own."""

    limits: Limits
    _waiting: dict[str, deque[Key]] = field(default_factory=dict)
    _holding: dict[Key, tuple[str, float]] = field(default_factory=dict)  # gate, when the place is given back
    _turn: deque[str] = field(default_factory=deque)  # gates with somebody waiting, the next one first

    def wait(self, key: Key, gate: str) -> None:
        """Queues ``key`` for a place."""
        queue = self._waiting.setdefault(gate, deque())
        if not queue:
            self._turn.append(gate)
        queue.append(key)

    def done(self, key: Key) -> None:
        """Gives the place of ``key`` back, if it still has one."""
        self._holding.pop(key, None)

    def admit(self, now: float) -> list[Key]:
        """The keys that may start now, at most ``spawns_per_turn``; each holds a place from now on."""
        for key in [key for key, (_, until) in self._holding.items() if until <= now]:
            del self._holding[key]
        admitted: list[Key] = []
        blocked = 0
        while self._turn and blocked < len(self._turn) and len(admitted) < self.limits.spawns_per_turn:
            if len(self._holding) >= self.limits.connecting:
                break
            gate = self._turn.popleft()
            if not self._has_room(gate):
                self._turn.append(gate)
                blocked += 1
                continue
            queue = self._waiting[gate]
            key = queue.popleft()
            if queue:
                self._turn.append(gate)
            self._holding[key] = (gate, now + self.limits.slot_s)
            admitted.append(key)
            blocked = 0
        return admitted

    @property
    def is_waiting(self) -> bool:
        """Whether somebody has no place yet."""
        return bool(self._turn)

    def next_s(self, now: float) -> float | None:
        """Seconds until somebody who waits may be admitted without another giving up his place; None: nobody waits."""
        if not self._turn:
            return None
        if len(self._holding) < self.limits.connecting and any(self._has_room(gate) for gate in self._turn):
            return 0.0
        return max(0.0, min(until for _, until in self._holding.values()) - now)

    def _has_room(self, gate: str) -> bool:
        return not gate or sum(taken == gate for taken, _ in self._holding.values()) < self.limits.per_gate
