"""A part of the host's sample: what it reads, how often, and what it could not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from mltop.probes.collect.sysfile import KeptFile, OpenFiles
from mltop.probes.model import Gap, GapKind, RankSample
from mltop.probes.system.limits import limit_words

AGAIN_S = 4.0  # from the first reading of counters to the second
_JITTER_S = 0.25  # a tick may come a little early: a tier of five seconds must not become one of six


@dataclass
class Reading:
    """``values``: fields of HostSample; they stand in all samples up to the part's next reading: change none."""

    values: dict[str, Any] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    def put(self, field: str, value: Any, why: str, kind: GapKind = "unknown") -> None:
        """A value that is known, or why it is not (None)."""
        if value is None:
            self.lack(field, why=why, kind=kind)
        else:
            self.values[field] = value

    def lack(self, *fields: str, why: str, fix: str = "", kind: GapKind = "unknown") -> Reading:
        """Fields that are not known; the same reading."""
        self.gaps.append(Gap.about("host", *fields, why=why, fix=fix, kind=kind))
        return self

    def lack_unreadable(self, *fields: str, error: Exception) -> Reading:
        """As ``lack``, with the system's words for the error."""
        reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return self.lack(*fields, why=f"cannot be read: {reason}")


# Reads some fields at a time (seconds of any one clock), with the ranks of the sample before. May raise anything: that
# costs these fields only.
Part = Callable[[float, Sequence[RankSample]], Reading]


def kept_file(root: str, path: str, in_pieces: bool = False) -> KeptFile:
    """A file of the running kernel stays open; below a ``root`` files may be replaced, so they are opened each time."""
    return KeptFile(root + path, OpenFiles(0 if root else 1), in_pieces=in_pieces)


class Scheduled:
    """A part that is read every ``every_s`` (0: at each sample) and whose values stand in between.

    What it could not tell yet (rates of a first look) is read again at the next sample. What ``counts`` errors is read
    a second time soon after the first: one reading does not tell whether they grow.
    ``fields`` are unknown where the part fails as a whole. ``later``: it has to load or start something first.
    """

    def __init__(
        self, fields: tuple[str, ...], every_s: float, part: Part, counts: bool = False, later: bool = False
    ) -> None:
        self.counts, self.later = counts, later
        self.read_at: float | None = None  # when its values were read, by the clock of ``reading``
        self._fields = fields
        self._every_s = max(0.0, every_s - _JITTER_S)
        self._pause_s = min(self._every_s, AGAIN_S) if counts else self._every_s  # until it is due again
        self._part = part
        self._newest = Reading()
        self._is_starting = True

    def lack(self) -> Reading:
        """What it says before it was read."""
        return Reading().lack(*self._fields, why="it comes with the next sample", kind="starting")

    def reading(self, now: float, ranks: Sequence[RankSample]) -> Reading:
        """The newest values, read now if that is due. ``now``: seconds of any one clock."""
        if self.read_at is None or self._is_starting or not 0 <= now - self.read_at < self._pause_s:
            if not self._is_starting:
                self._pause_s = self._every_s
            try:
                self._newest = self._part(now, ranks)
            except Exception as error:  # noqa: BLE001 - the gap tells, and the other parts go on
                limit = limit_words(error)
                why = limit or f"the collector failed: {type(error).__name__}: {error}"
                self._newest = Reading().lack(*self._fields, why=why, fix="" if limit else "please report this")
            self.read_at = now
            self._is_starting = any(gap.kind == "starting" for gap in self._newest.gaps)
        return self._newest


def folded(gaps: Sequence[Gap]) -> list[Gap]:
    """The gaps, those about absent things (kind "unsupported") as one: a virtual machine lacks many things that nobody
    misses.
    """
    absent = [gap for gap in gaps if gap.kind == "unsupported" and gap.fields and not gap.fix and not gap.code]
    if len(absent) < 2:
        return list(gaps)
    why = "; ".join(f"{', '.join(gap.fields)}: {gap.why}" for gap in absent)
    fields = [field for gap in absent for field in gap.fields]
    together = Gap.about("host", *fields, why=why, kind="unsupported")
    return [*(gap for gap in gaps if gap not in absent), together]
