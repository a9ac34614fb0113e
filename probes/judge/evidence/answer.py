"""What became of a job: each of its attempts judged, one of them told as an incident, and how each rank ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mltop.probes.judge.evidence.blame import First
from mltop.probes.judge.evidence.first import first_of
from mltop.probes.judge.evidence.jobs import JobFiles
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
from mltop.probes.model.vocabulary import CulpritKind, IncidentKind, Severity

MOST_EVIDENCE = 12
MOST_CULPRITS = 4096
MOST_TELLING = 4
_KINDS: dict[str, IncidentKind] = {
    "failed": "crash",
    "alike": "crash",
    "program": "crash",
    "unordered": "crash",
    "network": "crash",
    "only victims": "crash",
    "contradicted": "crash",
    "cut off": "crash",
    "stopped": "stopped",
}
_DID: dict[str, CulpritKind] = {
    "failed": "dead",
    "alike": "dead",
    "behind": "elsewhere",
    "differs": "elsewhere",
    "silent": "stands",
    "named": "stands",
    "sick": "stands",
}


def explained(job: JobFiles) -> ExplainedJob:
    attempts = attempts_of(job)
    firsts = [first_of(attempt) for attempt in attempts]
    at = _told(attempts, firsts)
    attempt, first = attempts[at], firsts[at]
    told = ExplainedJob(job.name, attempt.world_size, attempts=len(attempts), files=[file.path for file in job.files])
    told.first_at = min(known(file.first_at for file in job.files), default=None)
    told.ranks = rank_ends(attempt)
    told.coverage = _coverage(attempt)
    told.gaps = _gaps(job, attempt)
    told.is_told = first.is_told or first.how == "stopped"
    is_of_training = any(file.is_of_training for file in job.files)
    if not is_of_training or (first.how == "nothing" and not attempts[-1].troubles):
        _without_failure(told, job, attempts[-1], is_of_training=is_of_training)
        return told
    told.incident = _incident(job, attempt, first)
    if first.confidence != "high" or any(
        event.kind == "worker_lost" for event in first.events[:1]
    ):  # a supervisor does not say why
        earliest = sorted(attempt.troubles, key=lambda event: (event.at is None, event.at or 0.0, event.line))[:1]
        more = [*_quotes(earliest), *_telling(job, attempt)]
        places = {evidence.where for evidence in told.incident.evidence}
        told.incident.evidence += [evidence for evidence in more if evidence.where not in places]
    told.incident.evidence += _other_attempts(attempts, firsts, at)
    told.settings = settings_for(attempt, first)
    told.incident.next = next_for(first, told.settings)
    return told


UNSEEN = "unseen"


def _without_failure(told: ExplainedJob, job: JobFiles, attempt: Attempt, *, is_of_training: bool) -> None:
    """It ended well where that is seen. Silence is no good end: the job may still run, or have been killed."""
    told.is_told = bool(attempt.ends) and is_of_training
    if told.is_told:
        ends = ((end.text, f"{path}:{end.latest}") for path, end in attempt.ends.items())
        told.good_end = [Evidence("log", text, None, where) for text, where in ends][:MOST_TELLING]
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
    for index, first in enumerate(firsts):
        if first.is_told:
            return index
    return next((index for index, first in enumerate(firsts) if first.how != "nothing"), len(attempts) - 1)


def _incident(job: JobFiles, attempt: Attempt, first: First) -> Incident:
    waited = bool(attempt.of_class("timeout"))
    kind = _KINDS.get(first.how, "hang")
    if first.how in ("silent", "named", "no data", "nothing") and not waited and not attempt.of_class("named"):
        kind = "crash"
    severity: Severity = "info" if kind == "stopped" else "critical"
    times = [event.at for event in first.events if event.at is not None]
    begun = [event.at - event.ran_s for event in attempt.of_class("timeout") if event.at and event.ran_s]
    ranks = attempt.ranks
    culprits = set(first.ranks)
    others = [rank for rank in ranks if rank not in culprits]
    ended = [end.rank for end in rank_ends(attempt) if end.death is not None]
    return Incident(
        id=f"explain:{job.name}:{first.how}:{fold(first.ranks) or ','.join(first.nodes)}",
        kind=kind,
        severity=severity,
        headline=headline(attempt, first),
        job=job.name,
        since=min(begun) if kind == "hang" and begun else min(times, default=None),
        until=max((event.at for event in attempt.events if event.at is not None), default=None),
        culprits=_culprits(attempt, first),
        suffers=Suffers(
            ranks=Ranges.of(ranks),
            waiting=Ranges.of(others) if kind == "hang" and first.is_told else Ranges(),
            waits_in=first.op,
            ended=Ranges.of(ended),
        ),
        evidence=[*_quotes(first.events or attempt.troubles), *_stacks(attempt, first)],
        confidence=first.confidence if first.is_told or first.how == "stopped" else "low",
        action=action_for(first),
    )


def _culprits(attempt: Attempt, first: First) -> list[Culprit]:
    if not first.is_told:
        return []
    how = _DID.get(first.how, "")
    found = []
    for rank in first.ranks[:MOST_CULPRITS]:
        own = next((event for event in first.events if event.rank == rank), None)
        node = attempt.nodes.get(rank, own.node if own is not None else "")
        ends = (event for event in attempt.by_rank.get(rank, ()) if event.kind == "exit")
        pid = next((event.pid for event in ends if event.pid), None)
        where = own.place if own is not None and first.how in ("failed", "alike") else ""
        found.append(Culprit(rank, node, pid, reason_of(first, own), where, how=how))
    for node in first.nodes:
        event = next((each for each in first.events if each.node == node), first.events[0])
        pid = event.pid or event.speaker.pid if first.how == "failed" else None  # of a rank whose number nobody says
        found.append(Culprit(None, node, pid, reason_of(first, event), event.place if pid is not None else "", how=how))
    for event in first.events[:1] if not found and first.how == "failed" else ():
        if event.process:
            found.append(Culprit(None, "", event.pid, reason_of(first, event), event.place, how=how))
    return found


def _stacks(attempt: Attempt, first: First) -> list[Evidence]:
    """Where faulthandler saw those who are named: its last thread is the main one."""
    found = []
    for rank in first.ranks[:4] if first.is_told else ():
        stacks = [event for event in attempt.by_rank.get(rank, ()) if event.kind == "stack" and event.frames]
        if stacks:
            last = stacks[-1]
            found.append(Evidence("stacks", f"rank {rank} stood in {last.frames[0]}", last.at, last.where))
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
    source = (
        "launcher" if event.kind in ("exit", "died", "agent_failed", "launcher_failed") or event.by_launcher else "log"
    )
    who = f"rank {event.rank}: " if event.rank is not None and event.kind not in ("exit", "died") else ""
    return Evidence("kernel" if event.kind == "xid" else source, f"{who}{event.text}", event.at, event.where)  # type: ignore[arg-type]


def _other_attempts(attempts: Sequence[Attempt], firsts: Sequence[First], told: int) -> list[Evidence]:
    return [
        Evidence("log", f"attempt {attempt.number}: {headline(attempt, first)}")
        for index, (attempt, first) in enumerate(zip(attempts, firsts, strict=True))
        if index != told and first.how != "nothing"
    ][:4]


def rank_ends(attempt: Attempt) -> list[RankEnd]:
    """How each rank ended, as far as it or its launcher says."""
    return [_end(rank, attempt.by_rank.get(rank, []), attempt) for rank in attempt.ranks]


def _end(rank: int, events: Sequence[LogEvent], attempt: Attempt) -> RankEnd:
    presence = attempt.presence.get(rank)
    end = RankEnd(rank, attempt.nodes.get(rank, ""))
    if presence is not None:
        end.file, end.last_line_at = presence.file, presence.last_at
    counts = [event for event in events if event.enqueued is not None and not event.group]
    counts = counts or [event for event in events if event.enqueued is not None]
    if counts:
        end.enqueued = max(event.enqueued for event in counts if event.enqueued is not None)
        end.completed = max((event.completed for event in counts if event.completed is not None), default=None)
    end.death = _death(events)
    if end.last_line_at is None:
        end.last_line_at = max((event.at for event in events if event.at is not None and event.is_dated), default=None)
    return end


def _death(events: Sequence[LogEvent]) -> Death | None:
    oom = next((event for event in events if event.kind == "oom_kill"), None)
    told = next((event for event in events if event.kind in ("exit", "died")), None)
    if oom is not None:
        return Death("oom", oom.code, (told or oom).at)
    if told is not None:
        return Death(told.how, told.code, told.at)
    fatal = next((event for event in events if event.kind == "fatal_signal"), None)
    if fatal is not None:
        return Death("signal", fatal.code, fatal.at)
    raised = next((event for event in events if event.kind in ("exception", "peer_exception")), None)
    if raised is not None:
        return Death("exit", None, raised.at)
    aborted = next((event for event in events if event.kind in ("aborted", "collective_timeout")), None)
    return Death("unknown", None, aborted.at) if aborted is not None else None


def _coverage(attempt: Attempt) -> float | None:
    ranks = attempt.ranks
    if not ranks:
        return None
    spoke = {event.rank for event in attempt.events if not event.by_launcher and event.kind != "exit"}
    heard = [rank for rank in ranks if rank in spoke or (rank in attempt.presence and attempt.presence[rank].lines)]
    return len(heard) / len(ranks)


def _gaps(job: JobFiles, attempt: Attempt) -> list[Gap]:
    gaps = [gap for file in job.files for gap in file.gaps][:64]
    ranks = attempt.ranks
    mute = [
        rank
        for rank in ranks
        if all(event.kind == "exit" for event in attempt.by_rank.get(rank, ()))
        and (rank not in attempt.presence or not attempt.presence[rank].lines)
    ]
    if mute:
        gaps.append(Gap.about("ranks", item=fold(mute), why="no line of theirs is in these files"))
    cut = [rank for rank, each in attempt.presence.items() if each.lines and not each.is_whole]
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
