"""What ranks' logs say, as findings: waits in vain always, errors only of ranks that have failed."""

from __future__ import annotations

import pytest

from mltop.probes.judge.health.job.ranks import TOLD_S, log
from mltop.probes.judge.health.moment import Moment
from mltop.probes.model import LogLine, RankDeath, Sample
from mltop.probes.model.vocabulary import LogLineKind

AT = 10_000.0


def line(kind: LogLineKind, pid: int | None = 7, at: float = AT - 5.0, **more: object) -> LogLine:
    return LogLine(kind, "what it says", "/out.log", at, 12, "train", 1000, pid, None if pid is None else 3, **more)  # type: ignore[arg-type]


def said(*lines: LogLine, deaths: tuple[RankDeath, ...] = ()) -> list[str]:
    moment = Moment(Sample("n1", AT, log_lines=list(lines), deaths=list(deaths)))
    return [hit.message for hit in log.hits(moment)]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([line("timeout")], ["the log of rank 3 says: what it says (/out.log:12)"]),
        (
            [line("names", named=[1, 2])],
            ["the log of rank 3 says that ranks 1-2 did not come: what it says (/out.log:12)"],
        ),
        ([line("timeout", pid=None)], ["the log of a rank of train says: what it says (/out.log:12)"]),
        ([line("timeout", at=AT - TOLD_S - 1.0)], []),
        ([line("fault")], []),
        ([line("peer")], []),
        ([line("timeout"), line("timeout")], ["the log of rank 3 says: what it says (/out.log:12)"]),
    ],
)
def test_what_a_log_says_of_ranks_that_live(lines: list[LogLine], told: list[str]) -> None:
    assert said(*lines) == told


@pytest.mark.parametrize(("code", "told"), [(1, 1), (0, 0)])
def test_an_error_counts_where_its_rank_has_failed(code: int, told: int) -> None:
    assert len(said(line("fault"), deaths=(RankDeath(7, 3, how="exit", code=code),))) == told
    assert said(line("fault"), deaths=(RankDeath(8, 4, how="exit", code=code),)) == []
