"""What the user and mltop have noted, each in a JSON file: GPUs that gave trouble, kernel lines of good machines, and
choices on the screen (answers "always", theme, order and columns of tables).

The lemon list has GPUs by UUID or serial number, and why. The allow-list of kernel lines has the kinds that were seen
on good machines, learned by `mltop kernel --learn`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltop.tui.state import JsonFile, NoHome


@dataclass(frozen=True)
class Chosen:
    """``over``: what the configuration file said of it when it was chosen, None: nothing."""

    value: Any
    over: Any = None


@dataclass(frozen=True)
class Choices:
    """``dump_stalled``: the stacks of a job that stands still are dumped without a question. ``screen``: by the keys of
    the configuration ("theme", "sort.gpus").
    """

    dump_stalled: bool = False
    screen: dict[str, Chosen] = field(default_factory=dict)


CHOICES = JsonFile("choices.json", "what mltop wrote", Choices(), 1 << 16)


LEMONS = "lemons.json"
KERNEL_LINES = "kernel-lines.json"
MOST = 50_000  # kinds of kernel lines; a machine has about a thousand


# Lemons.


@dataclass(frozen=True)
class Lemon:
    """``gpu``: UUID or serial; ``added_at``: unix s."""

    gpu: str
    note: str = ""
    added_at: float = 0.0

    @property
    def words(self) -> str:
        """E.g. "Xid 79, noted 3 Nov 2026"."""
        day = _day(self.added_at)
        return ", ".join(filter(None, (self.note, day and f"noted {day}")))


@dataclass
class _Lemons:
    lemons: list[Lemon]
    mltop_lemons: int = 1


_LEMONS = JsonFile(LEMONS, "a lemon list", _Lemons([]), 4 << 20)  # 20,000 GPUs with a line each


def read_lemons(path: Path | None = None) -> dict[str, Lemon]:
    """All entries by UUID or serial. Raises BadState."""
    return {lemon.gpu: lemon for lemon in _LEMONS.read(path).lemons}


def change_lemons(change: Callable[[dict[str, Lemon]], None]) -> None:
    """Raises BadState, and whatever ``change`` raises."""

    def changed(before: _Lemons) -> _Lemons:
        lemons = {lemon.gpu: lemon for lemon in before.lemons}
        change(lemons)
        return _Lemons(sorted(lemons.values(), key=lambda lemon: lemon.added_at))

    _LEMONS.change(changed)


def known_lemons() -> dict[str, str]:
    """What the rule gpu.lemon needs: notes by UUID or serial number. Raises BadState."""
    with contextlib.suppress(NoHome):
        return {gpu: lemon.words for gpu, lemon in read_lemons().items()}
    return {}


def _day(at: float) -> str:
    """ "3 Nov 2026"; "" for none, or for a number that is no time."""
    try:
        return time.strftime("%-d %b %Y", time.localtime(at)) if at else ""
    except (OverflowError, OSError, ValueError):
        return ""


# Kernel lines.


@dataclass
class _KernelLines:
    patterns: dict[str, float]
    mltop_kernel_lines: int = 1


_KERNEL_LINES = JsonFile(KERNEL_LINES, "a list of kernel lines", _KernelLines({}), 64 << 20)


def read_known(path: Path | None = None) -> dict[str, float]:
    """When each pattern was learned (unix s). Raises BadState."""
    return _KERNEL_LINES.read(path).patterns


def learn(patterns: Iterable[str], now: float, known: Mapping[str, float], path: Path | None = None) -> None:
    """Write the list anew with ``patterns`` in it (``now``: unix s). Raises BadState.

    Of too many those are forgotten that were learned, again and again, the longest ago.
    """

    def learned(before: _KernelLines) -> _KernelLines:
        # Another mltop may have learned since ``known`` was read.
        every = {**known, **before.patterns, **dict.fromkeys(patterns, now)}
        return _KernelLines(dict(sorted(sorted(every.items(), key=lambda entry: -entry[1])[:MOST])))

    _KERNEL_LINES.change(learned, path)
