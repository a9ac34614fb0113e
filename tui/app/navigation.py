"""Where the user is: a pane and what it was opened for.

Where the user is when one GPU is looked at.

Where the user is when the ranks of one collective are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.model import JobKey
from mltop.probes.model.ranks import Ranges


@dataclass(frozen=True)
class Place:
    """``node`` narrows the node and ranks panes; ``job`` and ``ranks`` to a class of stacks, ``pid`` to a rank."""

    pane: str
    node: str = ""
    job: JobKey | None = None
    ranks: Ranges | None = None
    pid: int = 0
    label: str = ""

    @property
    def title(self) -> str:
        return self.label or (self.node if self.pane == "node" and self.node else self.pane)


class Trail:
    """The places Esc goes back through. Switching panes by digit starts a new trail."""

    def __init__(self, first: Place) -> None:
        self._places = [first]

    @property
    def here(self) -> Place:
        return self._places[-1]

    def crumbs(self) -> str:
        """E.g. ``mltop > node01 > ranks``; the first place is only named while the user is there."""
        return " > ".join(["mltop", *(place.title for place in self._places[1:] or self._places)])

    def drill(self, place: Place) -> None:
        if place != self.here:
            self._places.append(place)

    def replace(self, place: Place) -> None:
        """Go beside: Esc goes back to where it would have gone from here."""
        if len(self._places) == 1:
            self._places.append(place)
        else:
            self._places[-1] = place

    def jump(self, place: Place) -> None:
        first = self._places[0]
        self._places = [first] if place.pane == first.pane else [first, place]

    def back(self) -> bool:
        """False when there is nothing to go back to."""
        if len(self._places) == 1:
            return False
        self._places.pop()
        return True


@dataclass(frozen=True)
class GpuPlace(Place):
    """``gpu``: NVML's index on ``node``."""

    gpu: int = 0


def gpu_place(node: str, gpu: int) -> GpuPlace:
    return GpuPlace("gpu", node, label=f"gpu {gpu}", gpu=gpu)


def gpu_of_row(key: str) -> int:
    """The GPU of a row of the GPU table; an instance's row ("3.0") belongs to GPU 3."""
    return int(key.partition(".")[0])


@dataclass(frozen=True)
class ProbePlace(Place):
    """``collective``: the key of its row in the table of sizes."""

    collective: str = ""


def ranks_place(collective: str, label: str) -> ProbePlace:
    return ProbePlace("probes", label=label, collective=collective)
