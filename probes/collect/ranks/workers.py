"""What a rank's children do (data loader workers above all): processor time and how many are blocked.

Source: /proc/PID/stat. Every five seconds for each rank; more seldom when there are so many that it would show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mltop.probes.collect.ranks import procfs
from mltop.probes.model import RankSample

EVERY_S = 5.0
_SECOND_LOOK_S = 1.0  # a share needs two looks: the second one comes soon
_MOST_PER_S = 20  # children of all ranks together
_JITTER_S = 0.25


@dataclass
class _Look:
    """``ticks`` by child: start and processor time."""

    at: float
    due_at: float
    ticks: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    fraction: float | None = None
    blocked: int | None = None


class Workers:
    """The children of all ranks. ``root``: the /proc to read."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._looks: dict[int, _Look] = {}
        self._every_s = EVERY_S

    def keep(self, children: dict[int, Sequence[int]]) -> None:
        """The children of each rank, by its pid; other ranks are forgotten."""
        self._looks = {pid: look for pid, look in self._looks.items() if pid in children}
        self._every_s = max(EVERY_S, sum(map(len, children.values())) / _MOST_PER_S)

    def add_to(self, sample: RankSample, now: float) -> None:
        """Fill in the newest known. ``now``: seconds of one clock."""
        look = self._looks.get(sample.pid)
        if look is None or not look.at <= now < look.due_at:
            look = self._looks[sample.pid] = self._next(look, sample, now)
        sample.children_cpu_fraction, sample.children_blocked = look.fraction, look.blocked

    def _next(self, before: _Look | None, sample: RankSample, now: float) -> _Look:
        # Ranks take turns: after the second look each waits for a time of its own.
        wait_s = _SECOND_LOOK_S if before is None else self._every_s
        if before is not None and before.fraction is None:
            wait_s *= (1 + sample.pid % 5) / 5
        look = _Look(now, now + wait_s - _JITTER_S)
        look.blocked = 0
        for child in sample.children:
            try:
                data = procfs.read_bytes(f"{self._root}/{child}/stat")
                fields = data[data.rfind(b")") + 2 :].split(None, 20)
                look.ticks[child] = (fields[19], int(fields[11]) + int(fields[12]))
            except (OSError, ValueError, IndexError):
                continue  # it has ended: the next list of children is without it
            look.blocked += fields[0] == b"D"
        if before is not None and now > before.at:
            spent = sum(_spent(before.ticks.get(child), ticks) for child, ticks in look.ticks.items())
            look.fraction = spent / procfs.CLOCK_TICKS_PER_S / (now - before.at)
        return look


def _spent(before: tuple[bytes, int] | None, now: tuple[bytes, int]) -> int:
    """Ticks between two looks at one process; 0 for one that was not there at the first."""
    return max(0, now[1] - before[1]) if before is not None and before[0] == now[0] else 0
