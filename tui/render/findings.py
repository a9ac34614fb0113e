"""What is wrong and what happened, in words and rows: findings, incidents, what could not be read, events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType

from mltop.probes.judge.deaths import end_of, is_own_fault
from mltop.probes.judge.nodes import kind_of_reason
from mltop.probes.judge.values import grouped
from mltop.probes.model import Evidence, Finding, Gap, Incident, KernelEvent, NodePhase, RankDeath, Severity
from mltop.probes.model.gap import subject_text
from mltop.probes.model.ranks import fold
from mltop.probes.model.units import UNKNOWN, clock_time, counted, seconds
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.states import SEVERITY, gravity


def severity_cell(severity: str) -> Cell:
    """The word and its colour."""
    word, style = SEVERITY.get(severity, (severity.upper() or UNKNOWN, ""))
    return Cell(word, style)


def worst(findings: Iterable[Finding]) -> Finding | None:
    """The most severe finding, the first of several; an unknown severity counts as the least."""
    return min(findings, key=of_gravity, default=None)


def explained_texts(finding: Finding) -> list[str]:
    """What is told of what it explains, a line each: ``explains Xid 79: GPU 3 fell off the bus``."""
    return [f"explains {text}" for text in explained(finding)]


def explained(finding: Finding) -> list[str]:
    """What it explains, a sentence each."""
    texts = [one.message or f"{one.id} {one.subject}" for one in finding.explains]
    # More than are kept whole, or an older version's: by their names.
    return [*dict.fromkeys(texts), *finding.folded[len(texts) :]]


def of_gravity(finding: Finding) -> int:
    """The key by which the gravest come first."""
    return gravity(finding.severity)


@dataclass(frozen=True)
class Problem:
    """One finding, or several of many nodes that say the same.

    ``names``: what stands for the nodes' names.
    """

    findings: tuple[Finding, ...]
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.node for finding in self.findings))

    @property
    def key(self) -> str:
        """Stays the same while it is told; begins with the first node's name and a slash."""
        about = self.first.subject if len(self.findings) == 1 else "many"
        return f"{self.first.node}/{self.first.id}/{about}"

    @property
    def since(self) -> float | None:
        return min((finding.since for finding in self.findings if finding.since is not None), default=None)

    @property
    def where(self) -> str:
        shown = tuple([self.names.get(node, node) for node in self.nodes])
        return (folded_names(shown) if len(shown) > 1 else shown[0]) or UNKNOWN

    @property
    def subject(self) -> str:
        subjects = {finding.subject for finding in self.findings}
        if len(subjects) == 1:
            return self.first.subject or UNKNOWN
        of_gpus = all(finding.gpu is not None for finding in self.findings)
        return f"{len(self.findings)} {'GPUs' if of_gpus else 'times'}"

    @property
    def message(self) -> str:
        """What happened, on how many nodes; of a single finding also how many others it explains."""
        first = self.first
        if len(self.findings) == 1:
            message = first.message + (f" (+{counted(len(first.folded), 'finding')})" if first.folded else "")
            return message or first.id
        same = all(finding.message == first.message for finding in self.findings)
        example = "" if same else f" (this on {self.names.get(first.node, first.node)})"
        return f"{len(self.nodes)} nodes: {first.message}{example}"


FOLD_FROM = 6  # nodes with one and the same problem
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


def fleet_problems(nodes: Iterable[NodeView], findings: Sequence[Finding], taken_at: float) -> list[Problem]:
    """The problems of ``nodes`` where ``findings`` are those of the health rules only."""
    shown = list(nodes)
    return problems_of([node.node for node in shown], [*state_findings(shown, taken_at), *findings])


def problems_of(
    nodes: Iterable[str], findings: Sequence[Finding], names: Mapping[str, str] = MappingProxyType({})
) -> list[Problem]:
    """Worst first: what ``findings`` say of ``nodes``. ``names``: what stands for the nodes' names."""
    shown = set(nodes)
    theirs = sorted((finding for finding in findings if finding.node in shown), key=of_gravity)
    return [Problem(tuple(group), names) for group in _groups(theirs)]


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of at least FOLD_FROM nodes that say the same together, the others alone."""
    from mltop.probes.judge.health.folding import alike  # with all rules, which are not loaded before the first paint

    of_kinds = grouped(findings, alike)
    groups: list[list[Finding]] = []
    folded: set[int] = set()
    for finding in findings:
        group = of_kinds[alike(finding)]
        if len({finding.node for finding in group}) < FOLD_FROM:
            groups.append([finding])
        elif id(group) not in folded:
            folded.add(id(group))
            groups.append(group)
    return groups


@lru_cache(maxsize=64)
def folded_names(names: tuple[str, ...]) -> str:
    """The names as one node set: ``node[03-10,12]``."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


# Incidents.

# What became of the job, in a word; of what no job suffers from its severity says it.
KINDS = {
    "hang": ("HUNG", "crit"),
    "crash": ("DIED", "crit"),
    "stopped": ("ENDED", "dim"),
    "straggler": ("SLOW", "warn"),
    "starved": ("STARVED", "warn"),
    "slow": ("SLOW", "warn"),
}
_SOURCES = {"flight_recorder": "flight recorder", "ras": "NCCL RAS", "kernel": "kernel log", "health": "rules"}


def kind_cell(incident: Incident) -> Cell:
    """In the style of its severity where that is graver than what usually becomes of such a job."""
    word, style = KINDS.get(incident.kind, ("", ""))
    if not word:
        return severity_cell(incident.severity)
    return Cell(word, "crit" if incident.severity == "critical" else style)


def age_text(incident: Incident, now: float) -> str:
    """For how long it lasts, or lasted: "6m30s"."""
    if incident.since is None:
        return ""
    return seconds(max(0.0, (now if incident.until is None else incident.until) - incident.since))


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
) -> list[Happening]:
    """Everything that happened on ``node`` ("": anywhere), the newest first; without what began at an unknown time.

    ``done``: what the user has done.
    """
    listed = [
        *done,
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
