"""Measured devices: what they are called in a sentence, and their rates beside their own history and their peers'.

What the judges of matmul, memory and copies have in common: who was faster before or is slow among equals is slow, what
others have measured on such hardware is only told.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes.compare import PEER_GAP, Comparison, against_past, slower_than_peers
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.probe import DeviceResult, PastResult, Suspect
from mltop.probes.model.ranks import fold
from mltop.probes.model.units import counted, percent_words, rate_words, span

SENTENCES = 4  # about what is slow: then only how many more there are
LISTED = 3
_NOT_COMPARED = Comparison(0.0)
NEAR_FIGURE = 0.9  # of what others have measured; below it is told, never accused


@dataclass(frozen=True)
class Reason:
    """Why a device is slow. ``kind`` is equal for reasons that may be told of several GPUs at once. ``fault``: one
    whatever others do.
    """

    kind: str
    text: str
    action: str = ""
    fault: bool = False


Result = TypeVar("Result", bound=DeviceResult)
Words = Callable[[float], str]


@dataclass
class Rated(Generic[Result]):
    """One result's rate. Slow is who was faster before, or is slow among its peers.

    ``others``: against all of its group, of which some are no peers; ``reason``: why it is accused.
    """

    result: Result
    rate: float
    history: Comparison
    peers: Comparison
    others: Comparison = _NOT_COMPARED
    reason: Reason | None = None

    @property
    def slow(self) -> bool:
        return self.history.slow is True or self.peers.slow is True

    @property
    def slower(self) -> float:
        """How much slower it is than what shows it: 0.21 for 21 %."""
        if self.slow:
            return self.peers.slower if self.peers.slow else self.history.slower
        return max(0.0, self.others.slower)

    @property
    def by_history(self) -> bool:
        """Accused because it was faster before."""
        return self.history.slow is True and self.peers.slow is not True

    def against(self) -> str:
        """For rates in bytes/s: ``21 % slower than its peers (2310 GB/s against 2930 GB/s)``"""
        than = "its peers" if self.peers.slow else f"its own last {counted(self.history.count, 'result')}"
        usual = self.peers.usual if self.peers.slow else self.history.usual
        figures = "" if usual is None else f" ({rate_words(self.rate)} against {rate_words(usual)})"
        return f"{percent_words(self.slower)} slower than {than}{figures}"


def compared(
    results: Sequence[Result],
    rate_of: Callable[[Result], float | None],
    peer_key: Callable[[Result], Hashable],
    past_key: Callable[[Result], str],
    past: Sequence[PastResult],
) -> list[Rated[Result]]:
    """Each result that has a rate, rated, in their order. Peers have the same key; ``past_key``: the name a result is
    kept under.
    """
    rates = {id(result): rate for result in results if (rate := rate_of(result)) is not None}
    with_rate = [result for result in results if id(result) in rates]
    peers: dict[int, Comparison] = {}
    for alike in grouped(with_rate, peer_key).values():
        peers |= slower_than_peers({id(result): rates[id(result)] for result in alike})
    earlier = grouped(past, lambda past_result: past_result.uuid)
    rated = []
    for result in with_rate:
        rate, uuid = rates[id(result)], result.subject
        history = against_past(uuid, past_key(result), rate, result.versions, earlier.get(uuid, ()))
        rated.append(Rated(result, rate, history, peers[id(result)]))
    return rated


def are_alike(group: Sequence[Rated[Result]]) -> bool:
    rates = [rated.rate for rated in group]
    return min(rates) >= (1 - PEER_GAP) * statistics.median(rates)


def alike(rest: Sequence[Rated[Result]], everyone: Sequence[Result], words: Words) -> str:
    """``7 of 8 GPUs alike at 2930 GB/s``: ``rest``, those of ``everyone`` that are not slow."""
    who = plural(everyone)
    if len(rest) < len(everyone):
        who = f"{len(rest)} of {who}"
    rates = [rated.rate for rated in rest]
    if not are_alike(rest):
        return f"{who} at {span(rates, words)}"
    return f"{who}{' alike' if len(rest) > 1 else ''} at {words(statistics.median(rates))}"


def doubt(rates: Sequence[float], figure: float, certain: bool, causes: str) -> str:
    """What stands behind a comparison with a figure of others. ``causes``: of a difference that accuses nobody."""
    if not certain:
        return "; that figure is not certain"
    return f"; {causes} can make such a difference" if min(rates) < NEAR_FIGURE * figure else ""


def first_sentences(sentences: Sequence[str], more: str = "{} more are slow") -> list[str]:
    left = len(sentences) - SENTENCES
    return [*sentences[:SENTENCES], more.format(left)] if left > 0 else list(sentences)


def suspect(result: DeviceResult, reason: str, action: str) -> Suspect:
    return Suspect(result.node, reason, gpu=result.gpu, uuid=result.uuid, action=action)


def device_name(result: DeviceResult) -> str:
    """``GPU 5 on n03``, ``MIG slice 5f3a… of GPU 5 on n03``, ``CPUs of n03``."""
    if result.kind == "cpu":
        return f"CPUs of {result.node}" if result.node else "CPUs"
    on = f" on {result.node}" if result.node else ""
    gpu = f"GPU {result.gpu}" if result.gpu is not None else f"GPU {result.uuid}"
    if result.kind == "mig":
        return f"MIG slice {result.uuid.removeprefix('MIG-')[:8]} of {gpu}{on}"
    return gpu + on


def devices_name(results: Sequence[DeviceResult]) -> str:
    """``GPUs 0-3 on n03``, ``GPUs 1,5 on n03 and GPU 2 on n07``, ``CPUs of h[01-04]``."""
    if len(results) == 1:
        return device_name(results[0])
    if all(result.kind == "cpu" for result in results):
        return f"CPUs of {folded(result.node for result in results)}"
    names: list[str] = []
    alike: dict[str, list[str]] = {}  # of nodes with the same GPUs
    for node, members in grouped(results, lambda result: result.node).items():
        gpus = known(member.gpu for member in members if member.kind == "gpu")
        if len(gpus) == len(members) > 1:
            alike.setdefault(fold(gpus), []).append(node)
        else:
            names += map(device_name, members)
    for numbers, nodes in alike.items():
        on = f" on {'each of ' if len(nodes) > 1 else ''}{folded(nodes)}" if any(nodes) else ""
        names.append(f"GPUs {numbers}{on}")
    return listed(names)


def plural(results: Sequence[DeviceResult]) -> str:
    """``GPUs``, ``MIG slices``, ``nodes``: what so many devices of one kind are counted as."""
    kinds = {result.kind for result in results}
    word = "MIG slice" if kinds == {"mig"} else "CPU node" if kinds == {"cpu"} else "GPU"
    return counted(len(results), word)


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b, c and 5 more``."""
    if len(items) <= 1:
        return "".join(items)
    if len(items) > LISTED + 1:
        return f"{', '.join(items[:LISTED])} and {len(items) - LISTED} more"
    return f"{', '.join(items[:-1])} and {items[-1]}"
