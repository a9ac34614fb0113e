"""Who failed first in one attempt of a job: the rule, step by step, each of which may say that it cannot tell.

1. What can be a first failure (a traceback that speaks of no peer, a kill, an assertion on the GPU), before or while
   others waited. 2. Whom somebody names (monitoredBarrier, a launcher's heartbeat). 3. Of ranks that timed out: the
   counters. 4. Who is silent while all others complain. 5. Severe lines that no row knows: a rank that all
   of them name, or the only one whose line is about itself. Otherwise nobody is named.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace

from mltop.probes.judge.evidence.blame import First
from mltop.probes.judge.evidence.counters import judge_counters
from mltop.probes.judge.evidence.roots import (
    OTHER_NODE_S,
    is_before,
    is_later,
    roots_of,
    unexplained_deaths,
    xids_before,
)
from mltop.probes.judge.evidence.scene import Attempt
from mltop.probes.judge.evidence.silence import Silence, silent_ranks
from mltop.probes.judge.values import grouped
from mltop.probes.model.evidence.logs import LogEvent


def first_of(attempt: Attempt) -> First:
    found = _of_rows(attempt)
    if not found.is_told and found.how != "stopped":
        found = _of_unread(attempt, found) or found
    found.xids = xids_before(found.events, attempt)
    return found


def _of_rows(attempt: Attempt) -> First:
    roots = roots_of(attempt)
    outside = _outside(attempt, roots)
    if outside is not None:
        return outside
    if roots:
        return _contradicted(attempt, roots) or _earliest(attempt, roots)
    mismatches = attempt.of_kind("mismatch")
    named = _of_mismatches(mismatches) if mismatches else _named(attempt)
    if named is not None:
        return named
    timeouts = attempt.of_class("timeout")
    if timeouts:
        return _of_waiting(attempt, timeouts)
    return _of_victims(attempt)


# 1. What can be a first failure.


def _subject(event: LogEvent) -> int | str | None:
    """Whose it is: a rank, a process, a node."""
    return event.rank if event.rank is not None else event.process or event.node or None


def _earliest(attempt: Attempt, roots: list[LogEvent]) -> First:
    known = [event for event in roots if _subject(event) is not None]
    bare = [event for event in roots if _subject(event) is None]
    if not known:
        return _of_nobody(attempt, roots)
    if bare and _are_alike(bare) and all(event.kind == "worker_lost" for event in known):
        if len(bare) > 1:  # whom the launcher saw first is one of several alike
            return First("program", events=[*bare[:3], *known[:1]])
        if len({event.rank for event in known}) == 1:
            known.insert(0, replace(bare[0], rank=known[0].rank))
    by_subject = _without_covered(grouped(known, _subject))
    firsts = {subject: _best(events) for subject, events in by_subject.items()}
    sure = [
        event
        for subject, event in firsts.items()
        if all(_precedes(by_subject[subject], by_subject[other], attempt) for other in firsts if other != subject)
    ]
    events = sure if len(sure) == 1 else list(firsts.values())
    if len(events) == 1 or _are_alike(events):
        return _failed(attempt, events, [each for event in events for each in by_subject[_subject(event)]])
    return First("unordered", events=sorted(events, key=lambda event: (event.at is None, event.at or 0.0))[:6])


def _are_alike(events: Sequence[LogEvent]) -> bool:
    return len({("died" if event.kind == "exit" else event.kind, event.code, event.pattern) for event in events}) == 1


def _of_nobody(attempt: Attempt, roots: list[LogEvent]) -> First:
    """Failures in a log of all, without a word whose they are: the launcher's table may say which ranks failed."""
    files = {event.file for event in roots}
    rows = (event for event in attempt.of_kind("exit") if event.how == "exit" and event.code and event.file in files)
    ranks = sorted({event.rank for event in rows if event.rank is not None})
    if _are_alike(roots) and len(ranks) > 1 and len(roots) in (1, len(ranks)):
        events = [replace(roots[0], rank=rank, node=attempt.nodes.get(rank, "")) for rank in ranks]
        return _failed(attempt, events)
    if all(event.topic == "device assert" for event in roots):  # the assertion, and the error that repeats it
        roots = [event for event in roots if event.kind == "device_assert"] or roots
    if _are_alike(roots) and not attempt.ranks:
        return First("failed", events=roots[:4])  # what it was is told, of a job whose ranks nobody tells apart
    return First("no data", events=roots[:4])


def _contradicted(attempt: Attempt, roots: Sequence[LogEvent]) -> First | None:
    """Exceptions of which nothing says when they were, nor that their ranks ended by them, while the counters say that
    others never came: one of both was survived.
    """
    ended = {event.rank for event in attempt.of_kind("exit") if event.how != "stopped"}
    if any(event.kind != "exception" or event.is_dated or event.rank in ended for event in roots):
        return None
    found = judge_counters(attempt)
    if found.how != "behind" or {event.rank for event in roots} & set(found.ranks):
        return None
    found.confidence = "medium"
    if all(event.rank in found.known for event in roots):
        return found
    events = [*roots[:3], *found.events[:3]]
    return replace(found, how="contradicted", ranks=(), events=events, sides=(found.ranks,))


def _without_covered(by_subject: dict[object, list[LogEvent]]) -> dict[object, list[LogEvent]]:
    """What is known of a node only is the same as what is known of a rank there: Slurm's word of an out-of-memory kill
    beside the launcher's of SIGKILL; NCCL's warning beside the exception of a rank whose node nobody says. But of a
    node that failed its ranks are only the victims.
    """
    every = (event for events in by_subject.values() for event in events)
    raised = {event.topic for event in every if event.rank is not None and not event.node}
    by_subject = {
        subject: events
        for subject, events in by_subject.items()
        if isinstance(subject, int) or not {event.topic for event in events} <= raised - {None}
    }
    down = {event.node for events in by_subject.values() for event in events if event.kind == "node_failure"}
    by_subject = {
        subject: events
        for subject, events in by_subject.items()
        if subject in down or not all(event.node in down for event in events)
    }
    of_ranks = ((subject, events) for subject, events in by_subject.items() if isinstance(subject, int))
    pairs = dict.fromkeys((event.node, rank) for rank, events in of_ranks for event in events)
    on = grouped(pairs, lambda pair: pair[0])
    kept = {subject: events for subject, events in by_subject.items() if subject not in on}
    for node, ((_, rank), *others) in on.items():
        if node and not others:
            kept[rank] = [*kept[rank], *(replace(event, rank=rank) for event in by_subject.get(node, ()))]
    return kept or by_subject


def _best(events: Sequence[LogEvent]) -> LogEvent:
    """The one that tells most: its own words before the launcher's."""
    order = {"oom_kill": 0, "xid": 0, "device_assert": 0, "fatal_signal": 1, "exception": 1}
    return min(events, key=lambda event: (event.by_launcher, order.get(event.kind, 3), not event.place, event.line))


def _precedes(events: Sequence[LogEvent], others: Sequence[LogEvent], attempt: Attempt) -> bool:
    return any(all(is_before(event, other, attempt) for other in others) for event in events)


def _failed(attempt: Attempt, events: Sequence[LogEvent], all_of_them: Sequence[LogEvent] = ()) -> First:
    """``events``: of each that failed the one that tells most; ``all_of_them``: whatever they did."""
    ranks = tuple(sorted({event.rank for event in events if event.rank is not None}))
    nodes = tuple(sorted({event.node for event in events if event.rank is None and event.node}))
    best = set(map(id, events))
    more = [event for event in all_of_them if id(event) not in best]
    found = First("alike" if len(events) > 1 else "failed", ranks, nodes, [*events[:4], *more[:4]])
    bare = all(event.kind in ("exit", "died") for event in events)
    found.confidence = "medium" if bare or len(events) > 1 or not ranks else "high"
    if len(ranks) > 1 and 2 * len(ranks) >= len(attempt.ranks) and not nodes and not _are_one_node(ranks, attempt):
        return First("program", events=found.events, sides=(ranks,))
    if attempt.is_thinned and len(ranks) > 1:
        return First("program", events=found.events)  # whose lines were left out is not known
    return found


def _are_one_node(ranks: Sequence[int], attempt: Attempt) -> bool:
    """All of one node, and nobody of another one: something is wrong there."""
    nodes = {attempt.nodes.get(rank, "") for rank in ranks}
    there = {rank for rank in attempt.ranks if attempt.nodes.get(rank, "") in nodes}
    return len(nodes) == 1 and "" not in nodes and there == set(ranks) and len(there) < len(attempt.ranks)


# The end came from outside.


def _outside(attempt: Attempt, roots: Sequence[LogEvent]) -> First | None:
    ends = attempt.of_class("outside")
    troubles = [*roots, *attempt.of_class("named", "timeout", "cascade")]
    failed = [event for event in attempt.of_kind("exit") if event.code and event.how != "stopped"]
    if not ends:
        asked = attempt.of_class("teardown")
        ours = [event for event in asked if event.pid is None]  # not the launcher's word that it ends its own ranks
        if ours and not troubles and not failed:
            return First("stopped", events=ours[:3], confidence="low")
        return None
    first = min(ends, key=lambda event: (event.at is None, event.at or 0.0))
    troubles += failed if first.kind in ("cancelled", "interrupted") else []
    is_first = all(_follows(event, first) for event in troubles)
    return First("stopped", events=[first], confidence="high") if is_first else None


def _follows(event: LogEvent, end: LogEvent) -> bool:
    if event.file == end.file and not event.by_launcher:
        return event.line > end.line
    if event.at is None or end.at is None:
        return event.event_class in ("cascade", "teardown")
    return event.at >= end.at - (OTHER_NODE_S if event.is_dated else 0.0)


# 2. Whom somebody names.

_ENDED_BY_OTHERS = (signal.SIGABRT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _named(attempt: Attempt) -> First | None:
    events = [event for event in attempt.of_class("named") if event.named and event.kind != "mismatch"]
    if not events:
        return None
    if all(event.kind == "child_named" for event in events):
        # Who was ended by its own watchdog, or by somebody, did not fail first.
        own = [event for event in events if event.how != "signal" or event.code not in _ENDED_BY_OTHERS]
        return _of_spawners(attempt, own)
    waiting = {event.rank for event in attempt.of_class("timeout")} - {event.rank for event in events}
    names = [set(event.named) - waiting for event in events]
    if not all(names):
        return None  # it is contradicted: who is named waited as well
    common = set.intersection(*names)
    kinds = {event.kind for event in events}
    ranks = common or (set().union(*names) if kinds <= {"barrier_named", "desync_named"} else set())
    if len(ranks) > 1 and 2 * len(ranks) > len(attempt.ranks):
        return None  # most of them: a monitor of each rank that waits says so
    if not ranks:
        return _earliest_named(attempt, events)
    return First("named", tuple(sorted(ranks)), events=events[:4], confidence="high")


def _of_mismatches(events: Sequence[LogEvent]) -> First:
    """Each says what two ranks run: those that run something else than most."""
    runs: dict[int, str] = {}
    for event in events:
        runs |= zip(event.named, (event.op, event.device), strict=False)
    few, *others = sorted(map(tuple, grouped(sorted(runs), runs.__getitem__).values()), key=len)
    told = sorted(events, key=lambda event: event.rank not in few)[:4]
    if len(others) == 1 and len(few) < len(others[0]):
        return First("differs", few, events=told, confidence="high")
    return First("sides", events=told, sides=(few, *others), op="the same collective")


def _of_spawners(attempt: Attempt, events: Sequence[LogEvent]) -> First | None:
    """A spawner numbers its own children, from 0 on each node: they are the job's ranks only where there is one."""
    if not events:
        return None
    first, *more = events
    heard = {event.speaker.rank for event in attempt.events if event.speaker.rank is not None}
    alone = not more and len({(event.file, event.speaker.task) for event in attempt.events}) == 1
    if alone and (not heard or not heard.isdisjoint({0, *first.named})):
        return First("failed", first.named, events=[first], confidence="high" if first.place else "medium")
    return First("no data", events=list(events[:4]))


def _earliest_named(attempt: Attempt, events: Sequence[LogEvent]) -> First | None:
    """Several name different ranks: the first one, if it surely was."""
    for event in events:
        others = [other for other in events if other.named != event.named]
        if others and all(
            _of_one_clock(event, other, attempt) and is_before(event, other, attempt) for other in others
        ):
            return First("named", event.named, events=[event, *others[:3]], confidence="medium")
    timed_out = attempt.of_class("timeout")
    return None if timed_out else First("unordered", events=list(events[:6]))


MONITOR_S = 5.0  # a launcher's monitor looks now and then: who complains within this may have been stuck as long


def _of_one_clock(one: LogEvent, other: LogEvent, attempt: Attempt) -> bool:
    """Of one node, or of two whose clocks can be compared: monitors of ranks complain without any other trouble."""
    if one.kind == "heartbeat_named" and abs((other.at or 0.0) - (one.at or 0.0)) < MONITOR_S:
        return False
    return one.node == other.node or {one.node, other.node} <= attempt.first_troubles.keys()


# 3. and 4. Who waited, and who did not.


def _of_waiting(attempt: Attempt, timeouts: Sequence[LogEvent]) -> First:
    found = judge_counters(attempt)
    told = [event for event in timeouts if not event.by_launcher] or list(timeouts)
    if found.how in ("behind", "differs", "sides"):
        return found
    found.events = told[:4]
    if found.how == "elsewhere":
        return found
    waiters = {event.rank for event in timeouts if event.rank is not None}
    is_gloo = all(event.kind == "gloo_timeout" for event in timeouts)
    complaining = waiters | found.known
    silent = Silence() if found.group else silent_ranks(attempt, complaining, most=1 if is_gloo else None)
    if silent.ranks:
        return First("silent", silent.ranks, events=told[:3], confidence="medium", sequence=found.sequence, op=found.op)
    named = _sick(attempt, told) or _votes(attempt)
    unheard = tuple(rank for rank in attempt.ranks if rank not in found.known)
    if named is not None or (found.how == "launched" and not unheard and not attempt.is_thinned):
        return named or found
    lacking = tuple(rank for rank in silent.lacking or unheard if rank not in waiters)
    return replace(found, how="no data", lacking=lacking)


def _sick(attempt: Attempt, told: Sequence[LogEvent]) -> First | None:
    """The only one whose own process was stuck: its watchdog, or Python's lock."""
    hints = [event for event in attempt.of_class("hint") if event.kind != "port" and event.rank is not None]
    ranks = {event.rank for event in hints if event.rank is not None}
    return First("sick", tuple(ranks), events=[*hints[:2], *told[:2]], confidence="low") if len(ranks) == 1 else None


def _votes(attempt: Attempt) -> First | None:
    """The host that most of the others name, where there are enough of them."""
    events = [event for event in attempt.of_kind("network") if event.code == _RETRIES_EXHAUSTED]
    votes = Counter(peer for peer, _ in {(event.peer, event.node or event.rank) for event in events}).most_common(2)
    if not votes or votes[0][1] < 2 or any(2 * count > votes[0][1] for _, count in votes[1:]):
        return None
    peer = votes[0][0]
    of_it = [event for event in events if event.peer == peer]
    return First("network", nodes=(peer,), events=of_it[:4], confidence="medium")


_RETRIES_EXHAUSTED = 12


def _left(attempt: Attempt, victims: Set[int]) -> Silence | None:
    """Who alone has no row in the launcher's table of failures: it ended well while the others needed it."""
    failed = {event.rank for event in attempt.of_kind("exit")}
    ranks = [rank for rank in attempt.ranks if rank not in failed]
    spoke = len(ranks) == 1 and len(attempt.ranks) > 2 and ranks[0] in attempt.presence
    return Silence((ranks[0],)) if spoke and ranks[0] not in victims else None


def _of_victims(attempt: Attempt) -> First:
    """All that is left are complaints about others, or bare exit codes."""
    stalled = attempt.of_kind("stuck_watchdog")
    if stalled:
        sick = _sick(attempt, stalled) if len(attempt.presence) > 1 else None
        return sick or First("stalled", events=stalled[:4])
    events = attempt.of_class("cascade")
    exits = [event for event in attempt.troubles if event.event_class == "fact"]
    if not events and not exits:
        rows = attempt.of_kind("exit")  # a launcher's table of failures: something did fail
        return First("only victims" if rows else "cut off" if attempt.is_cut else "nothing", events=rows[:3])
    dead = unexplained_deaths(attempt)
    return _failed(attempt, dead) if dead else _votes(attempt) or _of_lost(attempt, events, exits)


def _of_lost(attempt: Attempt, events: Sequence[LogEvent], exits: Sequence[LogEvent]) -> First:
    """Who is silent while others lost connections."""
    if not any(event.kind in ("peer_lost", "peer_exception") for event in events):
        return First("only victims", events=[*events[:2], *exits[:2]])
    victims = {event.rank for event in events if event.rank is not None}
    silent = _left(attempt, victims) or silent_ranks(attempt, victims, most=1)
    # Whom its launcher had to end lived until then: the connection was not lost by its death.
    lived = {event.rank for event in attempt.of_kind("exit") if event.how == "stopped"}
    if silent.ranks and not lived & set(silent.ranks):
        return First("silent", silent.ranks, events=list(events[:4]), confidence="low")
    return First("only victims", events=[*events[:3], *exits[:1]], lacking=silent.lacking)


# 5. Lines that no row knows, where nothing else explains a failure.


def _of_unread(attempt: Attempt, found: First) -> First | None:
    """``found``: what the rows come to. Only where something did fail: such lines are in healthy logs, too."""
    if found.how not in ("no data", "only victims"):
        return None
    blamed = [event for event in attempt.of_kind("blamed") if event.named]
    common = set.intersection(*(set(event.named) for event in blamed)) if blamed else set()
    waiting = {event.rank for event in attempt.of_class("timeout")}
    is_rank = common <= set(attempt.ranks)  # else it may be a pid
    if common and is_rank and not common & waiting and 2 * len(common) <= len(attempt.ranks):
        return First("named", tuple(sorted(common)), events=blamed[:4], confidence="medium")
    own = [event for event in attempt.of_kind("severe") if not is_later(event, attempt)]
    ranks = {event.rank for event in own if event.rank is not None}
    complaints = [*attempt.of_class("timeout", "cascade"), *attempt.of_kind("complaint")]
    others = {event.rank for event in complaints} - {None, *ranks}
    if len(ranks) == 1 and others and all(event.rank is not None for event in own):
        return First("failed", tuple(ranks), events=own[:4], confidence="low")
    return None
