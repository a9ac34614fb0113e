"""What a search over pairs of nodes has found: bad nodes, or paths that are bad between good nodes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from mltop.probes.judge.active import numbers
from mltop.probes.judge.active.expected import Expected
from mltop.probes.judge.active.nodes import folded, natural
from mltop.probes.judge.active.pair_levels import GOOD, Levels, PairKey
from mltop.probes.model.probe import PairResult, ProbeVerdict, Suspect

BAD_LINK = 0.9  # of the median of pairs of good nodes
MOSTLY_BAD = 0.5  # of a node's pairs with good nodes: then the node is bad, not so many paths
MOSTLY_BAD_PAIRS = 3  # at least
MINORITY = 0.25  # of the nodes may be bad in this way; more are parts of a network
NEAR_EXPECTED = 0.9
SENTENCES = 4
_CHECK_NODE = "drain it; check its NICs and cables (ibstat, ethtool -S), its PCIe links, and mltop check -w {node}"
_CHECK_PATH = "check the switches and cables between them (ibdiagnet, or the fabric's counters)"


def judge_pairs(nodes: Sequence[str], results: Sequence[PairResult], expected: Expected | None = None) -> ProbeVerdict:
    """``results``: of all rounds, as PairSearch took them. ``expected``: busbw of two such nodes at this size.

    A node is accused when none of its pairs is as good as those of others; a path when both its nodes are fine with
    others. When all are alike, nobody is.
    """
    levels = Levels(nodes, results)
    if levels.reference is None:
        return _nothing_worked(results)
    good = levels.good_nodes()
    usual = _usual(levels, good)
    bad = [node for node in nodes if node not in good and levels.settled(node, good)]
    doubt = _doubt(bad, levels)
    bad = [node for node in bad if not (doubt and levels.works(node))]
    links = _bad_links(levels, good, usual)
    mostly = _mostly_bad(nodes, levels, good, links)
    links = [key for key in links if key.isdisjoint(mostly)]
    suspects = [_node(node, levels, usual) for node in sorted([*bad, *mostly], key=natural)]
    fine = len(good) - len(mostly)
    parts = [_headline(nodes, fine, usual, levels, bool(suspects or links))]
    parts += [f"{one.node} {one.reason}" for one in suspects[:SENTENCES]]
    if len(suspects) > SENTENCES:
        parts.append(f"and {len(suspects) - SENTENCES} more: {folded(one.node for one in suspects[SENTENCES:])}")
    paths = _paths(links)
    parts += [f"the path between {path} is slow, both ends are fine with others" for path in paths[:SENTENCES]]
    suspects += [_path_suspect(key, levels, usual) for key in links]
    verdict = ProbeVerdict(doubt if doubt and not suspects else "; ".join(parts), suspects, [])
    _say_expected(verdict, usual, expected)
    verdict.details += _details(nodes, levels, good, bad)
    return verdict


def _doubt(bad: Sequence[str], levels: Levels) -> str:
    """Why nodes are not called slow: what they were compared with was not measured a second time."""
    only = levels.only_good()
    if only is None or not any(levels.works(node) for node in bad):
        return ""
    one, other = sorted(only, key=natural)
    values = levels.values_of(only)
    if len(values) < 2:
        return f"nobody can be accused: only {one} – {other} was fast, and was measured once"
    told = " and ".join(numbers.rate(value) for value in values)
    return f"nobody can be accused: only {one} – {other} was fast, and not each time ({told})"


def _usual(levels: Levels, good: set[str]) -> float:
    """The median of the good pairs of good nodes; the search's reference when no two good ones were paired."""
    values = [value for key, value in levels.values.items() if key <= good and value is not None]
    values = [value for value in values if value >= GOOD * (levels.reference or 0.0)]
    return statistics.median(values) if values else levels.reference or 0.0


def _bad_links(levels: Levels, good: set[str], usual: float) -> list[PairKey]:
    found = [key for key, value in levels.values.items() if key <= good and (value is None or value < BAD_LINK * usual)]
    return sorted(found, key=lambda key: [natural(node) for node in sorted(key, key=natural)])


def _mostly_bad(nodes: Sequence[str], levels: Levels, good: set[str], links: Sequence[PairKey]) -> list[str]:
    """Good nodes of which most pairs are bad. When many are so, two parts of the network are badly connected."""
    counts = Counter(node for key in links for node in key)
    found = []
    for node, count in counts.items():
        pairs = sum(other in good for other in levels.partners(node))
        if pairs >= MOSTLY_BAD_PAIRS and count > MOSTLY_BAD * pairs:
            found.append(node)
    return found if len(found) <= max(1.0, MINORITY * len(nodes)) else []


def _node(node: str, levels: Levels, usual: float) -> Suspect:
    mine = [(key, value) for key, value in levels.values.items() if node in key]
    bad = [value for _, value in mine if value is None or value < BAD_LINK * usual] or [value for _, value in mine]
    rates = [value for value in bad if value is not None]
    count = f"in {len(bad)} of its {len(mine)} pairs" if len(bad) < len(mine) else f"in all {len(mine)} of its pairs"
    if len(mine) == 1:
        count = "in its only pair"
    if not rates:
        why = next(
            (levels.results[key].why for key, value in mine if value is None and levels.results[key].why), "no reason"
        )
        return Suspect(node, f"fails {count}: {why}", action=_CHECK_NODE.format(node=node))
    much = numbers.percent_span(1 - value / usual for value in rates)
    failed = f", {len(bad) - len(rates)} more failed" if len(rates) < len(bad) else ""
    return Suspect(node, f"is {much} slower than the others {count}{failed}", action=_CHECK_NODE.format(node=node))


def _path_suspect(key: PairKey, levels: Levels, usual: float) -> Suspect:
    one, other = sorted(key, key=natural)
    value = levels.values[key]
    how = f"fails ({levels.results[key].why or 'no reason'})"
    if value is not None:
        how = f"is {numbers.percent(1 - value / usual)} slower than others"
    return Suspect(f"{one} – {other}", f"the path between them {how}, both are fine with others", action=_CHECK_PATH)


def _paths(links: Sequence[PairKey]) -> list[str]:
    """``h03 and h05``; where all of some nodes are bad with all of others: ``h[01-04] and h[05-08]``."""
    partners: dict[str, set[str]] = {}
    for key in links:
        for node in key:
            partners.setdefault(node, set()).update(key - {node})
    sides: dict[frozenset[str], list[str]] = {}
    for node in sorted(partners, key=natural):
        sides.setdefault(frozenset(partners[node]), []).append(node)
    told: set[PairKey] = set()
    found = []
    for others, nodes in sides.items():
        new = {frozenset((node, other)) for node in nodes for other in others} - told
        if new:
            told |= new
            left = {other for key in new for other in key if other in others}
            found.append(f"{folded(nodes)} and {folded(left)}")
    return found


def _headline(nodes: Sequence[str], fine: int, usual: float, levels: Levels, found: bool) -> str:
    size = max((result.size_bytes for result in levels.results.values()), default=0)
    of_size = f" at {numbers.size(size)}" if size else ""
    count = numbers.many(len(nodes), "node") if not found else f"{fine} of {numbers.many(len(nodes), 'node')}"
    alike = "fine" if found else "alike"
    return f"{count} {alike} in pairs: {numbers.rate(usual)} busbw{of_size}"


def _say_expected(verdict: ProbeVerdict, usual: float, expected: Expected | None) -> None:
    """Two nodes' figure: in the sentence when it is certain and clearly missed, else for information."""
    if expected is None or not expected.bytes_per_s:
        return
    share = usual / expected.bytes_per_s
    line = f"{numbers.percent(share)} of the {numbers.rate(expected.bytes_per_s)} known for two ({expected.source})"
    if expected.certain and share < NEAR_EXPECTED and not verdict.suspects:
        verdict.text += f"; all are slow: {line}"
    else:
        verdict.details.append(line if expected.certain else f"{line}; that figure is not certain")


def _details(nodes: Sequence[str], levels: Levels, good: set[str], bad: Sequence[str]) -> list[str]:
    lines = [f"{numbers.many(len(levels.values), 'pair')} measured"]
    if len(nodes) == 2:
        lines.append("two nodes cannot be compared with each other: a third one tells whose fault a slow pair is")
    again = sum(count > 1 for count in levels.measured.values())
    if again:
        lines.append(f"{again} of them twice, fewer at a time: many were slow or failed when all ran at once")
    seen = {node for key in levels.values for node in key}
    unmeasured = [node for node in nodes if node not in seen]
    if unmeasured:
        lines.append(f"not measured: {folded(unmeasured)}")
    unsettled = [node for node in nodes if node in seen and node not in good and node not in bad]
    if unsettled:
        lines.append(f"unclear, never paired with a good node: {folded(unsettled)}")
    return lines


def _nothing_worked(results: Sequence[PairResult]) -> ProbeVerdict:
    reasons = Counter(result.why for result in results if result.why)
    if not results:
        return ProbeVerdict("no pair was measured")
    why = f": {reasons.most_common(1)[0][0]}" if reasons else ""
    return ProbeVerdict(f"none of {numbers.many(len(results), 'pair')} worked{why}")
