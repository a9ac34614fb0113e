"""What ranks write to their own logs: collectives that time out, ranks that did not come, errors before an end."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.deaths import ended_well
from mltop.probes.judge.health.rule import RANK_ENDED, RANK_STALLED, Hit, Moment, rank_rule
from mltop.probes.model import JobKey, LogLine
from mltop.probes.model.ranks import ranks_text

TOLD_S = 600.0


@rank_rule(
    "job.log",
    "warning",
    clear_s=0.0,
    meaning="a rank's log says that a collective timed out, who did not come to it, or why the rank ended",
    threshold=f"torch's or gloo's line of the last {TOLD_S:g} s; a traceback of a rank that has failed",
    source="the file that is its stdout or stderr",
    act="stacks",
    action="while the processes live; later the log tells more",
    needs=("ranks",),
    follows_ranks=(RANK_STALLED, RANK_ENDED),
)
def log(moment: Moment) -> Iterator[Hit]:
    """The last line of each rank. An error of one that lives may have been handled."""
    failed = {death.pid for death in moment.now.deaths if not ended_well(death)}
    last: dict[tuple[int | None, int | None], LogLine] = {}
    for line in moment.now.log_lines:
        if line.at >= moment.now.sampled_at - TOLD_S and (line.kind in ("timeout", "names") or line.pid in failed):
            last[line.pid, line.rank] = line
    for line in last.values():
        yield _hit(line)


def _hit(line: LogLine) -> Hit:
    who = f"rank {line.rank}" if line.rank is not None else f"a rank of {line.job}" if line.job else "a rank"
    named = f" that {ranks_text(line.named)} did not come" if line.named else ""
    return Hit(
        who,
        f"the log of {who} says{named}: {line.text} ({line.where})",
        since=line.at,
        key=str(line.pid or ""),
        job=JobKey(line.job, line.uid) if line.job else None,
        ranks=() if line.rank is None else (line.rank,),
        pid=line.pid,
    )
