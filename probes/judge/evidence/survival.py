"""Whether a rank, a server or a job went on after a failure that one of its lines reports."""

from __future__ import annotations

from mltop.probes.model.evidence.logs import LogEvent, LogFile

_STEPS_WITHOUT_IT = 2
_MOST_TIMES, _MOST_STEPS = 10, 100_000  # a number beyond both is no later step of the same run


def is_outlived(event: LogEvent, file: LogFile, *, is_own: bool) -> bool:
    """Whether its rank, server or job went on after it. ``is_own``: of a file of one rank."""
    ends = file.good_ends
    if event.line < ends.succeeded:
        return True
    if event.kind in ("worker_lost", "fatal_signal") or event.event_class == "cascade":
        # Processes leave one another in any order once the work is done; one request's error is not the server's.
        served = event.kind == "peer_exception" and ends.served > event.line
        return served or 0 < ends.latest < event.line or (event.event_class == "cascade" and event.line < ends.trained)
    if event.kind not in ("exception", "barrier_named"):
        return event.survived
    if event.line < ends.trained or (event.kind == "exception" and event.line < ends.served):
        return True
    is_after = file.last_step is not None and file.last_step_line > event.line
    return (is_own or _goes_on(event, file)) if is_after else event.survived


def _goes_on(event: LogEvent, file: LogFile) -> bool:
    """Whether steps of whichever rank prove it: others go on for one or two without it, and may print them late."""
    before = event.step if file.first_step_line < event.line else file.first_step
    is_long_after = len(file.last_steps) > _STEPS_WITHOUT_IT and file.last_steps[0] > event.line
    return is_long_after and before is not None and _is_later_step(file.last_step or 0, before)


def _is_later_step(step: int, before: int) -> bool:
    return before + _STEPS_WITHOUT_IT < step <= max(before * _MOST_TIMES, before + _MOST_STEPS)
