"""How long copies take: in batches, within a budget, and never waiting for ever.

The measurement of all GPUs of a node: to device, to host, together, from GPU to GPU.

A device that fails is left out from then on, its reason is in its result's gaps. A copy that hangs ends everything:
nothing that is asked of these GPUs afterwards may be expected to answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Protocol

from mltop.probes.active.nvml import NO_LINK, Link
from mltop.probes.model.probe import CopiesResult, PeerCopy, Phase

BATCH = 5
WARM_COPIES = 2
POLL_S = 0.002


class Stalled(Exception):
    """Copies that did not end; what was begun on these devices after them will not end either."""


class Running(Protocol):
    """Copies that were begun. ``seconds``: of all of them, by the device's clock, once they are done."""

    def done(self) -> bool: ...

    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Plan:
    """``budget_s``: for all batches of one device (or of all at once); ``stall_s``: for a batch."""

    size_bytes: int
    iterations: int
    budget_s: float
    stall_s: float


@dataclass
class Timed:
    copies: int = 0
    seconds: float = 0.0

    def rate(self, size_bytes: int) -> float | None:
        """Bytes/s."""
        return self.copies * size_bytes / self.seconds if self.seconds > 0 else None


Begin = Callable[[int], Running]


def timed(begins: Sequence[Begin], plan: Plan, look: Callable[[], None] = lambda: None) -> list[Timed]:
    """What each of several copies takes while all of them run; ``begin(count)`` begins some. Raises Stalled.

    ``look`` is called again and again while they run.
    """
    wait([begin(WARM_COPIES) for begin in begins], plan.stall_s, look)
    found = [Timed() for _ in begins]
    began, done = time.monotonic(), 0
    while done < plan.iterations and (done == 0 or time.monotonic() - began < plan.budget_s):
        count = min(BATCH, plan.iterations - done)
        running = [begin(count) for begin in begins]
        wait(running, plan.stall_s, look)
        for timing, one in zip(found, running):
            timing.copies += count
            timing.seconds += one.seconds()
        done += count
    return found


def wait(running: Sequence[Running], stall_s: float, look: Callable[[], None]) -> None:
    deadline_s = time.monotonic() + stall_s
    look()
    while not all(one.done() for one in running):
        if time.monotonic() > deadline_s:
            raise Stalled(f"a copy did not end within {stall_s:g} s")
        time.sleep(POLL_S)
        look()


WAYS = {"to_device": "to device", "to_host": "to host"}
PEER_ITERATIONS = 10


class Node(Protocol):
    """The GPUs of a node by their place (0, 1, …). Every call may raise RuntimeError."""

    def start(self, place: int, way: str, copies: int) -> Running:
        """``way``: to_device | to_host."""

    def arrived(self, place: int, way: str) -> bool:
        """Whether the last copies that way moved every bit."""

    def reaches(self, source: int, target: int) -> bool:
        """Whether a GPU can write to another one's memory."""

    def start_peer(self, source: int, target: int, copies: int) -> Running: ...

    def peer_arrived(self, target: int) -> bool:
        """Whether the last copies to it moved every bit; the next ones start from zeros."""


class Links(Protocol):
    def now(self, uuid: str) -> Link: ...


Progress = Callable[[str, float], None]  # stage, share of it that is done


class Measurement:
    """``results``: one for each GPU of ``node``, in order; they are filled in. ``plans``: by stage."""

    def __init__(
        self, node: Node, results: Sequence[CopiesResult], links: Links, plans: dict[str, Plan], progress: Progress
    ) -> None:
        self._node, self._results, self._links = node, results, links
        self._plans, self._progress = plans, progress
        self._broken: set[int] = set()

    def run(self) -> str:
        """What ended it early, "" when nothing did."""
        try:
            for way in WAYS:
                self._alone(way)
            self._together()
            self._peers()
        except Stalled as error:
            return str(error)
        return ""

    def _alone(self, way: str) -> None:
        name = WAYS[way]
        for place, result in enumerate(self._results):
            self._progress(name, place / len(self._results))
            seen = [NO_LINK]

            def look(uuid: str = result.uuid, seen: list[Link] = seen) -> None:
                seen[0] = seen[0].best(self._links.now(uuid))

            found = self._try([place], way, self._plans[name], look)
            if found is None:
                continue
            rate, copies, seconds = found[0]
            setattr(result, f"{way}_bytes_per_s", rate)
            result.iterations = min(filter(None, (result.iterations, copies)), default=copies)
            result.phases.append(Phase(name, round(seconds, 6), pcie_gen=seen[0].gen, pcie_width=seen[0].width))
            self._check(place, way)

    def _together(self) -> None:
        """At the same time: shared switches, sockets and host memory show only then."""
        if len(self._results) < 2:
            return
        for number, way in enumerate(WAYS):
            self._progress("together", number / len(WAYS))
            places = [place for place in range(len(self._results)) if place not in self._broken]
            found = self._try(places, way, self._plans["together"], lambda: None, "together")
            for place, (rate, _, _) in zip(places, found or ()):
                setattr(self._results[place], f"{way}_together_bytes_per_s", rate)
                self._check(place, way)

    def _peers(self) -> None:
        count = len(self._results)
        pairs = [(source, target) for source in range(count) for target in range(count) if source != target]
        for number, (source, target) in enumerate(pairs):
            self._progress("peers", number / len(pairs))
            if not {source, target} & self._broken:
                self._pair(source, target)

    def _pair(self, source: int, target: int) -> None:
        plan = self._plans["peers"]
        copy = PeerCopy(self._index(target))
        self._results[source].peers.append(copy)
        try:
            copy.direct = self._node.reaches(source, target)
            (found,) = timed([lambda count: self._node.start_peer(source, target, count)], plan)
            copy.bytes_per_s = found.rate(plan.size_bytes)
            whole = self._node.peer_arrived(target)
            copy.intact = whole if self._results[source].intact else None  # else what is sent may be wrong already
        except RuntimeError as error:
            copy.why = _first_line(error)
        except Stalled as error:
            copy.why = str(error)
            raise Stalled(f"{error} (GPU {self._index(source)} to GPU {copy.to_gpu})") from None

    def _try(
        self, places: list[int], way: str, plan: Plan, look: Callable[[], None], stage: str = ""
    ) -> list[tuple[float | None, int, float]] | None:
        """(bytes/s, copies, seconds) of each; None when one of them failed. Raises Stalled."""
        name = stage or WAYS[way]
        places = [place for place in places if place not in self._broken]
        begins: list[Begin] = [
            lambda count, place=place: self._node.start(place, way, count)  # type: ignore[misc]
            for place in places
        ]
        if not begins:
            return None
        try:
            found = timed(begins, plan, look)
        except RuntimeError as error:
            for place in places:
                self._results[place].gaps[name] = _first_line(error)
            self._broken.update(places if len(places) == 1 else ())
            return None
        except Stalled as error:
            for place in places:
                self._results[place].gaps[name] = str(error)
            which = f" (GPU {self._index(places[0])}, {name})" if len(places) == 1 else f" ({name}, all at once)"
            raise Stalled(f"{error}{which}") from None
        return [(one.rate(plan.size_bytes), one.copies, one.seconds) for one in found]

    def _check(self, place: int, way: str) -> None:
        result = self._results[place]
        try:
            result.intact = self._node.arrived(place, way) and result.intact is not False
        except RuntimeError as error:
            result.gaps["intact"] = _first_line(error)
            self._broken.add(place)

    def _index(self, place: int) -> int:
        index = self._results[place].gpu
        return place if index is None else index


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
