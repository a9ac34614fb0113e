"""Where the user is, a pane and what it was opened for, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.model import JobKey
from mltop.probes.model.ranks import Ranges

HELP = "help"


@dataclass(frozen=True)
class Location:
    """``node`` narrows the node and ranks panes, ``gpu`` (NVML's index) to one of its GPUs, ``pid`` to a rank; ``job``
    and ``ranks`` to a class of stacks; ``collective`` (the key of its row among the sizes of a probe) to the ranks of
    one collective; ``incident`` is the id of the one to show, ``event`` the key of one; ``part``: what the
    pane shows alone.
    """

    pane: str
    node: str = ""
    job: JobKey | None = None
    ranks: Ranges | None = None
    pid: int = 0
    gpu: int | None = None
    collective: str = ""
    incident: str = ""
    event: str = ""
    part: str = ""
    label: str = ""

    @property
    def title(self) -> str:
        return self.label or (self.node if self.pane == "node" and self.node else self.pane)


def gpu_location(node: str, gpu: int) -> Location:
    return Location("gpu", node, gpu=gpu, label=f"gpu {gpu}")


def incident_location(key: str) -> Location:
    return Location("incidents", incident=key, label="incident")


def gpu_of_row(key: str) -> int:
    """The GPU of a row of the GPU table; an instance's row ("3.0") belongs to GPU 3."""
    return int(key.partition(".")[0])


class Trail:
    """The locations Esc goes back through. Switching panes by digit starts a new trail."""

    def __init__(self, first: Location) -> None:
        self._locations = [first]

    @property
    def here(self) -> Location:
        return self._locations[-1]

    @property
    def before(self) -> Location:
        """Where Esc leads."""
        return self._locations[-2] if len(self._locations) > 1 else self.here

    @property
    def depth(self) -> int:
        """1 where Esc goes nowhere."""
        return len(self._locations)

    def crumbs(self) -> str:
        """E.g. ``node01 > ranks``; the first is only named while the user is there, the help never beside others."""
        places = [self.here] if self.here.pane == HELP else self._locations[1:] or self._locations
        return " > ".join(location.title for location in places)

    def drill(self, location: Location) -> None:
        """What is opened from the help starts where the user was before it."""
        if self.here.pane == HELP and location.pane != HELP:
            self.back()
        if location != self.here:
            self._locations.append(location)

    def replace(self, location: Location) -> None:
        """Go to a neighbour: Esc goes back to where it would have gone from here."""
        self._locations[1:] = [*self._locations[1:-1], location]

    def jump(self, location: Location) -> None:
        first = self._locations[0]
        self._locations = [first] if location.pane == first.pane else [first, location]

    def back(self) -> bool:
        """Go back one step; False where there is none."""
        if len(self._locations) == 1:
            return False
        self._locations.pop()
        return True
