"""The lemon list: GPUs that the user had trouble with before, by UUID or serial number, and why."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mltop.tui.state.place import BadState, state_file, write_state

FILE = "lemons.json"


@dataclass(frozen=True)
class Lemon:
    """``gpu``: UUID or serial; ``added_at``: unix s."""

    gpu: str
    note: str = ""
    added_at: float = 0.0

    @property
    def words(self) -> str:
        """E.g. "Xid 79, noted 3 Nov 2026"."""
        day = time.strftime("%-d %b %Y", time.localtime(self.added_at)) if self.added_at else ""
        return ", ".join(filter(None, (self.note, f"noted {day}" if day else "")))


def read_lemons(path: Path | None = None) -> dict[str, Lemon]:
    """All entries by UUID or serial. Raises BadState for a file that is not a lemon list."""
    path = path or state_file(FILE)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["lemons"]
        lemons = [Lemon(str(one["gpu"]), str(one.get("note", "")), float(one.get("added_at", 0.0))) for one in entries]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadState(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadState(f"{path}: is not a lemon list (move it away to begin a new one)") from None
    return {lemon.gpu: lemon for lemon in lemons}


def write_lemons(lemons: Mapping[str, Lemon], path: Path | None = None) -> None:
    entries = [asdict(lemon) for lemon in sorted(lemons.values(), key=lambda lemon: lemon.added_at)]
    write_state(path or state_file(FILE), json.dumps({"mltop_lemons": 1, "lemons": entries}, indent=1))


def known_lemons() -> dict[str, str]:
    """For the rule gpu.lemon. Raises BadState."""
    return {gpu: lemon.words for gpu, lemon in read_lemons().items()}
