"""The nodes that the user has marked; an action of a key goes to them, or to all when none is marked."""

from __future__ import annotations

from collections.abc import Iterable


class Selection:
    """Lives in the UI loop only. Order of marking does not matter; nodes that are gone are simply not asked."""

    def __init__(self) -> None:
        self._nodes: set[str] = set()

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted(self._nodes))

    def toggle(self, node: str) -> None:
        self._nodes ^= {node}

    def mark(self, nodes: Iterable[str]) -> None:
        self._nodes.update(nodes)

    def clear(self) -> bool:
        """False when nothing was marked."""
        had_some = bool(self._nodes)
        self._nodes.clear()
        return had_some
