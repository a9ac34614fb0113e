"""What ranks write to their own logs: collectives that time out, ranks that did not come, errors before an end."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.deaths import ended_well
from mltop.probes.judge.health.rule import RANK_ENDED, RANK_STALLED, Hit, Moment, rank_rule
from mltop.probes.model import JobKey, LogLine
from mltop.probes.model.ranks import ranks_text

TOLD_S = 600.0


@rank_rule(
    "job.log.timeout",
    "warning",
    clear_s=0.0,
    meaning="a rank's log says that a collective timed out, or who did not come to it",
    threshold=f"torch's or gloo's line, of the last {TOLD_S:g} s",
    source="the file that is its stdout or stderr",
    action="mltop stacks: within the minute that the processes still live",
    needs=("ranks",),
    follows_ranks=(RANK_STALLED, RANK_ENDED, "job.hang", "job.odd_rank"),
)
def timeout(moment: Moment) -> Iterator[Hit]:
    seen: set[tuple[int | None, int | None]] = set()
    for line in moment.now.log_lines:
        writer = line.pid, line.rank
        if line.kind == "fault" or line.at < moment.now.sampled_at - TOLD_S or writer in seen:
            continue
        seen.add(writer)
        yield _hit(line)


@rank_rule(
    "job.log.error",
    "warning",
    clear_s=0.0,
    meaning="what a rank wrote before it ended",
    threshold="a traceback or a fatal error in the log of a rank that has failed",
    source="the file that was its stdout or stderr",
    action="mend what the log says, then restart the job",
    needs=("ranks",),
    explains_ranks=(RANK_ENDED,),
    follows_ranks=(RANK_ENDED,),
)
def error(moment: Moment) -> Iterator[Hit]:
    """Of one that lives it may have been handled."""
    failed = {death.pid: death for death in moment.now.deaths if not ended_well(death)}
    last = {line.pid: line for line in moment.now.log_lines if line.kind == "fault" and line.pid in failed}
    for pid, line in last.items():
        began = failed[pid].started_at if pid is not None else None
        if began is None or line.at >= began:
            yield _hit(line)


def _hit(line: LogLine) -> Hit:
    who = f"rank {line.rank}" if line.rank is not None else f"a rank of {line.job}" if line.job else "a rank"
    named = f" (ranks {ranks_text(line.named)} did not come)" if line.named else ""
    return Hit(
        who,
        f"the log of {who} says{named}: {line.text} ({line.where})",
        since=line.at,
        key=str(line.pid or ""),
        job=JobKey(line.job, line.uid) if line.job else None,
        ranks=() if line.rank is None else (line.rank,),
        pid=line.pid,
    )
