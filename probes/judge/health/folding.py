"""No finding advises against another one about the same thing: who is told to send a GPU back does not reset it.

One cause, one line: findings that another one explains are folded into it. The rules say what explains what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mltop.probes.judge.health.rule import SEVERITIES, Hit, Rule
from mltop.probes.judge.health.spans import first_of_each
from mltop.probes.model import Finding, Remedy

# What a remedy makes pointless, or wrong. What is not in it goes together.
BEATS: dict[Remedy, frozenset[Remedy]] = {
    "reset": frozenset({"restart"}),
    "reboot": frozenset({"restart", "reset"}),
    "service": frozenset({"watch", "restart", "reset", "reboot"}),
    "replace": frozenset({"watch", "restart", "reset", "reboot", "service"}),
}


def beats(strong: Finding, weak: Finding) -> bool:
    """Whether what ``strong`` advises makes the advice of ``weak`` pointless: a warning's does so of no critical one's,
    unless the hardware goes.
    """
    if weak.remedy not in BEATS.get(strong.remedy, ()):
        return False
    return strong.remedy == "replace" or SEVERITIES.index(strong.severity) <= SEVERITIES.index(weak.severity)


def strongest(advice: Iterable[Finding], weak: Finding) -> Finding | None:
    """Of the advice that beats that of ``weak`` the farthest-reaching."""
    fitting = [one for one in advice if beats(one, weak)]
    return max(fitting, key=lambda one: (len(BEATS[one.remedy]), -SEVERITIES.index(one.severity)), default=None)


def give_way(weak: Finding, strong: Finding) -> None:
    """``weak`` advises what ``strong`` does from now on, and says why."""
    weak.action, weak.remedy = strong.action, strong.remedy
    if strong.message not in weak.evidence and strong.message != weak.message:
        weak.evidence = [*weak.evidence, strong.message]


def leave_out(weak: Finding, subjects: list[str], strong: Finding) -> None:
    """``weak`` is about several things; for some of them ``strong`` holds."""
    weak.action = f"{weak.action}; not {', '.join(subjects)}: {strong.action}"


# What ended so shortly before its cause began belongs to it: a GPU throttles, then it is lost.
SLACK_S = 60.0
MOST_FOLDED = 64  # names in one finding
_ALL = "all "
_GPU = "GPU "


def fold_findings(
    findings: Sequence[Finding],
    working_gpus: int,
    rules: Sequence[Rule] = (),
    listed_gpus: int = 0,
    about: Iterable[tuple[Finding, Hit]] = (),
) -> list[Finding]:
    """One node's ``findings`` without those that another one explains; its ``folded`` lists them as "id subject".

    Only findings whose times overlap (with a minute's slack) explain each other. What is left does not advise against
    each other (remedies.py), and of very many alike most are one line. ``listed_gpus``: also those that do not work.
    ``about``: the hits of some of the findings, for what else they are about. The time it takes grows as their number.
    """
    by_id = {rule.id: rule for rule in rules or _all_rules()}
    others = {id(finding): hit.about for finding, hit in about if hit.about}
    # Copies: an ended finding is folded anew with every sample.
    left = _Left(
        [_Told(replace(one, folded=list(one.folded)), others.get(id(one), ())) for one in findings],
    )
    _whole_node(left, working_gpus, listed_gpus, by_id)
    causes = [by_id[rule_id] for rule_id in left.by_id if rule_id in by_id]
    for cause_rule in sorted(causes, key=lambda rule: (rule.precedence, rule.id)):
        if cause_rule.explains:
            _fold(left, cause_rule, cause_rule.explains, same_subject=True)
        if cause_rule.explains_node:
            _fold(left, cause_rule, cause_rule.explains_node, same_subject=False)
    _agree(list(left))
    found = first_of_each([told.finding for told in left])
    for one in found:
        if len(one.folded) > MOST_FOLDED:
            one.folded[MOST_FOLDED:] = [f"… and {len(one.folded) - MOST_FOLDED:,} more"]
    return found


def _all_rules() -> Sequence[Rule]:
    from mltop.probes.judge.health.registry import RULES

    return RULES


@dataclass(eq=False)
class _Told:
    """A finding, the other names of what it is about, and what was folded into it with an advice of its own."""

    finding: Finding
    about: tuple[str, ...] = ()
    place: int = 0
    advice: list[Finding] = field(default_factory=list)

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.finding.subject, *self.about)

    def take_advice(self, folded: _Told) -> None:
        """Of each remedy one will do."""
        known = {one.remedy for one in self.advice}
        for one in (folded.finding, *folded.advice):
            if one.remedy not in known and one.remedy != "none":
                known.add(one.remedy)
                self.advice.append(one)


class _Left:
    """The findings that stand for themselves so far, by rule, in the order in which they came."""

    def __init__(self, told: Iterable[_Told]) -> None:
        self.by_id: dict[str, list[_Told]] = {}
        for place, one in enumerate(told):
            one.place = place
            self.by_id.setdefault(one.finding.id, []).append(one)

    def __iter__(self) -> Iterator[_Told]:
        return iter(sorted((one for own in self.by_id.values() for one in own), key=lambda one: one.place))

    def matching(self, patterns: Sequence[str]) -> list[str]:
        """The ids that are left and named, whole or by their beginning ("gpu.")."""
        return [
            own
            for own in self.by_id
            if any(own == pattern or (pattern[-1] == "." and own.startswith(pattern)) for pattern in patterns)
        ]


def _whole_node(left: _Left, working_gpus: int, listed_gpus: int, known: dict[str, Rule]) -> None:
    """Where all GPUs of a node have it, the cause is outside of them and told once."""
    for rule_id, own in left.by_id.items():
        rule = known.get(rule_id)
        if rule is None or rule.whole_node is None:
            continue
        kept: list[_Told] = []
        for group in _together(own):
            gpus = dict.fromkeys(one.finding.subject for one in group)
            remedies = {one.finding.remedy for one in group}
            words = rule.words_of_all(*remedies) if len(remedies) == 1 else None
            if len(gpus) > 1 and len(gpus) in (working_gpus, listed_gpus) and words is not None:
                all_of_them = _of_all([one.finding for one in group], words, len(gpus))
                kept.append(_Told(all_of_them, tuple(gpus), group[0].place))
            else:
                kept += group
        own[:] = sorted(kept, key=lambda one: one.place)


def _together(told: list[_Told]) -> list[list[_Told]]:
    """Those that fire, and those that ended within a minute of each other."""
    groups = [[one for one in told if one.finding.until is None]]
    ended = [(one.finding.until, one.place, one) for one in told if one.finding.until is not None]
    newest = float("-inf")
    for until, _, one in sorted(ended, key=lambda entry: entry[:2]):
        if len(groups) > 1 and until - newest <= SLACK_S:
            groups[-1].append(one)
        else:
            groups.append([one])
        newest = until
    return [group for group in groups if group]


def _of_all(hit: list[Finding], whole_node: tuple[str, str], count: int) -> Finding:
    message, action = whole_node
    gravest = min(hit, key=lambda one: SEVERITIES.index(one.severity))
    return replace(
        gravest,
        subject=f"{_ALL}{count} GPUs",
        message=message.format(count=count),
        action=action,
        since=min((one.since for one in hit if one.since is not None), default=None),
        until=None if gravest.until is None else max(one.until or 0.0 for one in hit),
        folded=[_name(one) for one in hit],
    )


def _fold(left: _Left, rule: Rule, explained: tuple[str, ...], same_subject: bool) -> None:
    causes = _Causes(left.by_id[rule.id], same_subject)
    for rule_id in left.matching(explained):
        if rule_id == rule.id:
            continue
        kept = []
        for one in left.by_id[rule_id]:
            cause = causes.of(one)
            if cause is None:
                kept.append(one)
            else:
                cause.finding.folded += [_name(one.finding), *one.finding.folded]
                cause.take_advice(one)
        left.by_id[rule_id] = kept


@dataclass
class _Spans:
    """Causes that are alike but for their times: of those that still fire the first one of each severity counts."""

    firing: dict[str, _Told] = field(default_factory=dict)
    ended: list[_Told] = field(default_factory=list)

    def add(self, cause: _Told) -> None:
        finding = cause.finding
        if finding.until is not None:
            if len(self.ended) < MOST_FOLDED:
                self.ended.append(cause)
            return
        before = self.firing.get(finding.severity)
        if before is None or (finding.since or 0.0) < (before.finding.since or 0.0):
            self.firing[finding.severity] = cause

    def explaining(self, one: Finding) -> _Told | None:
        """What has ended does not hide what goes on, nor what is harmless something grave."""
        candidates = [*self.firing.values(), *(self.ended if one.until is not None else ())]
        grave = SEVERITIES.index(one.severity)
        fitting = (
            cause
            for cause in candidates
            if SEVERITIES.index(cause.finding.severity) <= grave and _overlap(cause.finding, one)
        )
        return min(fitting, key=lambda cause: cause.place, default=None)


class _Causes:
    """All findings of one rule, by what they are about."""

    def __init__(self, causes: Iterable[_Told], same_subject: bool) -> None:
        self._same_subject = same_subject
        self._by_subject: dict[str, _Spans] = {}
        for cause in causes:
            for subject in cause.subjects if same_subject else ("",):
                self._by_subject.setdefault(subject, _Spans()).add(cause)

    def of(self, one: _Told) -> _Told | None:
        for subject in one.subjects[:1] if self._same_subject else ("",):
            spans = self._by_subject.get(subject)
            found = spans.explaining(one.finding) if spans is not None else None
            if found is not None:
                return found
        return None


def _agree(left: list[_Told]) -> None:
    """Neither a finding and what it explains nor two findings about one thing advise against each other."""
    for told in left:
        stronger = strongest(told.advice, told.finding)
        if stronger is not None:
            give_way(told.finding, stronger)
    by_subject: dict[str, list[Finding]] = {}
    for told in left:
        for subject in told.subjects:
            own = by_subject.setdefault(subject, [])
            if told.finding.remedy != "none" and len(own) < MOST_FOLDED:
                own.append(told.finding)
    for told in left:
        _give_way_to_neighbours(told, by_subject)


def _give_way_to_neighbours(told: _Told, by_subject: dict[str, list[Finding]]) -> None:
    weak = told.finding
    apart: dict[str, list[str]] = {}  # by the stronger action, the parts of what this is about
    for subject in told.subjects:
        stronger = strongest((one for one in by_subject[subject] if _overlap(one, weak)), weak)
        if stronger is None:
            continue
        if subject == weak.subject or len(told.about) < 2 or stronger.remedy == "reboot":
            give_way(weak, stronger)
            return
        apart.setdefault(stronger.action, []).append(subject)
    parts = set(told.about) - {weak.subject}
    if len(apart) == 1 and parts.issubset(*apart.values()):
        give_way(weak, next(one for one in by_subject[next(iter(parts))] if one.action in apart))
        return
    for action, subjects in apart.items():
        leave_out(weak, subjects, next(one for one in by_subject[subjects[0]] if one.action == action))


def _overlap(one: Finding, other: Finding) -> bool:
    later_start = max(one.since or 0.0, other.since or 0.0)
    ends = [finding.until for finding in (one, other) if finding.until is not None]
    return not ends or later_start <= min(ends) + SLACK_S


def _name(finding: Finding) -> str:
    return f"{finding.id} {finding.subject}"
