"""What became of a job: each of its attempts judged, one of them told as an incident, and how each rank ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mltop.probes.judge.evidence.blame import First
from mltop.probes.judge.evidence.first import first_of
from mltop.probes.judge.evidence.jobs import JobFiles
from mltop.probes.judge.evidence.roots import is_survived, roots_of
from mltop.probes.judge.evidence.scene import Attempt, attempts_of
from mltop.probes.judge.evidence.words import (
    action_for,
    headline,
    headline_of_unseen,
    next_for,
    reason_of,
    settings_for,
)
from mltop.probes.judge.values import known
from mltop.probes.model.evidence.logs import Death, ExplainedJob, LogEvent, RankEnd
from mltop.probes.model.gap import Gap
from mltop.probes.model.incident import Evidence, Incident, Suffers
from mltop.probes.model.ranks import Ranges, fold
from mltop.probes.model.verdict import Culprit
from mltop.probes.model.vocabulary import CulpritKind, DeathKind, EvidenceSource, IncidentKind

MOST_EVIDENCE = 12
MOST_CULPRITS = 4096
MOST_TELLING = 4
_CRASHES = ("failed", "alike", "program", "unordered", "network", "only victims", "contradicted", "cut off")
_STANDING = ("sick", "stalled")  # whoever waits
_DEAD, _ELSEWHERE, _STANDS = ("failed", "alike"), ("behind", "differs"), ("silent", "named", "sick")


def explained(job: JobFiles) -> ExplainedJob:
    attempts = attempts_of(job)
    firsts = [first_of(attempt) for attempt in attempts]
    at = _told(attempts, firsts)
    attempt, first = attempts[at], firsts[at]
    told = ExplainedJob(job.name, attempt.world_size, attempts=len(attempts), files=[file.path for file in job.files])
    told.first_at = min(known(file.first_at for file in job.files), default=None)
    told.ranks = [_end(rank, attempt) for rank in attempt.ranks]
    spoke = {event.rank for event in attempt.events if not event.by_launcher and event.kind != "exit"}
    spoke |= {rank for rank, own in attempt.presence.items() if own.lines}
    mute = [rank for rank in attempt.ranks if rank not in spoke]
    told.coverage = (len(told.ranks) - len(mute)) / len(told.ranks) if told.ranks else None
    told.gaps = _gaps(job, attempt, mute)
    told.is_told = first.is_told or first.how == "stopped"
    is_of_training = any(file.is_of_training for file in job.files)
    if not is_of_training or (first.how == "nothing" and not attempts[-1].troubles):
        _without_failure(told, job, attempts[-1], is_of_training=is_of_training)
        return told
    told.incident = _incident(told, attempt, first)
    is_of_supervisor = first.best is not None and first.best.kind == "worker_lost"  # which does not say why
    if first.confidence != "high" or is_of_supervisor:
        earliest = sorted(attempt.troubles, key=lambda event: (event.at is None, event.at or 0.0, event.line))[:1]
        of_nobody = [event for event in roots_of(attempt) if event.rank is None]
        earliest += sorted(of_nobody, key=lambda event: event.line)[:1]
        places = {evidence.where for evidence in told.incident.evidence}
        for evidence in (*_quotes(earliest), *_telling(job, attempt)):
            if evidence.where not in places:
                told.incident.evidence.append(evidence)
                places.add(evidence.where)
    others = (
        each for each in zip(attempts, firsts, strict=True) if each[0] is not attempt and each[1].how != "nothing"
    )
    told.incident.evidence += [
        Evidence("log", f"attempt {each.number}: {headline(each, its)}") for each, its in others
    ][:4]
    told.settings = settings_for(attempt, first)
    told.incident.next = next_for(first, told.settings)
    return told


UNSEEN = "unseen"


def _without_failure(told: ExplainedJob, job: JobFiles, attempt: Attempt, *, is_of_training: bool) -> None:
    """It ended well where that is seen. Silence is no good end: the job may still run, or have been killed."""
    told.is_told = bool(attempt.ends) and is_of_training
    if told.is_told:
        ends = [Evidence("log", end.text, None, f"{path}:{end.latest}") for path, end in attempt.ends.items()]
        told.good_end = ends[:MOST_TELLING]
        return
    lines = _telling(job, attempt)
    told.incident = Incident(
        id=f"explain:{job.name}:{UNSEEN}",
        kind="crash",
        severity="warning",
        headline=headline_of_unseen(lines[0].text if lines else "", is_of_training),
        job=job.name,
        evidence=lines,
        confidence="low",
    )


def _telling(job: JobFiles, attempt: Attempt) -> list[Evidence]:
    """Severe lines at the end of files that no row knows, for readers to judge; those of few writers come first."""
    unread = attempt.of_class("unread")
    counts = Counter(event.pattern for event in unread)
    alike = {event.pattern: event for event in reversed(unread)}
    rare = sorted(alike.values(), key=lambda event: counts[event.pattern])
    last = [
        Evidence("log", file.telling, None, f"{file.path}:{file.telling_line}") for file in job.files if file.telling
    ]
    return ([_evidence(event) for event in rare] or last)[:MOST_TELLING]


def _told(attempts: Sequence[Attempt], firsts: Sequence[First]) -> int:
    """The first attempt whose failure is explained: those after it mostly fail for what it left. One that ended well
    after others is what became of the job.
    """
    if not attempts[-1].troubles and firsts[-1].how == "nothing":
        return len(attempts) - 1
    named = [index for index, first in enumerate(firsts) if first.is_told]
    failed = [index for index, first in enumerate(firsts) if first.how != "nothing"]
    return (named or failed or [len(attempts) - 1])[0]


def _incident(told: ExplainedJob, attempt: Attempt, first: First) -> Incident:
    kind = _kind(attempt, first)
    times = known(event.stamped_at for event in first.events)
    times = times or known(end.death.at for end in told.ranks if end.death is not None and end.rank in first.ranks)
    begun = known(event.waited_since for event in attempt.of_class("timeout"))
    others = set(attempt.ranks) - set(first.ranks)
    return Incident(
        id=f"explain:{told.job}:{first.how}:{fold(first.ranks) or ','.join(first.nodes)}",
        kind=kind,
        severity="info" if kind == "stopped" else "critical",
        headline=headline(attempt, first),
        job=told.job,
        since=min(begun if kind == "hang" and begun else times, default=None),
        until=max(known(event.at for event in attempt.events), default=None),
        culprits=_culprits(attempt, first),
        suffers=Suffers(
            ranks=Ranges.of(attempt.ranks),
            waiting=Ranges.of(others if kind == "hang" and first.is_told else ()),
            waits_in=first.op,
            ended=Ranges.of(end.rank for end in told.ranks if end.death is not None),
        ),
        evidence=[
            *_quotes([*first.events[:1], *first.xids, *first.events[1:]] or attempt.troubles),
            *_stacks(attempt, first),
        ],
        confidence=first.confidence if first.is_told or first.how == "stopped" else "low",
        action=action_for(first),
    )


def _kind(attempt: Attempt, first: First) -> IncidentKind:
    if first.how == "stopped":
        return "stopped"
    stood = first.how in _STANDING or attempt.of_class("timeout", "named")
    return "hang" if stood and first.how not in _CRASHES else "crash"


def _culprits(attempt: Attempt, first: First) -> list[Culprit]:
    if not first.is_told:
        return []
    how: CulpritKind = "dead" if first.how in _DEAD else "elsewhere" if first.how in _ELSEWHERE else ""
    how = "stands" if first.how in _STANDS else how
    found = []
    for rank in first.ranks[:MOST_CULPRITS]:
        own = next((event for event in first.events if event.rank == rank), None)
        node = attempt.nodes.get(rank, own.node if own is not None else "")
        ends = (event for event in attempt.by_rank.get(rank, ()) if event.kind == "exit")
        pid = next((event.pid for event in ends if event.pid), None)
        where = own.place if own is not None and first.how in _DEAD else ""
        found.append(Culprit(rank, node, pid, reason_of(first, own), where, how=how))
    is_process = not first.ranks and first.how == "failed" and any(event.process for event in first.events[:1])
    for node in first.nodes or ([""] if is_process else []):
        event = next((each for each in first.events if each.node == node), first.events[0])
        pid = first.pid if first.how == "failed" else None  # of a rank whose number nobody says
        where = event.place if pid is not None or is_process else ""
        found.append(Culprit(None, node, pid, reason_of(first, event), where, how=how))
    return found


def _stacks(attempt: Attempt, first: First) -> list[Evidence]:
    """Where faulthandler saw those who are named: its last thread is the main one."""
    found = []
    for rank in first.ranks[:4] if first.is_told else ():
        stacks = [event for event in attempt.by_rank.get(rank, ()) if event.kind == "stack" and event.frames]
        for last in stacks[-1:]:
            found.append(Evidence("stacks", f"rank {rank} was in {last.frames[0]}", last.stamped_at, last.where))
    return found


def _quotes(events: Sequence[LogEvent]) -> list[Evidence]:
    """Each saying of a rank once: its error file and its launcher repeat what stands in its log, cut elsewhere."""
    shown: dict[tuple[int | None, str], LogEvent] = {}
    for event in events:
        key = (event.rank, event.text[:60])
        if key not in shown or (not shown[key].is_dated and event.is_dated and not event.by_launcher):
            shown[key] = event
    return [_evidence(event) for event in list(shown.values())[:MOST_EVIDENCE]]


def _evidence(event: LogEvent) -> Evidence:
    is_about = event.kind in ("exit", "died")
    is_launchers = is_about or event.by_launcher or event.kind in ("agent_failed", "launcher_failed")
    source: EvidenceSource = "kernel" if event.kind == "xid" else "launcher" if is_launchers else "log"
    who = f"rank {event.rank}: " if event.rank is not None and not is_about else ""
    return Evidence(source, f"{who}{event.text}", event.stamped_at, event.where)


def _end(rank: int, attempt: Attempt) -> RankEnd:
    """How it ended, as far as it or its launcher says."""
    events = attempt.by_rank.get(rank, [])
    counts = [event for event in events if event.enqueued is not None]
    counts = [event for event in counts if not event.group] or counts
    own = attempt.presence.get(rank)
    last = own.last_at if own is not None else None
    return RankEnd(
        rank,
        attempt.nodes.get(rank, ""),
        _death(events, attempt),
        max(known(event.enqueued for event in counts), default=None),
        max(known(event.completed for event in counts), default=None),
        last if last is not None else max(known(each.stamped_at for each in events), default=None),
        own.file if own is not None else "",
    )


_DEATHS: tuple[tuple[DeathKind, tuple[str, ...]], ...] = (
    ("signal", ("fatal_signal",)),
    ("exit", ("exception", "peer_exception")),
    ("unknown", ("aborted", "collective_timeout")),
)


def _death(events: Sequence[LogEvent], attempt: Attempt) -> Death | None:
    """The launcher's word counts more than the rank's own; what the rank survived is none."""
    events = [event for event in events if not is_survived(event, attempt)]
    oom = next((event for event in events if event.kind == "oom_kill"), None)
    told = next((event for event in events if event.kind in ("exit", "died")), None)
    if oom is not None:
        return Death("oom", oom.code, (told or oom).stamped_at)
    if told is not None:
        return Death(told.how, told.code, told.stamped_at)
    own = ((how, event) for how, kinds in _DEATHS for event in events if event.kind in kinds)
    return next((Death(how, event.code, event.stamped_at) for how, event in own), None)


def _gaps(job: JobFiles, attempt: Attempt, mute: Sequence[int]) -> list[Gap]:
    gaps = [gap for file in job.files for gap in file.gaps][:64]
    if mute:
        gaps.append(Gap.about("ranks", item=fold(mute), why="no line of theirs is in these files"))
    cut = [rank for rank, own in attempt.presence.items() if own.is_cut]
    if cut:
        gaps.append(Gap.about("ranks", item=fold(cut), why="their logs were cut off, or lines were left out of them"))
    if attempt.is_thinned:
        why = "Ray left out lines that it took for repeated ones"
        gaps.append(Gap.about("log", why=why, fix="RAY_DEDUP_LOGS=0"))
    return gaps


_ENDED_FROM_OUTSIDE = ("TIMEOUT", "CANCELLED", "PREEMPTED", "DEADLINE", "REVOKED")
_FAILED = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL")


def with_slurms_word(job: ExplainedJob, state: str) -> None:
    """Slurm knows that a job did not end well of which its files say nothing. ``state``: as sacct spells it."""
    unseen = job.incident is not None and job.incident.id.endswith(f":{UNSEEN}")
    if unseen and state == "COMPLETED":
        job.incident, job.is_told = None, True
    if (job.incident is not None and not unseen) or state not in (*_ENDED_FROM_OUTSIDE, *_FAILED):
        return
    is_stopped = state in _ENDED_FROM_OUTSIDE
    said = state.lower().replace("_", " ")
    headline = f"stopped from outside: Slurm calls it {said}"
    if not is_stopped:
        headline = f"cannot tell who failed first: Slurm calls it {said}, and nothing in these files says why"
    job.incident = Incident(
        id=f"explain:{job.job}:slurm",
        kind="stopped" if is_stopped else "crash",
        severity="info" if is_stopped else "critical",
        headline=headline,
        job=job.job,
        evidence=[Evidence("launcher", f"Slurm's state of job {job.job}: {state}")],
    )
    job.is_told = is_stopped
