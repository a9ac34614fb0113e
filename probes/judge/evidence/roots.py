"""What can have been the first failure of an attempt, and which of two came before the other, as far as clocks tell."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from mltop.probes.judge.evidence.scene import Attempt
from mltop.probes.judge.evidence.writers import host_of
from mltop.probes.judge.values import known
from mltop.probes.model.evidence.logs import LogEvent

SAME_NODE_S, OTHER_NODE_S = 0.05, 2.0  # how far apart two stamps must be for their order to count
ROUGH_S = 1.5  # where one of them is in whole seconds
LATEST_S = 5.0  # after the first timeout a failure may still be written
LONGEST_STEP_S = 1800.0  # a failure longer than this before anybody waited was survived
OLD_S = 600.0  # a kernel's line longer than this before any of the job's trouble is of something else
_NEAR_LINES = 200  # in one log of all, where a line has no stamp
_COMPLAINTS = ("named", "timeout", "cascade", "teardown")
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS)
_OF_AN_EXCEPTION = 1  # the code of a Python that ends by one
_OWN_SIGNALS = (signal.SIGKILL, *_CRASHES)


def roots_of(attempt: Attempt) -> list[LogEvent]:
    """Of their own, and neither survived nor after their rank's complaints about others."""
    found = [event for event in attempt.of_class("root") if _is_possible(event, attempt)]
    found += [event for event in attempt.of_kind("exit") if _is_own_death(event, attempt)]
    found += _repeated(found, attempt)
    found = [event for event in found if not is_later(event, attempt) and not is_survived(event, attempt)]
    return [_of_its_rank(event, found, attempt) for event in found]


def _repeated(found: list[LogEvent], attempt: Attempt) -> list[LogEvent]:
    """Who ends in the words of an exception of others failed, too: its traceback began before its file did."""
    raised = {(event.file, event.pattern) for event in found if event.kind == "exception"}
    known = {(event.rank, event.node) for event in found} | {(None, "")}
    return [
        replace(event, kind="exception")
        for event in attempt.of_kind("severe")
        if (event.rank, event.node) not in known and (event.file, event.pattern) in raised
    ]


def _is_possible(event: LogEvent, attempt: Attempt) -> bool:
    if event.kind == "node_failure":
        return bool(event.node)
    if event.kind == "died":  # srun names tasks as they end: the first one alone is no consequence
        rows = [each for each in attempt.of_kind("exit", "died", "oom_kill") if each.file == event.file and each.named]
        rows = [each for each in rows if each.line <= event.line]
        are_alike = all(each.code == event.code and each.kind == "died" for each in rows)
        return bool(rows) and len(rows[0].named) == 1 and are_alike
    if event.rank is None and (event.kind == "xid" or (event.kind == "oom_kill" and event.pid is not None)):
        # Of a machine's log, which has other days in it.
        troubles = attempt.of_class("timeout", "cascade")
        begun = known(other.waited_since or other.at for other in troubles if other.is_dated)
        if not begun or event.at is None or not event.is_dated:
            return False
        return -OLD_S <= event.at - min(begun) <= LONGEST_STEP_S
    return True


def xids_before(errors: Sequence[LogEvent], attempt: Attempt) -> list[LogEvent]:
    """The kernel log's Xids shortly before the CUDA errors of ``errors``: of a GPU that may be theirs."""
    of_gpus = [event for event in errors if event.kind == "exception" and event.device == "GPU"]
    xids = (event for event in attempt.of_kind("xid") if all(event.where != error.where for error in errors))
    return [xid for xid in xids if any(_may_explain(xid, error, attempt) for error in of_gpus)]


def _of_its_rank(event: LogEvent, roots: Sequence[LogEvent], attempt: Attempt) -> LogEvent:
    """An Xid on the node of the only rank that had a CUDA error shortly after it is of that rank's GPU."""
    if event.kind != "xid" or event.rank is not None or not event.node:
        return event
    errors = {error.rank: error for error in roots if xids_before([error], attempt).count(event)}
    rank, error = next(iter(errors.items()), (None, event))
    return replace(event, rank=rank) if len(errors) == 1 and _node_of(error, attempt) else event


def _node_of(event: LogEvent, attempt: Attempt) -> str:
    return host_of(event.node or ("" if event.rank is None else attempt.nodes.get(event.rank, "")))


def _may_explain(xid: LogEvent, error: LogEvent, attempt: Attempt) -> bool:
    nodes = {_node_of(xid, attempt), _node_of(error, attempt)} - {""}
    if len(nodes) > 1 or len({xid.rank, error.rank} - {None}) > 1:
        return False
    if xid.is_dated and xid.at is not None and error.at is not None:
        late_s = LATEST_S if error.is_dated else OLD_S  # then it is only known to be after the stamp above it
        return -late_s <= error.at - xid.at <= OLD_S
    return xid.file == error.file and 0 < error.line - xid.line <= _NEAR_LINES


def _is_own_death(event: LogEvent, attempt: Attempt) -> bool:
    """By a signal that nobody sends who tears a job down, and first of those that its launcher saw."""
    if event.how != "signal" or event.rank is None:
        return False
    if not event.is_first:  # or it crashed just as the first one did
        firsts = (other for other in attempt.of_kind("exit") if other.is_first and other.file == event.file)
        return event.code in _CRASHES and any(first.how == "signal" and first.code == event.code for first in firsts)
    if event.code in _OWN_SIGNALS:
        return not _may_follow(event, attempt)
    if event.code != signal.SIGABRT:
        return False
    # A watchdog ends its rank so, too. Where nothing of one stands in that rank's own lines, it was something else.
    heard = attempt.presence.get(event.rank)
    waited = attempt.of_class("timeout") or attempt.of_kind("aborted", "counters", "peer_exception", "dump_signal")
    return heard is not None and heard.is_whole and not waited


def unexplained_deaths(attempt: Attempt) -> list[LogEvent]:
    """Failures that launchers saw of ranks that do not complain of others, while others do, or were ended by their
    launcher. Where several are, those that its first line reports killed: it reports tasks as they end. Also the only
    one that failed and complains, where its launcher had to end all others.
    """
    complaining = {event.rank for event in attempt.of_class("cascade", "timeout", "named") if not event.by_launcher}
    all_rows = attempt.of_kind("exit", "died")
    stopped = {event.rank for event in all_rows if event.how == "stopped"}
    rows = [event for event in all_rows if event.code and event.how != "stopped"]
    dead = {event.rank: event for event in rows if event.rank is not None and event.rank not in complaining}
    if len(dead) > 1:
        first = min(event.line for event in rows)
        is_one = len({event.file for event in rows}) == 1
        kills = {rank: event for rank, event in dead.items() if event.how == "signal" and event.line == first}
        dead = kills if is_one else {}
    others = complaining if None in complaining else complaining | stopped
    is_known = all(_is_own_end(event, attempt, is_alone=not complaining - {None}) for event in dead.values())
    if dead and others - {None, *dead} and is_known:
        return list(dead.values())
    failed = [event for event in rows if event.rank is not None]
    is_alone = len(failed) == 1 and stopped >= set(attempt.ranks) - {failed[0].rank} and len(attempt.ranks) > 1
    return failed if is_alone and complaining == {failed[0].rank} and not attempt.of_class("timeout") else []


def _is_own_end(event: LogEvent, attempt: Attempt, *, is_alone: bool) -> bool:
    """Whether its own lines would say that it had waited for others, or its end needs no other rank. ``is_alone``:
    nobody complains of it.
    """
    heard = attempt.presence.get(event.rank) if event.rank is not None else None
    has_lines = heard is not None and heard.lines > 0
    if is_alone and heard is not None:
        has_lines = heard.is_whole and any("stdout" not in stream for stream in heard.streams)
    is_odd = event.how == "signal" and event.code in _OWN_SIGNALS
    return has_lines or is_odd or (not is_alone and event.code != _OF_AN_EXCEPTION)


def _may_follow(event: LogEvent, attempt: Attempt) -> bool:
    """Another node's launcher lost a rank, nobody knows by what, and not surely later: Slurm kills the rest then."""
    return any(
        not (other is event or other.rank == event.rank or other.how == "stopped" or is_before(event, other, attempt))
        and not any(own.event_class in ("cascade", "timeout") for own in attempt.by_rank.get(other.rank, ()))
        for other in attempt.of_kind("exit")
        if other.is_first and other.code
    )


def is_later(event: LogEvent, attempt: Attempt) -> bool:
    """After its own rank's complaint about others, or after those had given up waiting."""
    for other in attempt.by_rank[event.rank]:
        # A program that aborts itself says why in a line before it.
        explains = other.event_class == "unread" and event.kind == "fatal_signal" and event.code == signal.SIGABRT
        if other is event or other.by_launcher or not (explains or other.event_class in _COMPLAINTS):
            continue
        if other.kind == "network" or (
            event.rank is None and (other.file != event.file or event.kind != "fatal_signal")
        ):
            continue
        # A supervisor reports in the log of its workers.
        is_below = event.kind == "worker_lost" and other.file == event.file and other.line < event.line
        if is_below or is_before(other, event, attempt):
            return True
    # Where another process prints what was raised, it does so later.
    is_repeated = event.pid is not None and event.pid != event.speaker.pid and event.kind == "exception"
    if not (event.is_dated or is_repeated or event.kind == "node_failure") and any(
        other.file == event.file and other.line < event.line and other.rank != event.rank
        for other in attempt.of_kind("aborted")
    ):
        return True  # in one log of all, after a watchdog had ended another rank
    # Without a stamp of its own it is no older than the line before it, where others write into the same file.
    own = attempt.first_ends.get(event.file)
    end = min(attempt.first_ends.values(), default=None) if event.is_dated else own
    return end is not None and event.at is not None and event.at > end + LATEST_S + attempt.clock_doubt_s


def is_survived(event: LogEvent, attempt: Attempt) -> bool:
    """An exception that was caught: its rank went on after it."""
    if event.survived:
        return True
    if event.kind != "exception" or event.rank is None:
        return False
    own = attempt.by_rank.get(event.rank, ())
    waits = [other for other in own if other.event_class == "timeout" and not other.by_launcher]
    if any(other.file == event.file and other.line > event.line for other in waits):
        return True
    begun = attempt.first_wait
    return begun is not None and event.at is not None and event.at < begun - LONGEST_STEP_S


def is_before(one: LogEvent, other: LogEvent, attempt: Attempt) -> bool:
    """Surely."""
    is_one_writer = one.file == other.file and (one.rank, one.node) == (other.rank, other.node)
    if is_one_writer and not one.by_launcher and not other.by_launcher:
        return one.line < other.line
    if one.at is None or other.at is None or not (one.is_dated and other.is_dated):
        return False
    whole = one.at == int(one.at) or other.at == int(other.at)
    same = one.node == other.node and (bool(one.node) or one.file == other.file)
    slack = max(ROUGH_S if whole else SAME_NODE_S, 0.0 if same else OTHER_NODE_S + attempt.clock_doubt_s)
    return other.at - one.at >= slack
