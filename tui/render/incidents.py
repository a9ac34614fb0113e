"""What is said of incidents everywhere: what became of the job in a word, for how long, and where evidence is from."""

from __future__ import annotations

from mltop.probes.model import Evidence, Incident
from mltop.probes.model.units import clock_time, seconds
from mltop.tui.render.cells import Cell
from mltop.tui.render.findings import severity_cell

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
