"""What is wrong and what happened, in words and rows: findings, incidents, what could not be read, events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from mltop.probes.judge.deaths import end_of, is_own_fault
from mltop.probes.judge.nodes import folded, kind_of_reason
from mltop.probes.model import Evidence, Finding, Gap, Incident, KernelEvent, NodePhase, RankDeath, Severity
from mltop.probes.model.gap import subject_text
from mltop.probes.model.ranks import fold
from mltop.probes.model.units import UNKNOWN, clock_time, seconds
from mltop.probes.model.vocabulary import gravity
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.states import SEVERITY


def severity_cell(severity: str) -> Cell:
    """The word and its colour."""
    word, style = SEVERITY.get(severity, (severity.upper() or UNKNOWN, ""))
    return Cell(word, style)


def worst(findings: Iterable[Finding]) -> Finding | None:
    """The most severe finding, the first of several."""
    return min(findings, key=lambda finding: gravity(finding.severity), default=None)


def explained(finding: Finding) -> list[str]:
    """What it explains, a sentence each."""
    texts = [one.message or f"{one.id} {one.subject}" for one in finding.explains]
    # More than are kept whole, or an older version's: by their names.
    return [*dict.fromkeys(texts), *finding.folded[len(texts) :]]


@lru_cache(maxsize=64)
def folded_names(names: tuple[str, ...]) -> str:
    """The names as one node set: ``node[03-10,12]``."""
    return folded(names)


_SEE = "see at its console whether it is up"
_SEVERITY_OF_STATE: dict[NodePhase, Severity] = {"lost": "critical", "refused": "critical", "stale": "warning"}


def state_findings(nodes: Iterable[NodeView], taken_at: float) -> list[Finding]:
    """One per node that does not answer (any more); a node that still connects is none."""
    findings = []
    for view in nodes:
        state = view.state
        severity = _SEVERITY_OF_STATE.get(state.state)
        if severity is None:
            continue
        since = None if state.age_s is None else taken_at - state.age_s
        text = f"{state.state}: {state.reason}" if state.reason else state.state
        kind = kind_of_reason(state.why, view.node)
        findings.append(
            Finding(f"node.{state.state}", severity, view.node, "node", text, state.fix or _SEE, since=since, key=kind)
        )
    return findings


# What an incident rests on.

_SOURCES = {"flight_recorder": "flight recorder", "ras": "NCCL RAS", "kernel": "kernel log", "health": "rules"}


def evidence_words(evidence: Evidence) -> str:
    """ "stacks, n3, 08:00:06: rank 2 not in a collective …"."""
    at = clock_time(evidence.at) if evidence.at is not None else ""
    return f"{', '.join(filter(None, (source_words(evidence), evidence.where, at)))}: {evidence.text}"


def source_words(evidence: Evidence) -> str:
    return _SOURCES.get(evidence.source, evidence.source)


# What could not be read.


def merged_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """Gaps with one reason and one fix as one; the same field of several GPUs is "gpu.0-7.power_w"."""
    merged: dict[tuple[str, str], dict[tuple[str, ...], list[int]]] = {}
    for gap in gaps:
        of_one_gpu = gap.source == "gpu" and gap.item.isdecimal() and bool(gap.fields)
        subject, index = (tuple(gap.fields), [int(gap.item)]) if of_one_gpu else ((gap.what,), [])
        merged.setdefault((gap.why, gap.fix), {}).setdefault(subject, []).extend(index)
    what = {
        cause: [subject_text("gpu", fold(gpus), fields) if gpus else fields[0] for fields, gpus in subjects.items()]
        for cause, subjects in merged.items()
    }
    return [Gap(", ".join(subjects), why, fix) for (why, fix), subjects in what.items()]


def is_missed(gap: Gap) -> bool:
    """Whether there is something that we do not know: not what does not exist here, nor what comes in a moment."""
    return gap.kind == "unknown" or (gap.source == "nvml" and gap.fields == ["starting"])


# Events.

MOST = 2000  # lines: an engineer reads the newest

# Of kernel events: the word and its style. What is not here has its own name, as a warning.
_KINDS = {
    "xid": ("XID", "crit"),
    "sxid": ("SXID", "crit"),
    "off_bus": ("OFF BUS", "crit"),
    "oom": ("OOM", "crit"),
    "segfault": ("CRASH", "crit"),
    "hung_task": ("HUNG", "warn"),
    "soft_lockup": ("LOCKUP", "crit"),
    "nfs": ("NFS", "warn"),
    "nfs_ok": ("NFS ok", "dim"),
    "mlx5": ("MLX5", "warn"),
    "link": ("LINK", "warn"),
    "remount_ro": ("RO MOUNT", "crit"),
    "disk_io": ("DISK", "crit"),
    "pcie_limited": ("PCIE", "dim"),
    "peermem": ("PEERMEM", "warn"),
    "mce": ("MCE", "crit"),
}


@dataclass(frozen=True)
class Happening:
    """One line: ``at`` unix s; ``key`` stays the same while it is listed. ``finding`` or ``event``: what it is of."""

    at: float
    node: str
    kind: str
    style: str
    subject: str
    text: str
    key: str
    finding: Finding | None = field(default=None, compare=False)
    event: KernelEvent | RankDeath | None = field(default=None, compare=False)

    @property
    def severity(self) -> str:
        """As filters ask for it: of what nobody has judged by the style of its word."""
        if self.finding is not None:
            return self.finding.severity
        return {"crit": "critical", "warn": "warning"}.get(self.style, "info")


def happenings(
    firing: Iterable[Finding],
    ended: Iterable[Finding],
    events: Iterable[tuple[str, KernelEvent | RankDeath]],
    node: str = "",
    done: Iterable[Happening] = (),
    *,
    incidents: Iterable[Incident] = (),
) -> list[Happening]:
    """Everything that happened on ``node`` ("": anywhere), the newest first; without what began at an unknown time.

    ``done``: what the user has done.
    """
    listed = [
        *done,
        *(_incident_begun(incident) for incident in incidents if incident.since is not None),
        *(_begun(finding) for finding in (*firing, *ended) if finding.since is not None),
        *(_over(finding) for finding in ended if finding.until is not None),
        *(_reported(name, event) for name, event in events),
    ]
    here = [event for event in listed if node in ("", event.node)]
    return sorted(here, key=lambda event: (-event.at, event.node, event.key))[:MOST]


def _begun(finding: Finding) -> Happening:
    word = severity_cell(finding.severity)
    style = word.style if finding.until is None else "dim"
    key = f"+{finding.node}/{finding.id}/{finding.subject}/{finding.since}"
    return Happening(
        finding.since or 0.0, finding.node, word.text, style, finding.subject, finding.message, key, finding
    )


def _incident_begun(incident: Incident) -> Happening:
    node = incident.culprits[0].node if incident.culprits else ""
    word, key = severity_cell(incident.severity), f"i{incident.id}/{incident.since}"
    return Happening(incident.since or 0.0, node, word.text, word.style, incident.job, incident.headline, key)


def _over(finding: Finding) -> Happening:
    lasted = seconds((finding.until or 0.0) - finding.since) if finding.since is not None else "some time"
    text = f"resolved after {lasted}: {finding.message}"
    key = f"-{finding.node}/{finding.id}/{finding.subject}/{finding.until}"
    return Happening(finding.until or 0.0, finding.node, "END", "dim", finding.subject, text, key, finding)


def _reported(node: str, event: KernelEvent | RankDeath) -> Happening:
    if isinstance(event, RankDeath):
        kind, style = ("DIED", "crit") if is_own_fault(event) else ("ended", "dim")
        subject = f"rank {event.rank}" if event.rank is not None else f"pid {event.pid}"
        key = f"d{node}/{event.pid}/{event.at}"
        return Happening(event.at or 0.0, node, kind, style, subject, end_of(event), key, event=event)
    kind, style = _KINDS.get(event.kind, (event.kind.upper(), "warn"))
    kind += f" {event.code}" if event.code is not None else ""
    subject = event.subject or event.process
    key = f"k{node}/{event.kind}/{event.subject}/{event.code}/{event.at}/{event.pid}"
    return Happening(event.at, node, kind, style, subject, event.text, key, event=event)
