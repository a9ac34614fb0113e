"""One cause, one line: findings that another one explains are folded into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mltop.probes.model import Finding

# What ended so shortly before its cause began belongs to it: a GPU throttles, then it is lost.
SLACK_S = 60.0

# (id of the cause, ids or "prefix." of what it explains on the same subject), the strongest cause first.
ON_SUBJECT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gpu.lost", ("gpu.",)),
    ("gpu.error", ("gpu.throttle.",)),
    ("gpu.throttle.hw_thermal", ("gpu.throttle.sw_thermal", "gpu.throttle.hw_slowdown")),
    ("gpu.throttle.power_brake", ("gpu.throttle.hw_slowdown",)),
)
# (id of the cause, what it explains on the same node)
ON_NODE: tuple[tuple[str, tuple[str, ...]], ...] = (("nvml.stuck", ("gpu.error",)),)
# (id, message and action when every GPU of a node has it): then the cause is outside the GPUs.
ON_ALL_GPUS: tuple[tuple[str, str, str], ...] = (
    (
        "gpu.throttle.power_brake",
        "External power brake on all {count} GPUs",
        "check PSU, PDU and chassis power",
    ),
    (
        "gpu.throttle.hw_thermal",
        "All {count} GPUs throttled by HW thermal slowdown",
        "check the node's fans and inlet temperature; move the job if it stays",
    ),
)


def fold_findings(findings: Sequence[Finding], gpu_counts: dict[str, int]) -> list[Finding]:
    """``findings`` without those that another one explains; its ``folded`` lists them as "id subject".

    Only findings whose times overlap (with a minute's slack) explain each other. ``gpu_counts``: working GPUs
    by node.
    """
    left = _whole_nodes(list(findings), gpu_counts)
    for cause_id, explained in ON_SUBJECT:
        left = _fold(left, cause_id, explained, same_subject=True)
    for cause_id, explained in ON_NODE:
        left = _fold(left, cause_id, explained, same_subject=False)
    return left


def _whole_nodes(findings: list[Finding], gpu_counts: dict[str, int]) -> list[Finding]:
    for rule_id, message, action in ON_ALL_GPUS:
        for node, count in gpu_counts.items():
            hit = [one for one in findings if one.id == rule_id and one.node == node and one.until is None]
            if count >= 2 and len({one.subject for one in hit}) == count:
                cause = replace(
                    hit[0],
                    subject=f"all {count} GPUs",
                    message=message.format(count=count),
                    action=action,
                    since=min((one.since for one in hit if one.since is not None), default=None),
                    folded=[_name(one) for one in hit],
                )
                findings = [one for one in findings if not any(one is folded for folded in hit)]
                findings.append(cause)
    return findings


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
    if same_subject and one.subject != cause.subject:
        return False
    hit = any(one.id == pattern or (pattern[-1] == "." and one.id.startswith(pattern)) for pattern in explained)
    return hit and _overlap(cause, one)


def _overlap(one: Finding, other: Finding) -> bool:
    later_start = max(one.since or 0.0, other.since or 0.0)
    ends = [finding.until for finding in (one, other) if finding.until is not None]
    return not ends or later_start <= min(ends) + SLACK_S


def _name(finding: Finding) -> str:
    return f"{finding.id} {finding.subject}"
