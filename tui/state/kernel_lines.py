"""The allow-list of kernel lines: the kinds that were seen on good machines, learned by `mltop kernel --learn`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mltop.tui.state import BadState, alone, read_state, state_file, write_state

FILE = "kernel-lines.json"
MOST = 50_000  # a machine has about a thousand
MOST_BYTES = 64 << 20
_MOST_COLONS = 4 * MOST  # one behind every pattern, and some within: entries are counted before they are made


@dataclass
class _List:
    patterns: dict[str, float]


def read_known(path: Path | None = None) -> dict[str, float]:
    """When each pattern was learned (unix s). Raises BadState for a file that is not such a list."""
    import msgspec

    path = path or state_file(FILE)
    data = read_state(path, MOST_BYTES)
    if data is None:
        return {}
    try:
        if data.count(b'":') > _MOST_COLONS:
            raise ValueError("more entries than are ever written")
        return msgspec.json.decode(data, type=_List).patterns
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadState(f"{path}: is not a list of kernel lines (move it away to begin a new one)") from None


def learn(patterns: Iterable[str], now: float, known: Mapping[str, float], path: Path | None = None) -> None:
    """Write the list anew with ``patterns`` in it (``now``: unix s). Raises BadState.

    Of too many those are forgotten that were learned, again and again, the longest ago.
    """
    path = path or state_file(FILE)
    with alone(path):
        # Another mltop may have learned since ``known`` was read.
        learned = {**known, **read_known(path), **dict.fromkeys(patterns, now)}
        newest = sorted(learned.items(), key=lambda entry: -entry[1])[:MOST]
        text = json.dumps({"mltop_kernel_lines": 1, "patterns": dict(sorted(newest))}, indent=0, ensure_ascii=False)
        write_state(path, text)
