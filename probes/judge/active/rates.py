"""One rate of a device beside its own history and its peers: what memory and copies have in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mltop.probes.judge.active import numbers
from mltop.probes.judge.active.compare import PEER_GAP, Comparison, against_past, slower_than_peers
from mltop.probes.judge.active.devices import plural
from mltop.probes.judge.active.past import subject
from mltop.probes.model.probe import DeviceResult, PastResult


@dataclass(frozen=True)
class RateLook:
    """``rate``: bytes/s. Slow is who was faster before, or is slow among its peers."""

    result: DeviceResult
    rate: float
    history: Comparison
    peers: Comparison

    @property
    def slow(self) -> bool:
        return self.history.slow is True or self.peers.slow is True

    @property
    def slower(self) -> float:
        """By how much, of what it is slow by: 0.21 for 21 %."""
        return self.peers.slower if self.peers.slow else self.history.slower

    @property
    def usual(self) -> float | None:
        return self.peers.usual if self.peers.slow else self.history.usual

    def against(self) -> str:
        """``21 % slower than its peers (2310 against 2930 GB/s)``"""
        own = f"its own last {numbers.many(self.history.count, 'result')}"
        than = "its peers" if self.peers.slow else own
        usual = "" if self.usual is None else f" ({numbers.rate(self.rate)} against {numbers.rate(self.usual)})"
        return f"{numbers.percent(self.slower)} slower than {than}{usual}"


def looks(
    rates: Mapping[int, float],
    results: Sequence[DeviceResult],
    keys: Mapping[int, Hashable],
    past_keys: Mapping[int, str],
    past: Sequence[PastResult],
) -> dict[int, RateLook]:
    """By place in ``results``. Peers have the same key; ``past_keys``: under which name results are kept."""
    groups: dict[Hashable, dict[int, float]] = {}
    for place, rate in rates.items():
        groups.setdefault(keys[place], {})[place] = rate
    earlier: dict[str, list[PastResult]] = {}
    for one in past:
        earlier.setdefault(one.uuid, []).append(one)
    found = {}
    for values in groups.values():
        peers = slower_than_peers(values)
        for place, rate in values.items():
            result, of = results[place], subject(results[place])
            history = against_past(of, past_keys[place], rate, result.versions, earlier.get(of, ()))
            found[place] = RateLook(result, rate, history, peers[place])
    return found


def span(rates: Iterable[float]) -> str:
    """``2890–2960 GB/s``"""
    known = sorted(rates)
    least, most = numbers.rate(known[0]), numbers.rate(known[-1])
    if least == most:
        return most
    return f"{least.split()[0]}–{most}" if least.split()[1] == most.split()[1] else f"{least}–{most}"


def alike(group: Sequence[RateLook], of: int) -> str:
    """``7 of 8 GPUs alike at 2930 GB/s``; ``of``: how many there are with those that are slow."""
    rates = sorted(look.rate for look in group)
    middle = rates[len(rates) // 2]
    who = plural([look.result for look in group])
    if of > len(group):
        who = f"{len(group)} of {of} {who.split(' ', 1)[1].rstrip('s')}s"
    if rates[0] >= (1 - PEER_GAP) * middle:
        return f"{who}{' alike' if len(group) > 1 else ''} at {numbers.rate(middle)}"
    return f"{who} at {span(rates)}"


def unknown_past(look: RateLook) -> str:
    """What one device alone could be compared with."""
    if look.history.slow is False:
        return f", as in its last {numbers.many(look.history.count, 'result')}"
    return ", nothing to compare it with"
