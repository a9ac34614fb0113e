"""Which node of many is bad: an all-reduce in pairs of nodes, round after round, and what that has found.

Disjoint random pairs first, then each suspect with a node that is known to be good. Where no good node can be told,
or paths between nodes are in question, every pair once (the circle method of round-robin tournaments).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from mltop.probes.judge.nodes import folded, natural
from mltop.probes.judge.probes.devices import NEAR_FIGURE, SENTENCES
from mltop.probes.judge.probes.hardware.peaks import Expected
from mltop.probes.judge.values import grouped, known, median_of
from mltop.probes.model.probe import PairResult, ProbeVerdict, Suspect
from mltop.probes.model.units import counted, percent_span_words, percent_words, rate_words, size_words

GOOD = 0.91  # of the reference; healthy pairs vary by 2 %, a bad node costs 15 % and more
REFERENCE = 0.75  # of the nodes' best values lie below the reference: up to that many may be bad
SETTLED_PAIRS = 2  # bad ones, one of them with a good node: then a node is bad

PairKey = frozenset[str]


class Levels:
    """The best measurement of each pair (of the largest size): a slow one may have been disturbed.

    ``values``: busbw by pair, None where it failed; ``results``: what they come from; ``measured``: how often;
    ``reference``: None when nothing worked; ``good``: nodes with a good pair.
    """

    def __init__(self, nodes: Sequence[str], results: Sequence[PairResult]) -> None:
        self.nodes = list(nodes)
        of_pairs = grouped(results, lambda result: frozenset(result.nodes))
        self._all = [(frozenset(result.nodes), result.busbw_bytes_per_s or 0.0) for result in results]

        def worth(result: PairResult) -> tuple[bool, int, float]:
            return (result.busbw_bytes_per_s is not None, result.size_bytes, result.busbw_bytes_per_s or 0.0)

        self.results = {key: max(of_pair, key=worth) for key, of_pair in of_pairs.items()}
        self.measured = {key: len({result.round for result in of_pair}) for key, of_pair in of_pairs.items()}
        self.values = {key: result.busbw_bytes_per_s for key, result in self.results.items()}
        self.best = dict.fromkeys(nodes, 0.0)
        for key, value in self.values.items():
            for node in key:
                self.best[node] = max(self.best.get(node, 0.0), value or 0.0)
        self.reference = self._reference()
        self.good = {node for node in nodes if self.is_fast(self.best[node])}

    def is_good(self, node: str, other: str) -> bool:
        return self.is_fast(self.values.get(frozenset((node, other))))

    def only_good(self) -> PairKey | None:
        """The pair that alone was good, and once: all that is said of the others rests on that measurement."""
        good = [key for key, value in self._all if self.is_fast(value)]
        return good[0] if len(good) == 1 else None

    def values_of(self, pair: PairKey) -> list[float]:
        """What was measured of this pair, in order, without failures."""
        return [value for key, value in self._all if key == pair and value]

    def works(self, node: str) -> bool:
        """Whether it worked with anybody: then it is slow at most, which may be noise; a failure is not."""
        return self.best[node] > 0

    def partners(self, node: str) -> list[str]:
        """Whom it was measured with."""
        return [other for key in self.values if node in key for other in key if other != node]

    def is_bad(self, node: str) -> bool:
        """Whether it is known that a node has no good pair: in pairs enough, one of them with a good node."""
        partners = self.partners(node)
        return node not in self.good and len(partners) >= SETTLED_PAIRS and not self.good.isdisjoint(partners)

    def is_fast(self, value: float | None) -> bool:
        return value is not None and self.reference is not None and value >= GOOD * self.reference

    def _reference(self) -> float | None:
        """The third quartile of the nodes' best values (nearest rank), of those that were measured at all."""
        seen = {node for key in self.values for node in key}
        best = sorted(self.best[node] for node in self.nodes if node in seen)
        if not best:
            return None
        value = best[max(0, math.ceil(REFERENCE * len(best)) - 1)]
        return value if value > 0 else next((value for value in best if value > 0), None)


# Who measures with whom.

Pair = tuple[str, str]

ALWAYS_ALL = 8  # so few nodes: half of them may be bad, and every pair takes seven rounds
MAY_DOUBT = (3, 4)  # so few nodes, half of them bad: one good pair is left
CROWDED_SHARE = 0.3  # of a round's pairs: more bad ones may be the shared network, not so many nodes
CROWDED_PAIRS = 8  # at once, at least
QUARTER = 4
UNCLEAR_SHARE = 0.5  # of the first pairs, at least, are bad: the best ones may be bad too
ALL_IF_HALF_BAD = 16  # so few nodes: every pair then
UNCLEAR_ROUNDS = 8  # of the circle, of more nodes


@dataclass(frozen=True)
class PairSearch:
    """The plan. It keeps nothing: what to do next follows from the results so far.

    ``round_robin``: every pair, for faults of links.
    """

    nodes: Sequence[str]
    round_robin: bool = False

    def next_round(self, results: Sequence[PairResult]) -> list[Pair]:
        """Pairs to measure at the same time; [] when it is finished.

        ``results``: of every pair of every round before, in their order, ``round`` counting the rounds.
        """
        if len(self.nodes) < 2:
            return []
        plan = _Plan(self.nodes, results)
        if self.round_robin or len(self.nodes) <= ALWAYS_ALL:
            first_round = circle_rounds(plan.nodes)[0]
            pairs = plan.unmeasured(first_round) or plan.crowded(first_round) or plan.circle(len(self.nodes))
        else:
            pairs = plan.first() or plan.crowded(plan.disjoint()) or plan.unclear() or plan.suspects()
        return pairs or plan.doubted()

    def most_rounds(self) -> int:
        """How many rounds it takes when nothing has to be repeated: 3, or one for each node and one for a doubt."""
        count = len(self.nodes)
        if count < 2:
            return 0
        return count - 1 + count % 2 + (count in MAY_DOUBT) if self.round_robin or count <= ALWAYS_ALL else 3


def circle_rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Every pair once: n-1 rounds of n/2 pairs, n rounds for an odd n, where one node rests in each."""
    seats: list[str | None] = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    rounds = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        rounds.append([(node, other) for node, other in pairs if node is not None and other is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


class _Plan(Levels):
    """One look at the results so far."""

    def __init__(self, nodes: Sequence[str], results: Sequence[PairResult]) -> None:
        # Neighbours in a rack are often bad together: their order says nothing here. Equal for equal names.
        order = sorted(nodes)
        random.Random(",".join(order)).shuffle(order)
        super().__init__(order, results)

    def first(self) -> list[Pair]:
        """Disjoint pairs; with an odd number of nodes the last one meets the first in a round of its own."""
        left_over = [(self.nodes[-1], self.nodes[0])] if len(self.nodes) % 2 else []
        return self.unmeasured(self.disjoint()) or self.unmeasured(left_over)

    def crowded(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The bad ones of these pairs again, a quarter of all at once, when many are bad and many were measured at
        once. Those that were measured again were bad.
        """
        measured = self.measured
        bad = [pair for pair in pairs if measured[frozenset(pair)] > 1 or not self.is_good(*pair)]
        if len(pairs) < CROWDED_PAIRS or len(bad) <= CROWDED_SHARE * len(pairs):
            return []
        return [pair for pair in bad if measured[frozenset(pair)] < 2][: len(pairs) // QUARTER]

    def unclear(self) -> list[Pair]:
        """Every pair when so many are bad that the best ones may be bad too; of many nodes some rounds of them."""
        count = len(self.nodes)
        if self._bad_share(self.disjoint()) < UNCLEAR_SHARE:
            return []
        return self.circle(count if count <= ALL_IF_HALF_BAD else UNCLEAR_ROUNDS)

    def suspects(self) -> list[Pair]:
        """Each node without a good pair, with a good node that it has not met, until it is known to be bad or good."""
        free = [node for node in self.nodes if node in self.good]
        pairs: list[Pair] = []
        for node in self.nodes:
            met = set(self.partners(node))
            partner = next((candidate for candidate in free if candidate not in met), None)
            if partner is not None and node not in self.good and not self.is_bad(node):
                free.remove(partner)
                pairs.append((node, partner))
        return pairs[: self._few]

    def doubted(self) -> list[Pair]:
        """The only good pair once more, when nodes are slow by comparison with nothing but that."""
        only = self.only_good()
        slow = any(self.is_bad(node) and self.works(node) for node in self.nodes)
        if only is None or self.measured[only] > 1 or not slow:
            return []
        first, second = sorted(only)
        return [(first, second)]

    def circle(self, rounds: int) -> list[Pair]:
        of_rounds = map(self.unmeasured, circle_rounds(self.nodes)[:rounds])
        return next((pairs for pairs in of_rounds if pairs), [])

    def disjoint(self) -> list[Pair]:
        return list(zip(self.nodes[::2], self.nodes[1::2], strict=False))

    def unmeasured(self, pairs: Iterable[Pair]) -> list[Pair]:
        return [pair for pair in pairs if frozenset(pair) not in self.values][: self._few]

    @cached_property
    def _few(self) -> int:
        """A quarter at once from then on, when a repetition has shown that fewer at once are faster."""
        again = [sorted(key) for key, count in self.measured.items() if count > 1]
        at_once = len(self.nodes) // 2
        return at_once if not again or 2 * self._bad_share(again) > 1 else max(1, at_once // QUARTER)

    def _bad_share(self, pairs: Sequence[Sequence[str]]) -> float:
        return sum(not self.is_good(*pair) for pair in pairs) / len(pairs) if pairs else 0.0


# Who is bad.

BAD_LINK = 0.9  # of the median of pairs of good nodes
MOSTLY_BAD = 0.5  # of a node's pairs with good nodes: then the node is bad, not so many paths
MOSTLY_BAD_PAIRS = 3  # at least
MINORITY = 0.25  # of the nodes may be bad in this way; more are parts of a network
_CHECK_NODE = "drain it; check its NICs and cables (ibstat, ethtool -S), its PCIe links, and mltop check -w {node}"
_CHECK_PATH = "check the switches and cables between them (ibdiagnet, or the fabric's counters)"


def judge_pairs(nodes: Sequence[str], results: Sequence[PairResult], expected: Expected | None = None) -> ProbeVerdict:
    """``results``: of all rounds, as PairSearch took them. ``expected``: busbw of two such nodes at this size.

    A node is accused when none of its pairs is as good as those of others; a path when both its nodes are fine with
    others. When all are alike, nobody is.
    """
    levels = Levels(nodes, results)
    if levels.reference is None:
        reasons = Counter(result.why for result in results if result.why)
        why = f": {reasons.most_common(1)[0][0]}" if reasons else ""
        return ProbeVerdict(
            f"none of {counted(len(results), 'pair')} worked{why}" if results else "no pair was measured"
        )
    # The median of the good pairs of good nodes; the search's reference when no two good ones were paired.
    fast = (value for key, value in levels.values.items() if key <= levels.good and levels.is_fast(value))
    usual = median_of(fast) or levels.reference or 0.0
    bad = list(filter(levels.is_bad, nodes))
    doubt = _doubt(bad, levels)
    bad = [node for node in bad if not (doubt and levels.works(node))]
    of_good = ((key, value) for key, value in levels.values.items() if key <= levels.good)
    slow = [key for key, value in of_good if value is None or value < BAD_LINK * usual]
    links = sorted(slow, key=lambda key: [natural(node) for node in sorted(key, key=natural)])
    mostly = _mostly_bad(levels, links)
    links = [key for key in links if key.isdisjoint(mostly)]
    suspects = [_node(node, levels, usual) for node in sorted([*bad, *mostly], key=natural)]
    fine = len(levels.good) - len(mostly)
    parts = [_headline(nodes, fine, usual, levels, bool(suspects or links))]
    parts += [f"{accused.node} {accused.reason}" for accused in suspects[:SENTENCES]]
    rest = suspects[SENTENCES:]
    parts += [f"and {len(rest)} more: {folded(accused.node for accused in rest)}"] if rest else []
    paths = _paths(links)
    parts += [f"the path between {path} is slow, both ends are fine with others" for path in paths[:SENTENCES]]
    suspects += [_path_suspect(key, levels, usual) for key in links]
    verdict = ProbeVerdict(doubt if doubt and not suspects else "; ".join(parts), suspects, [])
    _say_expected(verdict, usual, expected)
    verdict.details += _details(levels, bad)
    return verdict


def _doubt(bad: Sequence[str], levels: Levels) -> str:
    """Why nodes are not called slow: what they were compared with was not measured a second time."""
    only = levels.only_good()
    if only is None or not any(levels.works(node) for node in bad):
        return ""
    node, other = sorted(only, key=natural)
    values = levels.values_of(only)
    if len(values) < 2:
        return f"nobody can be accused: only {node} – {other} was fast, and was measured once"
    rates = " and ".join(rate_words(value) for value in values)
    return f"nobody can be accused: only {node} – {other} was fast, and not each time ({rates})"


def _mostly_bad(levels: Levels, links: Sequence[PairKey]) -> list[str]:
    """Good nodes of which most pairs are bad. When many are so, two parts of the network are badly connected."""
    counts = Counter(node for key in links for node in key)
    pairs = {node: sum(other in levels.good for other in levels.partners(node)) for node in counts}
    enough = [node for node in counts if pairs[node] >= MOSTLY_BAD_PAIRS]
    mostly_bad = [node for node in enough if counts[node] > MOSTLY_BAD * pairs[node]]
    return mostly_bad if len(mostly_bad) <= max(1.0, MINORITY * len(levels.nodes)) else []


def _node(node: str, levels: Levels, usual: float) -> Suspect:
    pairs = [result for key, result in levels.results.items() if node in key]
    values = [result.busbw_bytes_per_s for result in pairs]
    bad = [value for value in values if value is None or value < BAD_LINK * usual] or values
    rates = known(bad)
    count = f"in {len(bad)} of its {len(pairs)} pairs" if len(bad) < len(pairs) else f"in all {len(pairs)} of its pairs"
    if len(pairs) == 1:
        count = "in its only pair"
    if not rates:
        why = next((result.why for result in pairs if result.busbw_bytes_per_s is None and result.why), "no reason")
        reason = f"fails {count}: {why}"
    else:
        much = percent_span_words(1 - value / usual for value in rates)
        failed = f", {len(bad) - len(rates)} more failed" if len(rates) < len(bad) else ""
        reason = f"is {much} slower than the others {count}{failed}"
    return Suspect(node, reason, action=_CHECK_NODE.format(node=node))


def _path_suspect(key: PairKey, levels: Levels, usual: float) -> Suspect:
    node, other = sorted(key, key=natural)
    value = levels.values[key]
    how = f"fails ({levels.results[key].why or 'no reason'})"
    if value is not None:
        how = f"is {percent_words(1 - value / usual)} slower than others"
    return Suspect(f"{node} – {other}", f"the path between them {how}, both are fine with others", action=_CHECK_PATH)


def _paths(links: Sequence[PairKey]) -> list[str]:
    """``h03 and h05``; where all of some nodes are bad with all of others: ``h[01-04] and h[05-08]``."""
    partners: dict[str, frozenset[str]] = {}
    for key in links:
        for node in key:
            partners[node] = partners.get(node, frozenset()) | key - {node}
    sides = grouped(sorted(partners, key=natural), lambda node: partners[node])
    covered: set[PairKey] = set()
    paths = []
    for others, nodes in sides.items():
        new = {frozenset((node, other)) for node in nodes for other in others} - covered
        if new:
            covered |= new
            left = {other for key in new for other in key if other in others}
            paths.append(f"{folded(nodes)} and {folded(left)}")
    return paths


def _headline(nodes: Sequence[str], fine: int, usual: float, levels: Levels, faulty: bool) -> str:
    size = max((result.size_bytes for result in levels.results.values()), default=0)
    of_size = f" at {size_words(size)}" if size else ""
    count = counted(len(nodes), "node") if not faulty else f"{fine} of {counted(len(nodes), 'node')}"
    alike = "fine" if faulty else "alike"
    return f"{count} {alike} in pairs: {rate_words(usual)} busbw{of_size}"


def _say_expected(verdict: ProbeVerdict, usual: float, expected: Expected | None) -> None:
    """Two nodes' figure: in the sentence when it is certain and clearly missed, else for information."""
    if expected is None or not expected.bytes_per_s:
        return
    share = usual / expected.bytes_per_s
    line = f"{percent_words(share)} of the {rate_words(expected.bytes_per_s)} known for two ({expected.source})"
    if expected.certain and share < NEAR_FIGURE and not verdict.suspects:
        verdict.text += f"; all are slow: {line}"
    else:
        verdict.details.append(line if expected.certain else f"{line}; that figure is not certain")


def _details(levels: Levels, bad: Sequence[str]) -> list[str]:
    lines = [f"{counted(len(levels.values), 'pair')} measured"]
    if len(levels.nodes) == 2:
        lines.append("two nodes cannot be compared with each other: a third one shows which of them is slow")
    again = sum(count > 1 for count in levels.measured.values())
    if again:
        lines.append(f"{again} of them twice, fewer at a time: many were slow or failed when all ran at once")
    seen = {node for key in levels.values for node in key}
    unmeasured = [node for node in levels.nodes if node not in seen]
    if unmeasured:
        lines.append(f"not measured: {folded(unmeasured)}")
    unsettled = [node for node in levels.nodes if node in seen - levels.good and node not in bad]
    if unsettled:
        lines.append(f"unclear, never paired with a good node: {folded(unsettled)}")
    return lines
