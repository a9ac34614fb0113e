"""Where the user is: a pane and what it was opened for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """``node`` narrows the node and ranks panes, ``job`` and ``ranks`` (folded, "0-2,4") one class, ``pid`` a rank."""

    pane: str
    node: str = ""
    job: str = ""
    ranks: str = ""
    pid: int = 0
    label: str = ""

    def crumbs(self) -> str:
        """E.g. ``mltop > node01 > ranks``."""
        what = self.label or ("" if self.pane == "node" and self.node else self.pane)
        return " > ".join(part for part in ("mltop", self.node, what) if part)


class Trail:
    """The places Esc goes back through. Switching panes by digit starts a new trail."""

    def __init__(self, first: Place) -> None:
        self._places = [first]

    @property
    def here(self) -> Place:
        return self._places[-1]

    def drill(self, place: Place) -> None:
        if place != self.here:
            self._places.append(place)

    def jump(self, place: Place) -> None:
        self._places = [self._places[0], place] if place.pane != self._places[0].pane else [self._places[0]]

    def back(self) -> bool:
        """False when there is nothing to go back to."""
        if len(self._places) == 1:
            return False
        self._places.pop()
        return True
