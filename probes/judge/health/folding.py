"""One cause, one line: findings that another one explains are folded into it. The rules say what explains what.

And no finding advises against another one about the same thing: who is told to send a GPU back does not reset it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter

from mltop.probes.judge.health.registry import RULE_OF, RULES
from mltop.probes.judge.health.relations import is_named
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.health.spans import earliest, first_of_each
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Finding, Remedy
from mltop.probes.model.verdict import all_gpus_name
from mltop.probes.model.vocabulary import gravity

# What a remedy makes pointless, or wrong. What is not in it goes together.
BEATS: dict[Remedy, frozenset[Remedy]] = {
    "reset": frozenset({"restart"}),
    "reboot": frozenset({"restart", "reset"}),
    "service": frozenset({"watch", "restart", "reset", "reboot"}),
    "replace": frozenset({"watch", "restart", "reset", "reboot", "service"}),
}
# What ended so shortly before its cause began belongs to it: a GPU throttles, then it is lost.
SLACK_S = 60.0
_DISK = re.compile(r"(nvme\d+)(?:c\d+)?(?:n\d+(?:p\d+)?)?|((?:s|v|xv)d[a-z]{1,3})\d*")
MOST_FOLDED = 64  # names in one finding
MOST_HEADS = 8  # lines of one card or server, at different times: what it had beyond is told one by one


@dataclass(eq=False)
class _Line:
    """A finding, and what was folded into it with an advice of its own; ``order_given``: the advice that counts."""

    finding: Finding
    order: int
    advice: list[Finding] = field(default_factory=list)
    order_given: Finding | None = None
    is_folded: bool = False

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.finding.subject, *self.finding.about)

    def fold(self, explained: _Line) -> None:
        """It is kept whole, and its advice: of each remedy one will do."""
        explained.is_folded = True
        rule = RULE_OF.get(explained.finding.id)
        if gravity(explained.finding.severity) < gravity(self.finding.severity):
            self.finding.severity = explained.finding.severity
        if rule is not None and rule.adds:
            self.finding.message += f"; {explained.finding.message}"
        given = explained.finding if rule is not None and rule.orders else explained.order_given
        self.order_given = self.order_given or given
        self.finding.folded += [_name(explained.finding), *explained.finding.folded]
        self.finding.explains += [explained.finding, *explained.finding.explains]
        explained.finding.explains = []
        remedies = {finding.remedy for finding in self.advice}
        for finding in (explained.finding, *explained.advice):
            if finding.remedy not in remedies and finding.remedy != "none":
                remedies.add(finding.remedy)
                self.advice.append(finding)


def alike(finding: Finding) -> tuple[str, ...]:
    """Equal for findings of several nodes that say the same: see ``Rule.alike``."""
    rule = RULE_OF.get(finding.id)
    if rule is None:  # a node's state, or a rule that failed
        return finding.severity, finding.id, finding.remedy, finding.subject, finding.key
    if rule.alike == "rule":
        return finding.severity, finding.id
    return finding.severity, finding.id, finding.remedy, finding.key if rule.alike == "kind" else finding.subject


def told_of_nvml(findings: Iterable[Finding]) -> set[str]:
    """The codes of gaps of all of NVML that these, of one node, are made of."""
    critical = {finding.id for finding in findings if finding.severity == "critical"}
    return {code for rule_id in critical if rule_id in RULE_OF for code in RULE_OF[rule_id].tells_nvml}


def fold_findings(
    findings: Sequence[Finding],
    working_gpus: int,
    rules: Sequence[Rule] = RULES,
    listed_gpus: int = 0,
    cards: Callable[[], Mapping[str, str]] = dict,
) -> list[Finding]:
    """One node's ``findings`` without those that another one explains; its ``folded`` lists them as "id subject".

    Only findings whose times overlap (with a minute's slack) explain each other. ``listed_gpus``: also those that do
    not work. ``cards``: by a port's name its network card. The time it takes grows as their number.
    """
    by_id = {rule.id: rule for rule in rules}
    # Copies: an ended finding is folded anew with every sample.
    copies = (replace(finding, folded=[*finding.folded], explains=[*finding.explains]) for finding in findings)
    lines = [_Line(finding, order) for order, finding in enumerate(copies)]
    for rule_id, of_rule in grouped(lines, lambda line: line.finding.id).items():
        if rule_id in by_id and by_id[rule_id].whole_node is not None:
            lines += _of_whole_node(of_rule, by_id[rule_id], (working_gpus, listed_gpus))
    lines.sort(key=attrgetter("order"))
    of_rules = grouped(lines, lambda line: line.finding.id)
    causes = [by_id[rule_id] for rule_id in of_rules if rule_id in by_id]
    for cause in sorted(causes, key=lambda rule: (rule.precedence, rule.id)):
        if cause.explains:
            _fold(of_rules, cause, cause.explains, same_subject=True)
        if cause.explains_node:
            _fold(of_rules, cause, cause.explains_node, same_subject=False)
    _fold_parts([line for line in lines if not line.is_folded], by_id, cards)
    left = [line for line in lines if not line.is_folded]
    _agree(left)
    folded = first_of_each([line.finding for line in left])
    for finding in folded:
        if len(finding.folded) > MOST_FOLDED:
            finding.folded[MOST_FOLDED:] = [f"… and {len(finding.folded) - MOST_FOLDED:,} more"]
        if len(finding.explains) > MOST_FOLDED:
            finding.explains = _most_telling(finding.explains)
    return folded


def _of_whole_node(lines: list[_Line], rule: Rule, whole: tuple[int, int]) -> Iterator[_Line]:
    """Where all GPUs of a node have it, the cause is outside of them and told once."""
    for group in _at_one_time(lines):
        gpus = dict.fromkeys(line.finding.subject for line in group)
        remedies = {line.finding.remedy for line in group}
        words = rule.words_of_all(*remedies) if len(remedies) == 1 else None
        if len(gpus) > 1 and len(gpus) in whole and words is not None:
            for line in group:
                line.is_folded = True
            yield _Line(_of_all([line.finding for line in group], words, list(gpus)), group[0].order)


def _at_one_time(lines: list[_Line]) -> list[list[_Line]]:
    """Those that fire, and those that ended within a minute of each other."""
    groups = [[line for line in lines if line.finding.until is None]]
    ended = [(line.finding.until, line) for line in lines if line.finding.until is not None]
    newest = float("-inf")
    for until, line in sorted(ended, key=lambda entry: (entry[0], entry[1].order)):
        if len(groups) == 1 or until - newest > SLACK_S:
            groups.append([])
        groups[-1].append(line)
        newest = until
    return [group for group in groups if group]


def _of_all(findings: list[Finding], words: tuple[str, str], gpus: list[str]) -> Finding:
    (message, action), count = words, len(gpus)
    gravest = min(findings, key=lambda finding: gravity(finding.severity))
    return replace(
        gravest,
        subject=all_gpus_name(count),
        message=message.format(count=count, example=gravest.message),
        action=action,
        since=earliest(findings),
        until=None if gravest.until is None else max(finding.until or 0.0 for finding in findings),
        folded=[_name(finding) for finding in findings],
        explains=[*findings],
        about=gpus,
    )


def _fold_parts(lines: list[_Line], rules: Mapping[str, Rule], cards: Callable[[], Mapping[str, str]]) -> None:
    """Of the findings about one card or server the gravest is kept; of equals the one nearest to the cause."""
    parts = [line for line in lines if line.finding.id in rules and rules[line.finding.id].part_of]
    if len(parts) < 2:
        return
    card_of = cards()

    def whole(line: _Line) -> tuple[str, str]:
        part = rules[line.finding.id].part_of
        if part == "server":
            return part, line.finding.server
        if part == "disk":  # nvme4 of nvme4n1p1, sda of sda1; a name that is no disk's or partition's stays
            disk = _DISK.fullmatch(line.finding.subject)
            return part, line.finding.subject if disk is None else disk[1] or disk[2]
        return part, next((card_of[name] for name in line.subjects if name in card_of), "")

    def order(line: _Line) -> tuple[bool, int, int, float, int]:
        finding = line.finding
        rank = gravity(finding.severity), rules[finding.id].precedence
        return (finding.until is not None, *rank, finding.since or 0.0, line.order)

    for (_, name), of_whole in grouped(parts, whole).items():
        left = sorted(of_whole, key=order) if name else []
        for _ in range(MOST_HEADS):
            if len(left) < 2:
                break
            head, *others = left
            for line in others:
                if _hides(head.finding, line.finding):
                    head.fold(line)
            left = [line for line in others if not line.is_folded]


def _fold(of_rules: Mapping[str, list[_Line]], rule: Rule, explained: tuple[str, ...], same_subject: bool) -> None:
    """``same_subject``: only what is about the same; else all of the node."""
    able = [line for line in of_rules[rule.id] if not line.is_folded]
    about = ((subject, line) for line in able for subject in (line.subjects if same_subject else ("",)))
    causes = {subject: _causes([line for _, line in own]) for subject, own in grouped(about, itemgetter(0)).items()}
    least = gravity("warning") if rule.as_grave else 0
    for rule_id, lines in of_rules.items():
        for line in lines if rule_id != rule.id and is_named(rule_id, explained) else ():
            own = () if line.is_folded else causes.get(line.finding.subject if same_subject else "", ())
            hiding = (cause for cause in own if _hides(cause.finding, line.finding, least))
            first = min(hiding, key=attrgetter("order"), default=None)
            if first is not None:
                first.fold(line)


def _causes(alike: list[_Line]) -> list[_Line]:
    """Of causes that are alike but for their times: of those that still fire the first one of each severity."""
    firing = grouped((line for line in alike if line.finding.until is None), lambda line: line.finding.severity)
    first = [min(lines, key=lambda line: line.finding.since or 0.0) for lines in firing.values()]
    return [*first, *[line for line in alike if line.finding.until is not None][:MOST_FOLDED]]


def _hides(cause: Finding, finding: Finding, least: int = 0) -> bool:
    """What has ended does not hide what goes on, nor what is harmless something graver than ``least``."""
    is_over = cause.until is not None and finding.until is None
    grave = gravity(cause.severity) <= max(gravity(finding.severity), least)
    return grave and not is_over and _overlap(cause, finding)


def _agree(lines: list[_Line]) -> None:
    """Neither a finding and what it explains nor two findings about one thing advise against each other."""
    by_subject: dict[str, list[Finding]] = {}
    for line in lines:
        stronger, given = _strongest(line.advice, line.finding), line.order_given
        if given is not None and not any(_beats(other, given) for other in (line.finding, *known((stronger,)))):
            stronger = given
        if stronger is not None:
            _give_way(line.finding, stronger)
        for subject in line.subjects:
            findings = by_subject.setdefault(subject, [])
            if line.finding.remedy != "none" and len(findings) < MOST_FOLDED:
                findings.append(line.finding)
    for line in lines:
        _agree_with_neighbours(line, by_subject)


def _agree_with_neighbours(line: _Line, by_subject: dict[str, list[Finding]]) -> None:
    weak = line.finding
    apart: dict[str, tuple[Finding, list[str]]] = {}  # by the stronger action, the parts of what this is about
    for subject in line.subjects:
        stronger = _strongest((finding for finding in by_subject[subject] if _overlap(finding, weak)), weak)
        if stronger is None:
            continue
        if subject == weak.subject or len(weak.about) < 2 or stronger.remedy == "reboot":
            _give_way(weak, stronger)
            return
        apart.setdefault(stronger.action, (stronger, []))[1].append(subject)
    for stronger, subjects in apart.values():
        if len(apart) == 1 and set(weak.about) - {weak.subject} <= set(subjects):
            _give_way(weak, stronger)
        else:
            weak.action = f"{weak.action}; not {', '.join(subjects)}: {stronger.action}"


def _strongest(advice: Iterable[Finding], weak: Finding) -> Finding | None:
    """Of the advice that makes that of ``weak`` pointless the farthest-reaching."""
    fitting = [strong for strong in advice if _beats(strong, weak)]
    return max(fitting, key=lambda strong: (len(BEATS[strong.remedy]), -gravity(strong.severity)), default=None)


def _beats(strong: Finding, weak: Finding) -> bool:
    """A warning's advice beats no critical one's, unless the hardware goes."""
    if weak.remedy not in BEATS.get(strong.remedy, ()):
        return False
    return strong.remedy == "replace" or gravity(strong.severity) <= gravity(weak.severity)


def _give_way(weak: Finding, strong: Finding) -> None:
    """``weak`` advises what ``strong`` does from now on, and says why."""
    weak.act, weak.action, weak.remedy = strong.act, strong.action, strong.remedy
    if strong.message not in weak.evidence and strong.message != weak.message:
        weak.evidence = [*weak.evidence, strong.message]


def _overlap(cause: Finding, finding: Finding) -> bool:
    later_start = max(cause.since or 0.0, finding.since or 0.0)
    return later_start <= min(known((cause.until, finding.until)), default=float("inf")) + SLACK_S


def _most_telling(explained: list[Finding]) -> list[Finding]:
    """As many as are kept: of each rule the first ones, and the gravest before the others."""
    nth: Counter[str] = Counter()
    places = []
    for order, finding in enumerate(explained):
        places.append((nth[finding.id], gravity(finding.severity), order))
        nth[finding.id] += 1
    return [explained[order] for _, _, order in sorted(sorted(places)[:MOST_FOLDED], key=itemgetter(2))]


def _name(finding: Finding) -> str:
    return f"{finding.id} {finding.subject}"


def agreed(findings: Sequence[Finding]) -> list[Finding]:
    """Copies of findings of any nodes, in their order, none of which advises against another about the same thing."""
    lines = [_Line(replace(finding, evidence=list(finding.evidence)), order) for order, finding in enumerate(findings)]
    for of_node in grouped(lines, lambda line: line.finding.node).values():
        _agree(of_node)
    return [line.finding for line in lines]
