"""What the records of a job's processes add to its report."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from mltop.probes.investigate.material import Material, judge
from mltop.probes.model import Gap, RankSample, RankStacks, Sample, StackDigest
from mltop.probes.model.evidence.records import RankRecords
from mltop.probes.model.verdict import Frame
from mltop.tui.report import print_reports
from tests.builders.flight_records import done_to, operation, progress_of, record

MEMBERS = {"0": range(4)}
WAITS = Frame("all_reduce", "torch/distributed/distributed_c10d.py", 1), Frame("train", "llm/train.py", 40, user=True)


def material() -> Material:
    """Four ranks of a job, of which each was dumped once."""
    ranks = [
        RankSample(100 + rank, rank, world_size=4, job="train", uid=7, state="S", started_at=900.0) for rank in range(4)
    ]
    digests = [
        StackDigest(rank.rank, rank.pid, frames=[*WAITS], waiting_in="all_reduce", key="k", node="n", job="train",
                    taken_at=1000.0, state="S")
        for rank in ranks
    ]  # fmt: skip
    dumps = [
        RankStacks(rank.pid, rank.rank, "train", "n", 1000.0, 0.1, rank, rank, [digest], uid=7)
        for rank, digest in zip(ranks, digests, strict=True)
    ]
    return Material(samples={"n": [Sample("n", 1000.0, ranks=ranks)]}, dumps=dumps)


def told(rank: int, *, waits: bool) -> RankRecords:
    entries = done_to(39, operation(40, state="scheduled")) if waits else done_to(39)
    one = record(entries, status={0: (39 + waits, -1, 39)}, members=MEMBERS)
    return RankRecords(100 + rank, rank, "train", 7, "n", progress_of({rank: one}))


def with_records(*records: RankRecords) -> Material:
    found = material()
    found.records = {(each.node, each.pid): each for each in records}
    return found


def test_counters_of_all_ranks() -> None:
    (report,) = judge(with_records(*(told(rank, waits=rank != 2) for rank in range(4))))
    (verdict,) = report.progress
    assert (verdict.kind, verdict.culprits) == ("never_entered", (2,))
    assert {(each.node, each.pid) for each in verdict.counters} == {("n", 100 + rank) for rank in range(4)}
    assert all(len(each.operations) <= 1 for each in verdict.counters)


def test_records_of_another_process_are_not_this_jobs() -> None:
    strange = told(2, waits=False)
    strange.pid = 999
    (report,) = judge(with_records(*(told(rank, waits=True) for rank in (0, 1, 3)), strange))
    assert [(verdict.kind, verdict.missing) for verdict in report.progress] == [("unrecorded", (2,))]


def test_what_cannot_be_used_is_said_once_for_all() -> None:
    old = [
        RankRecords(100 + rank, rank, "train", 7, "n", gaps=[Gap.about("flight_recorder", why="old")])
        for rank in range(4)
    ]
    (report,) = judge(with_records(*old))
    gaps = [gap for gap in report.verdict.gaps if gap.source == "flight_recorder"]
    assert [(gap.item, gap.why) for gap in gaps] == [("0-3", "old")]
    assert report.progress == []


def test_without_records_nothing_is_added() -> None:
    (report,) = judge(material())
    assert report.progress == []
    assert not any(gap.source == "flight_recorder" for gap in report.verdict.gaps)


def test_two_users_jobs_of_one_name_keep_their_records_apart() -> None:
    found = with_records(*(told(rank, waits=rank != 2) for rank in range(4)))
    other = Sample("m", 1000.0, ranks=[RankSample(100, 0, world_size=4, job="train", uid=8, state="S")])
    found.samples["m"] = [other]
    reports = {report.uid: report for report in judge(found)}
    assert [verdict.culprits for verdict in reports[7].progress] == [(2,)]
    assert 8 not in reports or reports[8].progress == []


def test_the_report_names_who_says_it() -> None:
    found = with_records(*(told(rank, waits=rank != 2) for rank in range(4)))
    console = Console(width=200, file=io.StringIO(), no_color=True)
    print_reports(judge(found), (), console)
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "flight recorder: rank 2 has not entered all_reduce 40 of default_pg (the last one launched was 39);" in text


def test_of_a_job_that_goes_on_records_are_of_the_past() -> None:
    found = with_records(*(told(rank, waits=rank != 2) for rank in range(4)))
    later = [replace(rank, main_cpu_s=9.0, voluntary_switches=999, read_syscalls=999) for rank in found.newest[0].ranks]
    frames = [Frame("forward", "llm/model.py", 7, user=True), WAITS[1]]
    for at, rank in enumerate(later):
        digest = replace(found.dumps[at].digests[0], frames=frames, key="other", waiting_in=None, taken_at=1004.0)
        found.dumps.append(
            RankStacks(rank.pid, rank.rank, "train", "n", 1004.0, 0.1, rank, rank, [digest], uid=7)
        )  # fmt: skip
    (report,) = judge(found)
    assert (report.verdict.kind, report.progress) == ("moving", [])
