"""The allow-list of kernel lines: the kinds that were seen on good machines, learned by `mltop kernel --learn`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from mltop.tui.state.place import BadState, state_file, write_state

FILE = "kernel-lines.json"
MOST = 50_000  # a machine has about a thousand


def read_known(path: Path | None = None) -> dict[str, float]:
    """When each pattern was learned (unix s). Raises BadState for a file that is not such a list."""
    path = path or state_file(FILE)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["patterns"]
        return {str(pattern): float(learned_at) for pattern, learned_at in entries.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadState(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadState(f"{path}: is not a list of kernel lines (move it away to begin a new one)") from None


def learn(patterns: Iterable[str], now: float, known: Mapping[str, float], path: Path | None = None) -> None:
    """Write the list anew with ``patterns`` in it (``now``: unix s). Raises BadState.

    Of too many those are forgotten that were learned, again and again, the longest ago.
    """
    learned = {**known, **dict.fromkeys(patterns, now)}
    newest = sorted(learned.items(), key=lambda entry: -entry[1])[:MOST]
    text = json.dumps({"mltop_kernel_lines": 1, "patterns": dict(sorted(newest))}, indent=0, ensure_ascii=False)
    write_state(path or state_file(FILE), text)
