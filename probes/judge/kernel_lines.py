"""Kinds of kernel lines of many nodes: which of them are new, and which of the new ones to look at first.

What only a few of many like nodes say comes first: what all say is how these machines are.
Source of the idea: imbue-ai/cluster-health, which compares every line with those of machines known to be good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.model.receipt import MOST_TIME_S

COMMON_FROM_NODES = 3  # with fewer there is no telling what is common
COMMON_SHARE = 0.5
INFO = 6
# Nodes are not trusted: what is more than any kernel says is not taken.
MOST_LINES = 20_000  # kinds of one node; a machine has about a thousand
LONGEST_LINE = 2048  # characters; the kernel's own limit is 1,024
MOST_COUNT = 10**12


@dataclass
class KernelLine:
    """One kind of line. ``level``: 0 (emergency) to 7 (debug), the worst seen; times in unix s, None: not known.

    ``nodes``: those that have it; ``example``: the oldest one's text, of ``example_node``. ``known``: it is on the
    allow-list; ``common``: most of the nodes have it.
    """

    pattern: str
    level: int = INFO
    count: int = 0
    first_at: float | None = None
    last_at: float | None = None
    nodes: list[str] = field(default_factory=list)
    example: str = ""
    example_node: str = ""
    known: bool = False
    common: bool = False

    @property
    def is_new(self) -> bool:
        """Never seen on this machine, nor on most of its peers."""
        return not (self.known or self.common)


def merge(by_node: Mapping[str, Sequence[Mapping[str, Any]]], known: Collection[str] = ()) -> list[KernelLine]:
    """All kinds of lines of all nodes, in the order of ``ranked``.

    ``by_node``: what every node's agent found, each with pattern, count, first_at, last_at, level and example; entries
    that are not of that form are skipped. ``known``: patterns of the allow-list.
    """
    merged: dict[str, KernelLine] = {}
    for node, lines in by_node.items():
        for entry in lines[:MOST_LINES]:
            _add(merged, node, entry)
    for line in merged.values():
        line.known = line.pattern in known
        line.common = len(by_node) >= COMMON_FROM_NODES and len(line.nodes) > COMMON_SHARE * len(by_node)
    return ranked(merged.values())


def ranked(lines: Iterable[KernelLine]) -> list[KernelLine]:
    """New ones first; of those what the fewest nodes have, then the worst level, then the newest."""
    return sorted(
        lines, key=lambda line: (not line.is_new, len(line.nodes), line.level, -(line.last_at or 0.0), line.pattern)
    )


def _add(merged: dict[str, KernelLine], node: str, entry: Mapping[str, Any]) -> None:
    pattern = entry.get("pattern")
    if not isinstance(pattern, str) or len(pattern) > LONGEST_LINE:
        return
    line = merged.setdefault(pattern, KernelLine(pattern, level=_whole(entry.get("level"), INFO)))
    line.level = min(line.level, _whole(entry.get("level"), INFO))
    line.count += _whole(entry.get("count"), 1)
    if node not in line.nodes:
        line.nodes.append(node)
    first_at, last_at = _time(entry.get("first_at")), _time(entry.get("last_at"))
    if not line.example or (first_at is not None and (line.first_at is None or first_at < line.first_at)):
        line.example, line.example_node = str(entry.get("example", ""))[:LONGEST_LINE], node
    line.first_at = min(filter(None, (line.first_at, first_at)), default=None)
    line.last_at = max(filter(None, (line.last_at, last_at)), default=None)


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value <= MOST_COUNT else otherwise


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= MOST_TIME_S else None
