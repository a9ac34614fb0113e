"""What RAS says of a job that stands, in each of its dialects; and when it is not asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from mltop.probes.collect.records.ras_client import Unreadable, parse_answer
from mltop.probes.judge.evidence.progress_words import progress_evidence
from mltop.probes.judge.evidence.ras import RasSituation, judge_ras, makes_communicators, why_not_ask
from mltop.probes.model import Frame, StackDigest
from mltop.probes.model.evidence.collectives import ProgressVerdict
from mltop.probes.model.evidence.ras import RasAnswer, RasRank, node_of_hosts, version_of
from tests.fakes.ras import Comm, Rank, counts_of, json_report, text_report

USUAL = (2, 0, 0, 0, 70)
Answer = Callable[[Sequence[Comm], float], RasAnswer]


def as_json(comms: Sequence[Comm], at: float) -> RasAnswer:
    return parse_answer(json_report(comms).encode(), "json", received_at=at)


def as_text(comms: Sequence[Comm], at: float) -> RasAnswer:
    return parse_answer(text_report(comms).encode(), "text", received_at=at)


def as_old_text(comms: Sequence[Comm], at: float) -> RasAnswer:
    return parse_answer(text_report(comms, "2.24.3").encode(), "text", received_at=at)


def number(rank: RasRank) -> int | None:
    """The job's, which is not the communicator's."""
    return None if rank.pid is None else rank.pid - 60


def verdicts(*comms: Comm, answer: Answer = as_json, before: Sequence[Comm] | None = None) -> list[ProgressVerdict]:
    return [*judge_ras(answer(comms if before is None else before, 1000.0), answer(comms, 1030.0), number)]


@pytest.mark.parametrize("answer", [as_json, as_text, as_old_text])
def test_a_rank_that_is_behind(answer: Answer) -> None:
    comm = counts_of({rank: (2, 0, 0, 0, 69 if rank == 5 else 70) for rank in range(8)})
    (verdict,) = verdicts(comm, answer=answer)
    assert (verdict.kind, verdict.culprits) == ("never_entered", (45,))
    assert verdict.source == "ras"
    assert all(rank >= 0 for rank in verdict.waiting)


@pytest.mark.parametrize("answer", [as_json, as_text, as_old_text])
def test_a_rank_that_is_ahead_accuses_nobody(answer: Answer) -> None:
    comm = counts_of({rank: (2, 0, 0, 0, 71 if rank == 5 else 70) for rank in range(8)})
    (verdict,) = verdicts(comm, answer=answer)
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("uneven", (), (45,))


@pytest.mark.parametrize("answer", [as_json, as_text])
def test_equal_totals_of_other_operations(answer: Answer) -> None:
    comm = counts_of({rank: (3, 0, 0, 0, 69) if rank == 2 else USUAL for rank in range(8)})
    (verdict,) = verdicts(comm, answer=answer)
    assert (verdict.kind, verdict.culprits) == ("mismatch", (42,))


def test_of_two_halves_nobody_is_accused() -> None:
    (verdict,) = verdicts(counts_of({rank: (3, 0, 0, 0, 69) if rank % 2 else USUAL for rank in range(8)}))
    assert (verdict.kind, verdict.culprits) == ("mismatch", ())


def test_equal_and_frozen_is_below_the_hosts() -> None:
    (verdict,) = verdicts(counts_of(dict.fromkeys(range(8), USUAL)))
    assert (verdict.kind, verdict.culprits) == ("all_launched", ())


def test_what_rises_is_healthy() -> None:
    before = [counts_of({rank: (2, 0, 0, 0, 60 if rank == 5 else 61) for rank in range(8)})]
    assert verdicts(counts_of({rank: (2, 0, 0, 0, 69 if rank == 5 else 70) for rank in range(8)}), before=before) == []


def test_two_answers_are_ten_seconds_apart() -> None:
    comm = [counts_of({rank: (2, 0, 0, 0, 69 if rank == 5 else 70) for rank in range(8)})]
    assert judge_ras(as_json(comm, 1000.0), as_json(comm, 1003.0), number) == ()


@pytest.mark.parametrize("version", ["2.28.7", "2.28.9", "2.30.7"])
def test_who_does_not_answer(version: str) -> None:
    """Also as 2.28 writes it, where a comma is missing."""
    ranks = [Rank(rank, pid=100 + rank, missing=rank == 3, unresponsive=rank == 3) for rank in range(4)]
    report = json_report([Comm(ranks)], version).encode()
    answers = [parse_answer(report, "json", received_at=at) for at in (1000.0, 1030.0)]
    (verdict,) = judge_ras(answers[0], answers[1], number)
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("unresponsive", (43,), "high")
    (line,) = progress_evidence(verdict)
    assert line.text.startswith("rank 43 of communicator 0x1a2b (ranks 40-43) does not answer NCCL's RAS")


def test_who_does_not_answer_in_text() -> None:
    ranks = [Rank(rank, pid=100 + rank, missing=rank == 3) for rank in range(4)]
    (verdict,) = verdicts(Comm(ranks), answer=as_text)
    assert (verdict.kind, verdict.culprits) == ("unresponsive", (43,))


def test_a_communicator_that_is_being_made() -> None:
    ranks = [Rank(rank, pid=100 + rank, init_state=7, missing=rank == 1) for rank in range(4)]
    (verdict,) = verdicts(Comm(ranks))
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("init", (41,), (40, 42, 43))


def test_what_was_aborted_is_final_and_not_hung() -> None:
    ranks = [Rank(rank, pid=100 + rank, abort=True, counts=(0, 0, 0, 0, 70 - rank)) for rank in range(4)]
    assert verdicts(Comm(ranks)) == []


def test_who_waits_in_another_communicator_is_a_victim() -> None:
    """Rank 1 is behind in the one with 0, and ahead of 2 in the other: 2 is who nobody's waiting explains."""
    first = Comm([Rank(0, pid=100, counts=USUAL), Rank(1, pid=101, counts=(2, 0, 0, 0, 69))], 0xA)
    second = Comm([Rank(0, pid=101, counts=(0, 0, 0, 0, 9)), Rank(1, pid=102, counts=(0, 0, 0, 0, 8))], 0xB)
    assert {verdict.culprits for verdict in verdicts(first, second)} == {(42,)}


def test_ranks_that_nobody_knows_accuse_nobody() -> None:
    comm = [counts_of({rank: (2, 0, 0, 0, 69 if rank == 5 else 70) for rank in range(8)})]
    some = judge_ras(as_json(comm, 0.0), as_json(comm, 30.0), lambda rank: None if rank.rank < 6 else rank.rank)
    assert all(verdict.culprits == () for verdict in some)
    ahead = [counts_of({rank: (2, 0, 0, 0, 71 if rank == 5 else 70) for rank in range(8)})]
    two = judge_ras(as_json(ahead, 0.0), as_json(ahead, 30.0), lambda rank: rank.rank if rank.rank in (2, 5) else None)
    assert all(verdict.culprits == () for verdict in two)


def test_a_partial_answer_accuses_by_no_count() -> None:
    comm = [counts_of({rank: (2, 0, 0, 0, 69 if rank == 5 else 70) for rank in range(8)})]
    partial = replace(as_json(comm, 1030.0), timeouts=1)
    assert judge_ras(as_json(comm, 1000.0), partial, number) == ()
    smaller = [counts_of({rank: (2, 0, 0, 0, 69 if rank == 1 else 70) for rank in range(3)}, size=8)]
    assert judge_ras(as_json(smaller, 1000.0), as_json(smaller, 1030.0), number) == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"communicators": 3}', b"Segmentation fault", b"\x00" * 99])
def test_garbage(content: bytes) -> None:
    for kind in ("json", "text"):
        with pytest.raises(Unreadable) as why:
            parse_answer(content, kind, received_at=0.0)  # type: ignore[arg-type]
        assert "\n" not in str(why.value)


def test_half_an_answer_says_so() -> None:
    report = json_report([counts_of(dict.fromkeys(range(8), USUAL))]).encode()
    with pytest.raises(Unreadable, match="cut off"):
        parse_answer(report[: len(report) // 2], "json", received_at=0.0)


def test_keys_of_later_versions_are_passed_over() -> None:
    report = json_report([counts_of(dict.fromkeys(range(2), USUAL))], "2.31.0")
    more = report.replace('"rank": 0,', '"rank": 0, "progress": {"stale": [1]}, "host_name": null,')
    assert len(parse_answer(more.encode(), "json", received_at=0.0).communicators[0].ranks) == 2


SAFE = RasSituation("2.29.2", signals=2, age_s=3600.0, creating=False)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({}, None),
        ({"signals": 1}, "not_standing"),
        ({"age_s": 60.0}, "young"),
        ({"age_s": None}, "young"),
        ({"creating": True}, "creating"),
        ({"asked_s": 5.0}, "asked_lately"),
        ({"asked_s": 31.0}, None),
        ({"nccl_version": "2.28.9"}, "old_version"),
        ({"nccl_version": "2.28.9", "consent": True}, None),
        ({"nccl_version": ""}, "old_version"),
        ({"nccl_version": "2.31.0+cuda13"}, None),
        ({"creating": True, "consent": True}, "creating"),
        ({"signals": 0, "consent": True}, "not_standing"),
        ({"age_s": 1.0, "consent": True}, "young"),
    ],
)
def test_when_it_is_not_asked(changes: dict[str, object], refusal: str | None) -> None:
    assert why_not_ask(replace(SAFE, **changes)) == refusal  # type: ignore[arg-type]


def test_who_makes_a_communicator() -> None:
    def digest(function: str) -> StackDigest:
        return StackDigest(0, 1, frames=[Frame("train", "train.py", 3), Frame(function, "x.py", 1)])

    assert makes_communicators([digest("all_reduce"), digest("_new_process_group_helper")])
    assert makes_communicators([digest("ncclCommInitRankConfig")])
    assert not makes_communicators([digest("all_reduce")])


def test_versions() -> None:
    assert version_of("2.29.2") == (2, 29, 2)
    assert version_of("2.29.2+cuda12.4") == (2, 29, 2)
    assert version_of("") is None
    assert version_of("x") is None


def test_hosts_are_nodes_by_their_processes() -> None:
    comm = Comm([Rank(0, "10.0.0.1", 100), Rank(1, "10.0.0.2", 200), Rank(2, "10.0.0.3", 300)])
    known = [("a", frozenset({100, 101})), ("b", frozenset({200})), ("c", frozenset({999}))]
    assert node_of_hosts(as_json([comm], 0.0), known) == {"10.0.0.1": "a", "10.0.0.2": "b"}
    containers = [("a", frozenset({100})), ("b", frozenset({100}))]
    assert node_of_hosts(as_json([Comm([Rank(0, "10.0.0.1", 100)])], 0.0), containers) == {}
