"""NCCL's own view of a job, as one answer of its RAS gives it. Ranks are the communicator's here, never the job's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mltop.probes.model.receipt import MOST_NUMBER, MOST_TIME_S, Refused

MOST_NAME, MOST_KINDS = 200, 64
# Of one rank in one communicator. "init": it is being made; "gone": its RAS thread does not answer, or it is no member.
RasState = Literal["running", "init", "finalize", "abort", "error", "gone"]
RasFormat = Literal["json", "text"]
MOST_RANKS = 1 << 20
MOST_COMMUNICATORS = 65_536


@dataclass(frozen=True)
class RasRank:
    """One rank of one communicator. ``host``: the address of its interface; ``pid`` as it knows itself.

    ``counts``: operations that the host has handed over, by their kind, None: not told. ``error``: NCCL's number of an
    asynchronous one. ``unresponsive``, ``dead``: of one that is "gone", whether its thread does not answer, and whether
    RAS has given it up.
    """

    rank: int
    host: str = ""
    pid: int | None = None
    nvml_dev: int | None = None
    state: RasState = "running"
    counts: tuple[tuple[str, int], ...] | None = None
    error: int | None = None
    unresponsive: bool = False
    dead: bool = False

    @property
    def total(self) -> int | None:
        return None if self.counts is None else sum(count for _, count in self.counts)

    @property
    def place(self) -> tuple[str, int | None, int | None]:
        return self.host, self.pid, self.nvml_dev


@dataclass(frozen=True)
class RasCommunicator:
    """``name``: unique in an answer; ``hash``: as NCCL's log has it. ``size`` ranks, of which ``ranks`` are told.

    ``usual``: of those that are not told one by one the counts, which ``usual_ranks`` have (text tells of few only).
    """

    name: str
    size: int | None = None
    ranks: tuple[RasRank, ...] = ()
    usual: tuple[tuple[str, int], ...] | None = None
    usual_ranks: int = 0
    hash: str = ""


@dataclass(frozen=True)
class RasAnswer:
    """``received_at``: unix s by our clock: NCCL's has neither a zone nor fractions. ``timeouts``: of peers that did
    not answer RAS in time: then it tells of a part only.
    """

    nccl_version: str
    format: RasFormat
    communicators: tuple[RasCommunicator, ...] = ()
    received_at: float = 0.0
    took_s: float = 0.0
    timeouts: int = 0

    @property
    def places(self) -> set[tuple[str, int]]:
        """(host, pid) of every process that it tells of."""
        told = (rank for communicator in self.communicators for rank in communicator.ranks)
        return {(rank.host, rank.pid) for rank in told if rank.pid is not None}


def version_of(text: str) -> tuple[int, ...] | None:
    """(2, 29, 2) of "2.29.2+cuda12.4"; None where it is none."""
    head = "".join(char if char.isdigit() or char == "." else " " for char in text).split()
    parts = head[0].split(".") if head else []
    numbers = tuple(int(part) for part in parts if part.isdigit() and len(part) < 6)
    return numbers if len(numbers) >= 2 and len(numbers) == len(parts) else None


def node_of_hosts(answer: RasAnswer, pids_of: Iterable[tuple[str, frozenset[int]]]) -> dict[str, str]:
    """The node that each host of an answer is: the only one that has all of its processes, and that no other host may
    be. ``pids_of``: (node, pids of ranks there).
    """
    of_host: dict[str, set[int]] = {}
    for host, pid in answer.places:
        of_host.setdefault(host, set()).add(pid)
    nodes = [*pids_of]
    fitting = {host: [node for node, own in nodes if pids <= own] for host, pids in of_host.items()}
    single = {host: names[0] for host, names in fitting.items() if len(names) == 1}
    taken = [*single.values()]
    return {host: node for host, node in single.items() if taken.count(node) == 1}


def admit_answer(answer: RasAnswer) -> None:
    """Looks through one that a node has sent. Raises Refused."""
    if not 0 <= answer.received_at <= MOST_TIME_S or len(answer.communicators) > MOST_COMMUNICATORS:
        raise Refused("its answer of RAS cannot be")
    for communicator in answer.communicators:
        numbers = [communicator.size or 0, communicator.usual_ranks, *(count for _, count in communicator.usual or ())]
        for rank in communicator.ranks:
            numbers += [rank.rank, rank.pid or 0, rank.nvml_dev or 0, *(count for _, count in rank.counts or ())]
            if len(rank.host) > MOST_NAME or len(rank.counts or ()) > MOST_KINDS:
                raise Refused("its answer of RAS cannot be")
        if len(communicator.name) > MOST_NAME or len(communicator.hash) > MOST_NAME:
            raise Refused("its answer of RAS cannot be")
        if len(communicator.ranks) > MOST_RANKS or not all(0 <= number <= MOST_NUMBER for number in numbers):
            raise Refused("its answer of RAS cannot be")
