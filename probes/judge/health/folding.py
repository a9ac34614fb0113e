"""One cause, one line: findings that another one explains are folded into it. The rules say what explains what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mltop.probes.judge.health.rule import Rule
from mltop.probes.model import Finding

# What ended so shortly before its cause began belongs to it: a GPU throttles, then it is lost.
SLACK_S = 60.0
_ALL = "all "
_SEVERITIES = ("critical", "warning", "info")


def fold_findings(findings: Sequence[Finding], working_gpus: int, rules: Sequence[Rule] = ()) -> list[Finding]:
    """One node's ``findings`` without those that another one explains; its ``folded`` lists them as "id subject".

    Only findings whose times overlap (with a minute's slack) explain each other.
    """
    known = {rule.id: rule for rule in rules or _all_rules()}
    # Copies: an ended finding is folded anew with every sample.
    left = _whole_node([replace(one, folded=list(one.folded)) for one in findings], working_gpus, known)
    causes = {known[one.id] for one in left if one.id in known}
    for cause_rule in sorted(causes, key=lambda rule: (rule.precedence, rule.id)):
        if cause_rule.explains:
            left = _fold(left, cause_rule.id, cause_rule.explains, same_subject=True)
        if cause_rule.explains_node:
            left = _fold(left, cause_rule.id, cause_rule.explains_node, same_subject=False)
    return left


def _all_rules() -> Sequence[Rule]:
    from mltop.probes.judge.health.registry import RULES

    return RULES


def _whole_node(findings: list[Finding], working_gpus: int, known: dict[str, Rule]) -> list[Finding]:
    """Where all GPUs of a node have it, the cause is outside of them and told once."""
    if working_gpus < 2:
        return findings
    for rule_id in {one.id for one in findings}:
        rule = known.get(rule_id)
        if rule is None or rule.whole_node is None:
            continue
        for hit in _together([one for one in findings if one.id == rule_id]):
            if len({one.subject for one in hit}) == working_gpus:
                findings = [one for one in findings if not any(one is folded for folded in hit)]
                findings.append(_of_all(hit, rule.whole_node, working_gpus))
    return findings


def _together(findings: list[Finding]) -> list[list[Finding]]:
    """Those that fire, and those that ended within a minute of each other."""
    groups = [[one for one in findings if one.until is None]]
    for one in sorted((one for one in findings if one.until is not None), key=lambda one: one.until or 0.0):
        newest = groups[-1][-1].until if len(groups) > 1 else None
        if newest is not None and (one.until or 0.0) - newest <= SLACK_S:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _of_all(hit: list[Finding], whole_node: tuple[str, str], count: int) -> Finding:
    message, action = whole_node
    gravest = min(hit, key=lambda one: _SEVERITIES.index(one.severity))
    return replace(
        gravest,
        subject=f"{_ALL}{count} GPUs",
        message=message.format(count=count),
        action=action,
        since=min((one.since for one in hit if one.since is not None), default=None),
        until=None if gravest.until is None else max(one.until or 0.0 for one in hit),
        folded=[_name(one) for one in hit],
    )


def _fold(findings: list[Finding], cause_id: str, explained: tuple[str, ...], same_subject: bool) -> list[Finding]:
    causes = [one for one in findings if one.id == cause_id]
    kept = []
    for one in findings:
        cause = next((by for by in causes if _explains(by, one, explained, same_subject)), None)
        if cause is None:
            kept.append(one)
        else:
            cause.folded += [_name(one), *one.folded]
    return kept


def _explains(cause: Finding, one: Finding, explained: tuple[str, ...], same_subject: bool) -> bool:
    if one is cause or one.id == cause.id or one.node != cause.node:
        return False
    if one.until is None and cause.until is not None:
        return False  # what has ended does not hide what goes on
    if _SEVERITIES.index(cause.severity) > _SEVERITIES.index(one.severity):
        return False  # nor what is harmless something grave
    of_all = cause.subject.startswith(_ALL) and one.subject.startswith("GPU ")
    if same_subject and one.subject != cause.subject and not of_all:
        return False
    hit = any(one.id == pattern or (pattern[-1] == "." and one.id.startswith(pattern)) for pattern in explained)
    return hit and _overlap(cause, one)


def _overlap(one: Finding, other: Finding) -> bool:
    later_start = max(one.since or 0.0, other.since or 0.0)
    ends = [finding.until for finding in (one, other) if finding.until is not None]
    return not ends or later_start <= min(ends) + SLACK_S


def _name(finding: Finding) -> str:
    return f"{finding.id} {finding.subject}"
