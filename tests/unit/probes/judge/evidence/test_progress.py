"""Who is accused by the counters of collectives, and, more often, who is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.records.flight_recorder import read_flight_record
from mltop.probes.judge.evidence.progress import ProgressVerdict, judge_progress
from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation
from tests.builders.flight_records import BEGAN_NS, done_to, operation, progress_of, record

GLOO = Path(__file__).parents[4] / "fixtures" / "records" / "gloo"
WORLD = {"0": range(8)}


def first(told: dict[int, dict[str, Any]], world_size: int | None = None) -> ProgressVerdict:
    return judge_progress(progress_of(told), world_size)[0]


def waits_at(sequence: int, name: str = "all_reduce", **entry: Any) -> dict[str, Any]:
    waits = operation(sequence, name, "scheduled", **entry)
    return record(done_to(sequence - 1, waits, first=max(1, sequence - 30)),
                  status={0: (sequence, -1, sequence - 1)}, members=WORLD)  # fmt: skip


def idle_after(sequence: int) -> dict[str, Any]:
    return record(done_to(sequence, first=max(1, sequence - 30)), status={0: (sequence, -1, sequence)}, members=WORLD)


def test_one_rank_never_entered() -> None:
    verdict = first({rank: waits_at(40) if rank != 6 else idle_after(39) for rank in range(8)})
    assert (verdict.kind, verdict.culprits, verdict.sequence) == ("never_entered", (6,), 40)
    assert verdict.waiting == (0, 1, 2, 3, 4, 5, 7)
    assert verdict.confidence == "high"
    assert verdict.operation is not None
    assert (verdict.operation.name, verdict.operation.timeout_s) == ("all_reduce", 600.0)
    assert verdict.operation.frames[-1] == "train_step (llm/train.py:45)"


@pytest.mark.parametrize("odd", range(8))
def test_whoever_is_visited_first_the_odd_one_is_accused(odd: int) -> None:
    told = {rank: waits_at(40, "broadcast" if rank == odd else "all_reduce") for rank in (odd, *range(8))}
    verdict = first(told)
    assert (verdict.kind, verdict.culprits) == ("mismatch", (odd,))
    assert [(side.operation.name, side.ranks) for side in verdict.sides][1] == ("broadcast", (odd,))


def test_another_size_and_another_type_are_mismatches() -> None:
    for entry in ({"size": (2048,)}, {"dtype": "BFloat16"}):
        verdict = first({rank: waits_at(40, **(entry if rank == 3 else {})) for rank in range(8)})
        assert (verdict.kind, verdict.culprits) == ("mismatch", (3,))


def test_the_same_elements_in_another_shape_are_none() -> None:
    verdict = first({rank: waits_at(40, size=(32, 32) if rank == 3 else (1024,)) for rank in range(8)})
    assert verdict.kind == "all_launched"


def test_all_to_all_may_differ_in_size() -> None:
    verdict = first({rank: waits_at(40, "all_to_allv", size=(rank,)) for rank in range(8)})
    assert (verdict.kind, verdict.culprits) == ("all_launched", ())


def test_of_two_halves_nobody_is_accused() -> None:
    verdict = first({rank: waits_at(40, "broadcast" if rank % 2 else "all_reduce") for rank in range(8)})
    assert (verdict.kind, verdict.culprits) == ("mismatch", ())
    assert sorted(side.ranks for side in verdict.sides) == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_a_side_that_tells_less_is_not_accused() -> None:
    """A rank whose sizes are not told may be on the majority's side, or on none."""
    told = {rank: waits_at(40, size=(2048,) if rank == 3 else (1024,)) for rank in range(8)}
    told[5]["entries"][-1].update(input_sizes=[], input_dtypes=[])
    verdict = first(told)
    assert (verdict.kind, verdict.culprits) == ("mismatch", (3,))


def test_all_launched_is_below_the_hosts() -> None:
    verdict = first({rank: waits_at(40) for rank in range(8)})
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("all_launched", (), tuple(range(8)))


def test_a_kernel_that_has_not_begun_where_others_have() -> None:
    told = {rank: waits_at(40) for rank in range(8)}
    for rank in set(range(8)) - {5}:
        told[rank]["entries"][-1]["state"] = "started"
    verdict = first(told)
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("not_started", (5,), "medium")
    told[6]["entries"][-1]["state"] = None
    assert first(told).kind == "all_launched"


def test_one_that_ran_ahead_accuses_nobody() -> None:
    verdict = first({rank: waits_at(41) if rank == 2 else idle_after(40) for rank in range(8)})
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("uneven", (), (2,))


def test_without_a_record_nobody_is_accused() -> None:
    verdict = first({rank: waits_at(40) for rank in range(8) if rank != 4})
    assert (verdict.kind, verdict.culprits, verdict.missing) == ("unrecorded", (), (4,))


def test_of_all_ranks_only_the_number_need_be_known() -> None:
    told = {rank: record(waits_at(40)["entries"], status={0: (40, -1, 39)}) for rank in range(7)}
    assert first(told, 8).missing == (7,)
    assert first(told).kind == "unrecorded"


def test_a_record_from_before_the_wait_accuses_nobody() -> None:
    told = progress_of({rank: waits_at(40, at_s=400.0) for rank in range(7)})
    early = progress_of({7: idle_after(39)}, at=BEGAN_NS / 1e9 + 400.5)
    (verdict,) = judge_progress([*told, *early])
    assert (verdict.kind, verdict.culprits) == ("unsure", ())


def test_who_is_far_behind_what_he_took_part_in_is_not_accused() -> None:
    """No all_reduce ends without him: his record is of another time."""
    told = {rank: waits_at(40) if rank != 6 else idle_after(30) for rank in range(8)}
    verdict = first(told)
    assert (verdict.kind, verdict.culprits) == ("unsure", ())


def test_a_record_of_an_earlier_start_is_none() -> None:
    """It lies where the others' are, written hours before these, by a rank that leaves none now."""
    hours = 7200.0
    told = progress_of({rank: waits_at(40) for rank in range(7)})
    for old in (waits_at(40, "broadcast", at_s=-hours), waits_at(90, at_s=-hours), idle_after(20)):
        (verdict,) = judge_progress([*told, *progress_of({7: old}, at=BEGAN_NS / 1e9 - hours + 600)])
        assert (verdict.kind, verdict.culprits, verdict.missing) == ("unrecorded", (), (7,))


def test_nor_is_it_a_witness() -> None:
    """One that seems to be ahead, for a wait of hours ago, accuses nobody of being behind."""
    pair = {"0": (0, 1)}
    waits = record(done_to(39, operation(40, state="scheduled")), status={0: (40, -1, 39)}, members=pair)
    ahead = record(done_to(89, operation(90, state="scheduled"), first=60), status={0: (90, -1, 89)}, members=pair)
    for minutes in (1, 4, 120):
        old = progress_of({1: ahead}, at=BEGAN_NS / 1e9 + 600 - 60 * minutes)
        for verdict in judge_progress([*progress_of({0: waits}), *old]):
            assert verdict.culprits == (), (minutes, verdict)


def test_a_late_watchdog_is_no_culprit_and_hides_none() -> None:
    told = {rank: waits_at(40) for rank in range(8)}
    told[6] = idle_after(39)
    told[5]["pg_status"]["0"].update(last_completed_collective=30)
    verdict = first(told)
    assert (verdict.kind, verdict.culprits) == ("never_entered", (6,))
    assert verdict.waiting == (0, 1, 2, 3, 4, 5, 7)


def test_a_culprit_whose_watchdog_is_late_is_still_one() -> None:
    told = {rank: waits_at(40) for rank in range(8)}
    told[6] = idle_after(39)
    told[6]["pg_status"]["0"].update(last_completed_collective=38)
    verdict = first(told)
    assert (verdict.kind, verdict.culprits) == ("never_entered", (6,))


def test_of_two_ranks_the_late_watchdog_is_no_culprit() -> None:
    pair = {"0": (0, 1)}
    waits = record(done_to(3, operation(4, state="scheduled")), status={0: (4, -1, 2)}, members=pair)
    absent = record(done_to(3), status={0: (3, -1, 3)}, members=pair)
    verdict = first({0: waits, 1: absent})
    assert (verdict.kind, verdict.culprits, verdict.sequence) == ("never_entered", (1,), 4)


def test_who_may_be_stuck_in_what_others_came_out_of_is_not_accused() -> None:
    """A broadcast ends on its root before it has begun elsewhere."""
    told = {rank: waits_at(40) for rank in range(8)}
    told[6] = idle_after(39)
    told[6]["pg_status"]["0"].update(last_completed_collective=38)
    for one in told.values():
        next(entry for entry in one["entries"] if entry["collective_seq_id"] == 39)["profiling_name"] = "nccl:broadcast"
    verdict = first(told)
    assert (verdict.kind, verdict.culprits) == ("unsure", ())


def test_who_stands_between_recording_and_handing_over_has_entered() -> None:
    told = {rank: waits_at(40) for rank in range(8)}
    told[6]["pg_status"]["0"].update(last_enqueued_collective=39)
    assert first(told).kind == "all_launched"


TP0, TP1, DP = ("7", "mesh_tp"), ("8", "mesh_tp"), ("9", "mesh_dp")
OTHER, DP3 = ("6", "other"), ("4", "mesh_dp")
MESH = {"0": range(4), "4": (0, 1, 2), "6": (0, 1), "7": (0, 1), "8": (2, 3), "9": (1, 3)}


def in_groups(*told: tuple[tuple[str, str], int, int, float]) -> dict[str, Any]:
    """(group, enqueued, completed, when the last one was launched)."""
    entries: list[dict[str, Any]] = []
    status = {}
    for number, (group, enqueued, completed, at_s) in enumerate(told, 1):
        entries += [operation(each, group=group, pg_id=number, at_s=float(each)) for each in range(1, completed + 1)]
        if enqueued > completed:
            entries.append(operation(enqueued, "all_gather", "scheduled", group=group, pg_id=number, at_s=at_s))
        status[number] = (enqueued, -1, completed)
    return record(entries, status=status, members=MESH)


def test_who_is_waited_for_and_waits_himself_is_a_victim() -> None:
    """Rank 3 does nothing: 2 waits for it in tp, 1 in dp, and so 0 waits for 1 in tp."""
    told = {
        0: in_groups((TP0, 9, 8, 50.0)),
        1: in_groups((TP0, 8, 8, 0.0), (DP, 5, 4, 40.0)),
        2: in_groups((TP1, 9, 8, 45.0)),
        3: in_groups((TP1, 8, 8, 0.0), (DP, 4, 4, 0.0)),
    }
    verdicts = judge_progress(progress_of(told), 4)
    assert {verdict.culprits for verdict in verdicts} == {(3,)}
    assert verdicts[0].group.description == "mesh_dp"
    assert {group.name for group in verdicts[0].blocked} == {"7", "8"}


def test_a_circle_accuses_nobody() -> None:
    """Two ranks that go into two groups in another order each."""
    told = {0: in_groups((TP0, 9, 8, 50.0), (OTHER, 4, 4, 0.0)), 1: in_groups((TP0, 8, 8, 0.0), (OTHER, 5, 4, 50.0))}
    (verdict,) = judge_progress(progress_of(told), 2)
    assert (verdict.kind, verdict.culprits) == ("circle", ())
    assert {verdict.group.name, *(group.name for group in verdict.blocked)} == {"6", "7"}


def test_what_was_launched_behind_a_wait_is_no_wait_of_its_own() -> None:
    """All have launched the second group's operation; on two it stands behind what they wait for rank 1 in."""
    told = {rank: in_groups((DP3, 9, 8, 50.0), (TP0, 5, 4, 60.0)) for rank in (0, 2)}
    told[1] = in_groups((DP3, 8, 8, 0.0))
    (verdict,) = judge_progress(progress_of(told), 3)
    assert (verdict.kind, verdict.culprits, verdict.group.name) == ("never_entered", (1,), "4")


def test_all_launched_is_unsure_while_somebody_is_waited_for_elsewhere() -> None:
    """Rank 1 is waited for by rank 3, and waits with rank 0: for what is below them, or its watchdog is late."""
    told = {0: in_groups((TP0, 9, 8, 50.0)), 1: in_groups((TP0, 9, 8, 50.0), (DP, 4, 4, 0.0)),
            3: in_groups((DP, 5, 4, 60.0))}  # fmt: skip
    (verdict,) = judge_progress(progress_of(told), 4)
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("all_launched", (), "low")


def test_equal_numbers_of_different_groups_are_unrelated() -> None:
    told = {0: in_groups((TP0, 9, 8, 50.0)), 1: in_groups((TP0, 9, 8, 50.0)),
            2: in_groups((TP1, 4, 4, 0.0)), 3: in_groups((TP1, 4, 4, 0.0))}  # fmt: skip
    (verdict,) = judge_progress(progress_of(told), 4)
    assert (verdict.kind, verdict.group.ranks) == ("all_launched", (0, 1))


def test_groups_of_one_name_with_other_members_are_two() -> None:
    told = progress_of({0: in_groups((TP0, 9, 8, 50.0)), 1: in_groups((TP0, 9, 8, 50.0))})
    other = Group("7", "mesh_tp", (2, 3), backend="nccl")
    told += [GroupProgress(other, rank, enqueued=5, completed=5, at=told[0].at) for rank in (2, 3)]
    assert [verdict.kind for verdict in judge_progress(told)] == ["all_launched"]


def test_a_group_rank_is_translated() -> None:
    group = Group("8", "mesh_tp", (2, 3, 5, 7))
    told = [GroupProgress(group, None, place, enqueued=39 + (place != 1), completed=39) for place in range(4)]
    (verdict,) = judge_progress(told)
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("never_entered", (3,), (2, 5, 7))
    assert verdict.confidence == "medium"  # a log tells of one group only


def pipeline(*waits_for: tuple[int, str, int]) -> dict[int, dict[str, Any]]:
    """(rank, "send 1->2", pg's p2p number): messages between stages that have not ended."""
    told: dict[int, dict[str, Any]] = {rank: record([], members={"5": range(4)}) for rank in range(4)}
    for rank, name, number in waits_for:
        told[rank]["entries"].append(
            operation(3, name, "scheduled", group=("5", "pp"), pg_id=2, at_s=10.0 + number, p2p=number)
        )
    for one in told.values():
        one["entries"].insert(0, operation(3, "all_reduce", group=("5", "pp"), pg_id=2))
        if len(one["entries"]) > 1:  # counts operations of both kinds
            one["pg_status"] = {"2": {"last_enqueued_collective": 12, "last_completed_collective": 3}}
    return told


def test_a_stage_that_nobody_waits_for_is_found_through_the_others() -> None:
    told = pipeline((2, "recv 2<-1", 4), (3, "recv 3<-2", 4), (0, "send 0->1", 9))
    verdict = first(told)
    assert (verdict.kind, verdict.culprits) == ("never_entered", (1,))


def test_a_message_both_ends_of_which_are_launched_accuses_nobody() -> None:
    told = pipeline((2, "recv 2<-1", 4), (1, "send 1->2", 4))
    assert judge_progress(progress_of(told)) == ()


def test_who_has_sent_what_is_waited_for_is_not_accused() -> None:
    """His end is told at once, the other's when a watchdog looks."""
    told = pipeline((2, "recv 2<-1", 4), (1, "send 1->2", 4))
    told[1]["entries"][-1].update(state="completed", retired=True)
    assert judge_progress(progress_of(told)) == ()


def test_a_message_behind_a_collective_that_stands_accuses_nobody() -> None:
    told = pipeline((2, "recv 2<-1", 4))
    for one in told.values():
        one["entries"].append(operation(4, state="scheduled", group=("5", "pp"), pg_id=2, at_s=5.0))
        one["pg_status"] = {}
    assert all(verdict.culprits == () for verdict in judge_progress(progress_of(told)))


def test_coalesced_messages_accuse_nobody() -> None:
    told = pipeline((2, "recv 2<-1", 4), (2, "coalesced", 4))
    assert all(verdict.culprits == () for verdict in judge_progress(progress_of(told)))


def test_nothing_told_is_no_verdict() -> None:
    assert judge_progress([]) == ()
    assert judge_progress(progress_of({rank: idle_after(12) for rank in range(8)})) == ()
    assert judge_progress([GroupProgress(Group("0"), None, enqueued=3, completed=2)]) == ()
    assert judge_progress([GroupProgress(Group("0"), 1)]) == ()


# What real jobs on gloo left.


def of_gloo(case: str, when: str, kind: str = "pickle") -> list[GroupProgress]:
    files = sorted(GLOO.glob(f"{case}.{when}.{kind}_*"))
    assert files
    return [progress for file in files for progress in read_flight_record(file).progress]


def test_gloo_waiters_count_as_done_and_are_not_accused() -> None:
    (verdict,) = judge_progress(of_gloo("missing", "end"), 3)
    assert (verdict.kind, verdict.culprits, verdict.missing, verdict.sequence) == ("unrecorded", (), (2,), 4)


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_gloo_mismatch(kind: str) -> None:
    (verdict,) = judge_progress(of_gloo("mismatch", "end", kind), 3)
    assert (verdict.kind, verdict.culprits, verdict.sequence) == ("mismatch", (1,), 4)


def test_gloo_sizes_of_two_witnesses_accuse_nobody() -> None:
    (verdict,) = judge_progress(of_gloo("size", "end"), 3)
    assert (verdict.kind, verdict.culprits, verdict.missing) == ("mismatch", (), (0,))


@pytest.mark.parametrize(("case", "when"), [("sub", "end"), ("sub", "live"), ("p2p", "end"), ("mismatch", "live")])
def test_gloo_victims_are_not_accused(case: str, when: str) -> None:
    """In "sub", rank 0 came out of a subgroup with an error and never entered what the others wait in: its record looks
    as a culprit's does, but for the operation that it was in last.
    """
    for verdict in judge_progress(of_gloo(case, when), 3):
        assert verdict.culprits == (), verdict


def test_gloo_culprit_with_a_record() -> None:
    """The rank that slept leaves a record, too (as `p2p` did of the first three): it has not entered the fourth."""
    told = of_gloo("missing", "end")
    absent = GroupProgress(told[0].group, 2, enqueued=3, completed=3, at=(told[0].at or 0.0) + 9.0,
                           operations=(Operation(3, "all_reduce"),), source="flight_recorder")  # fmt: skip
    (verdict,) = judge_progress([*told, absent], 3)
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("never_entered", (2,), (0, 1))
