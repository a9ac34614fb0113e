"""What the user and mltop have noted, each list in a JSON file: GPUs that gave trouble, kernel lines of good machines.

The lemon list has GPUs by UUID or serial number, and why. The allow-list of kernel lines has the kinds that were seen
on good machines, learned by `mltop kernel --learn`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from mltop.tui.state import BadState, NoHome, exclusive, read_state, state_file, write_state

LEMONS = "lemons.json"
MOST_LEMON_BYTES = 4 << 20  # 20,000 GPUs with a line each
KERNEL_LINES = "kernel-lines.json"
MOST = 50_000  # kinds of kernel lines; a machine has about a thousand
MOST_KERNEL_BYTES = 64 << 20
# A colon behind every entry, and some within: entries are counted before they are made.
_MOST_COLONS = 4 * MOST

Content = TypeVar("Content")


def _read(path: Path, most_bytes: int, kind: type[Content], what: str) -> Content | None:
    """The content of a file, None where there is none. Raises BadState for one that is not ``what``."""
    import msgspec

    data = read_state(path, most_bytes)
    if data is None:
        return None
    try:
        if data.count(b'":') > _MOST_COLONS:
            raise ValueError("more entries than are ever written")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadState(f"{path}: is not {what} (move it away to begin a new one)") from None


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


def read_lemons(path: Path | None = None) -> dict[str, Lemon]:
    """All entries by UUID or serial. Raises BadState for a file that is not a lemon list."""
    content = _read(path or state_file(LEMONS), MOST_LEMON_BYTES, _Lemons, "a lemon list")
    return {lemon.gpu: lemon for lemon in content.lemons} if content is not None else {}


def change_lemons(change: Callable[[dict[str, Lemon]], None], path: Path | None = None) -> None:
    """Read, change and write them while no other mltop does. Raises BadState, and whatever ``change`` raises."""
    path = path or state_file(LEMONS)
    with exclusive(path):
        lemons = read_lemons(path)
        change(lemons)
        write_lemons(lemons, path)


def write_lemons(lemons: Mapping[str, Lemon], path: Path | None = None) -> None:
    """Raises BadState."""
    entries = [asdict(lemon) for lemon in sorted(lemons.values(), key=lambda lemon: lemon.added_at)]
    write_state(path or state_file(LEMONS), json.dumps({"mltop_lemons": 1, "lemons": entries}, indent=1))


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


def read_known(path: Path | None = None) -> dict[str, float]:
    """When each pattern was learned (unix s). Raises BadState for a file that is not such a list."""
    content = _read(path or state_file(KERNEL_LINES), MOST_KERNEL_BYTES, _KernelLines, "a list of kernel lines")
    return content.patterns if content is not None else {}


def learn(patterns: Iterable[str], now: float, known: Mapping[str, float], path: Path | None = None) -> None:
    """Write the list anew with ``patterns`` in it (``now``: unix s). Raises BadState.

    Of too many those are forgotten that were learned, again and again, the longest ago.
    """
    path = path or state_file(KERNEL_LINES)
    with exclusive(path):
        # Another mltop may have learned since ``known`` was read.
        learned = {**known, **read_known(path), **dict.fromkeys(patterns, now)}
        newest = sorted(learned.items(), key=lambda entry: -entry[1])[:MOST]
        text = json.dumps({"mltop_kernel_lines": 1, "patterns": dict(sorted(newest))}, indent=0, ensure_ascii=False)
        write_state(path, text)
