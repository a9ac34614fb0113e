"""The third state of a rule: not fine, not firing, but unknown, with why and the command that would tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from mltop.probes.judge.health.jobs import JobRule
from mltop.probes.judge.health.needs import Told, alternatives, prefixes, subjects_of, touches, whole_of
from mltop.probes.judge.health.rule import SEVERITIES, Rule
from mltop.probes.model import CounterKind, Sample, Unknown
from mltop.probes.model.reads import Reads

__all__ = ["AnyRule", "growth_unknown", "touches", "unknowns_of"]

AnyRule = Rule | JobRule
GROWTH = "growth"
MOST_TOLD = 64  # of one node; there may be a gap for each of its ten thousand GPUs
_UNTOLD = "the node does not tell it"
_NO_SUCH = "this hardware, driver or kernel tells none of what it could be judged by"
# What their needs begin with, and what they are.
_COUNTERS: dict[CounterKind, tuple[str, str]] = {
    "gpus": ("gpu.", "NVLink's, PCIe's and memory's error counters of the GPUs"),
    "links": ("links.", "the error counters of the network ports"),
    "pci": ("pci.", "PCIe's error counters"),
    "host": ("host.", "the machine's error counters"),
}


def unknowns_of(sample: Sample, rules: Sequence[AnyRule] = (), at_the_end: bool = False) -> list[Unknown]:
    """A line per gap of the sample that keeps rules from being judged (none given: all rules), and per value that they
    need and that is not there although no gap says why.

    What does not exist here is not unknown, unless a rule has nothing at all to go by then: that is said, but missed by
    nobody (severity info), as what would only be worth knowing. ``at_the_end``: no sample comes after this one, so what
    is still starting is unknown, too.
    """
    judged = tuple(rules) or all_rules()
    told = Told(sample)
    found = [*_by_gaps(sample, judged, told, at_the_end), *_untold(sample, judged, told)]
    if len(found) <= MOST_TOLD:
        return found
    rest = found[MOST_TOLD:]
    merged = sorted({rule for one in rest for rule in one.rules})
    severity = min((one.severity for one in rest), key=SEVERITIES.index)
    more = Unknown(sample.node, "more", f"{len(rest):,} more things are not known", "", merged, severity)
    return [*found[:MOST_TOLD], more]


def growth_unknown(sample: Sample, rules: Sequence[AnyRule], reads: Reads) -> list[Unknown]:
    """Rules about counters that were read once only: whether these grow is not known. Pure."""
    told = Told(sample)
    found = []
    for kind, (prefix, words) in _COUNTERS.items():
        if reads.twice(kind):
            continue
        counting = (rule for rule in rules if isinstance(rule, Rule) and kind in rule.grows)
        open_rules = [rule for rule in counting if _applies(rule, prefix, told)]
        if open_rules:
            why = f"{words} were read once only: whether they grow was not judged"
            found.append(_unknown(sample, f"{GROWTH}.{kind}", why, "give it more time: --timeout 30", open_rules))
    return found


def _applies(rule: Rule, prefix: str, told: Told) -> bool:
    """Whether there are such counters: of GPUs that cannot be read none is waited for."""
    needs = (one for need in rule.needs for one in alternatives(need) if one.startswith(prefix))
    return any(told.tells(one, rule.id) for one in needs)


Needed = dict[str, list[tuple[AnyRule, str]]]


@lru_cache(maxsize=8)
def _who_needs(rules: tuple[AnyRule, ...]) -> tuple[Needed, Needed]:
    """Rules and their needs by what a gap may be about, and by the need itself."""
    parts: Needed = {}
    whole: Needed = {}
    for rule in rules:
        for need in rule.needs:
            for one in alternatives(need):
                whole.setdefault(one, []).append((rule, need))
                for what in prefixes(one):
                    parts.setdefault(what, []).append((rule, need))
    return parts, whole


def _by_gaps(sample: Sample, rules: tuple[AnyRule, ...], told: Told, at_the_end: bool) -> Iterable[Unknown]:
    parts, whole = _who_needs(rules)
    for gap in sample.gaps:
        if gap.kind == "unsupported" or (gap.kind == "starting" and not at_the_end):
            continue
        hindered: dict[str, AnyRule] = {}
        for subject in subjects_of(gap.what):
            for rule, need in (*parts.get(subject, ()), *whole.get(whole_of(subject), ())):
                if rule.id not in hindered and not _has_another(rule, need, subject, told):
                    hindered[rule.id] = rule
        if hindered:
            yield _unknown(sample, gap.what, gap.why, gap.fix, hindered.values())


def _has_another(rule: AnyRule, need: str, missing: str, told: Told) -> bool:
    """Whether another one of several things will do, and is there."""
    ways = alternatives(need)
    return len(ways) > 1 and told.has_another(ways, missing, rule.id)


def _untold(sample: Sample, rules: tuple[AnyRule, ...], told: Told) -> Iterable[Unknown]:
    lacking: dict[str, list[AnyRule]] = {}
    for rule in rules:
        for need in rule.needs:
            what = told.untold(alternatives(need), rule.id)
            if what:
                lacking.setdefault(what, []).append(rule)
        for need in rule.decisive:
            what = told.unsupported(alternatives(need), rule.id)
            if what:
                yield Unknown(sample.node, what, _NO_SUCH, "", [rule.id], "info")
    for what, hindered in lacking.items():
        yield _unknown(sample, what, _UNTOLD, "", hindered)


def _unknown(sample: Sample, what: str, why: str, fix: str, rules: Collection[AnyRule]) -> Unknown:
    severity = min((rule.severity for rule in rules), key=SEVERITIES.index)
    return Unknown(sample.node, what, why, fix, [rule.id for rule in rules], severity)


def all_rules() -> tuple[AnyRule, ...]:
    from mltop.probes.judge.health.job_rules import JOB_RULES
    from mltop.probes.judge.health.registry import RULES

    return (*RULES, *JOB_RULES)
