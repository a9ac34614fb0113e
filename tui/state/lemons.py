"""The lemon list: GPUs that the user had trouble with before, by UUID or serial number, and why."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mltop.tui.state import BadState, NoHome, alone, read_state, state_file, write_state

FILE = "lemons.json"
MOST_BYTES = 4 << 20  # 20,000 GPUs with a line each


@dataclass(frozen=True)
class Lemon:
    """``gpu``: UUID or serial; ``added_at``: unix s."""

    gpu: str
    note: str = ""
    added_at: float = 0.0

    @property
    def words(self) -> str:
        """E.g. "Xid 79, noted 3 Nov 2026"."""
        return ", ".join(filter(None, (self.note, f"noted {day}" if (day := _day(self.added_at)) else "")))


@dataclass
class _List:
    lemons: list[Lemon]


def read_lemons(path: Path | None = None) -> dict[str, Lemon]:
    """All entries by UUID or serial. Raises BadState for a file that is not a lemon list."""
    import msgspec

    path = path or state_file(FILE)
    data = read_state(path, MOST_BYTES)
    if data is None:
        return {}
    try:
        lemons = msgspec.json.decode(data, type=_List).lemons
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadState(f"{path}: is not a lemon list (move it away to begin a new one)") from None
    return {lemon.gpu: lemon for lemon in lemons}


def change_lemons(change: Callable[[dict[str, Lemon]], None], path: Path | None = None) -> None:
    """Read, changed and written while no other mltop does. Raises BadState, and whatever ``change`` raises."""
    path = path or state_file(FILE)
    with alone(path):
        lemons = read_lemons(path)
        change(lemons)
        write_lemons(lemons, path)


def write_lemons(lemons: Mapping[str, Lemon], path: Path | None = None) -> None:
    """Raises BadState."""
    entries = [asdict(lemon) for lemon in sorted(lemons.values(), key=lambda lemon: lemon.added_at)]
    write_state(path or state_file(FILE), json.dumps({"mltop_lemons": 1, "lemons": entries}, indent=1))


def known_lemons() -> dict[str, str]:
    """For the rule gpu.lemon. Raises BadState."""
    with contextlib.suppress(NoHome):
        return {gpu: lemon.words for gpu, lemon in read_lemons().items()}
    return {}


def _day(at: float) -> str:
    """ "3 Nov 2026"; "" for none, or for a number that is no time."""
    try:
        return time.strftime("%-d %b %Y", time.localtime(at)) if at else ""
    except (OverflowError, OSError, ValueError):
        return ""
