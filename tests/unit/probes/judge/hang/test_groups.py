"""Ranks that wait in groups of their own or for a neighbour: who waits for whom is told only where it is proven."""

from __future__ import annotations

import pytest

from mltop.probes.model import Verdict
from tests.builders.stack_evidence import (
    C10D,
    Rank,
    Stack,
    all_reduce,
    broadcast,
    dataset,
    evidence,
    judge_job,
    main_frames,
    stack,
)


def neighbour(way: str, peer: int | None, line: int = 60, way_in: str = "") -> Stack:
    """``way_in``: the local that holds the peer."""
    shown = stack((way, C10D, 2799), *main_frames(line), waiting_in=way)
    if peer is not None:
        shown.frames[0].ints[way_in or ("src" if way == "recv" else "dst")] = peer
    return shown


def barrier() -> Stack:
    return stack(("barrier", C10D, 5356), *main_frames(75), waiting_in="barrier")


def tensor_reduce() -> Stack:
    called = (("all_reduce", C10D, 2900), ("_reduce", "megatron/core/tensor_parallel/mappings.py", 30))
    return stack(*called, *main_frames(40), waiting_in="all_reduce")


def gradient_reduce() -> Stack:
    called = (("reduce_scatter", C10D, 2900), ("finish", "megatron/core/distributed/param_and_grad_buffer.py", 9))
    return stack(*called, *main_frames(70), waiting_in="reduce_scatter")


def unnamed_wait() -> Stack:
    """``x.wait()``: no rule takes it for a wait, and it is a victim."""
    return stack(("exchange", "job/case.py", 33), *main_frames(61))


def judged(ranks: dict[int, Rank], **sizes: int) -> Verdict:
    """``sizes``: tp first, then dp."""
    given = evidence(ranks)
    tp = sizes.get("tp", 1)
    for seen in given.roster if sizes else ():
        rank = seen.sample.rank or 0
        seen.sample.parallel = {"tp": rank % tp, "dp": rank // tp, "tp_size": tp, "dp_size": sizes["dp"]}
    return judge_job(given)


def named(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


def test_two_that_receive_from_each_other_are_named_with_their_lines() -> None:
    ranks = {0: Rank(neighbour("recv", 1)), 1: Rank(neighbour("recv", 2)), 2: Rank(neighbour("recv", 1, 62))}
    verdict = judged({**ranks, 3: Rank(neighbour("recv", 2))})
    told = [(one.rank, one.where, one.reason.partition(";")[0]) for one in verdict.culprits]
    assert (verdict.kind, told) == (
        "hang",
        [
            (1, "train (job/case.py:60) [recv]", "in recv from rank 2"),
            (2, "train (job/case.py:62) [recv]", "in recv from rank 1"),
        ],
    )
    circle = "ranks 1-2 wait for one another: rank 1 in recv from rank 2, rank 2 in recv from rank 1"
    assert circle in verdict.evidence
    assert verdict.circle == [1, 2]


def test_three_that_receive_one_from_the_next_are_named() -> None:
    ranks = {rank: Rank(neighbour("irecv", (rank + 1) % 3, way_in="peer")) for rank in range(3)}
    verdict = judged({**ranks, 3: Rank(barrier())})
    assert (verdict.kind, named(verdict), sorted(verdict.circle)) == ("hang", [0, 1, 2], [0, 1, 2])


def test_a_sender_and_a_receiver_of_another_tag_are_a_circle() -> None:
    sender, receiver = neighbour("send", 1), neighbour("recv", 0)
    sender.frames[0].ints["tag"], receiver.frames[0].ints["tag"] = 0, 7
    waiting = {number: Rank(barrier()) for number in (2, 3)}
    verdict = judged({0: Rank(sender), 1: Rank(receiver), **waiting})
    assert (verdict.kind, named(verdict), verdict.circle) == ("hang", [0, 1], [0, 1])
    receiver.frames[0].ints["tag"] = 0
    assert judged({0: Rank(sender), 1: Rank(receiver), **waiting}).circle == []


def test_of_two_ranks_each_is_the_others_peer() -> None:
    verdict = judged({rank: Rank(neighbour("irecv", None)) for rank in range(2)})
    assert (verdict.kind, named(verdict)) == ("hang", [0, 1])


def test_who_receives_from_a_rank_that_has_gone_on_to_the_barrier_is_suspected_with_it() -> None:
    waiting = {number: Rank(barrier()) for number in (0, 1, 3)}
    verdict = judged({**waiting, 2: Rank(neighbour("recv", 1))})
    assert (verdict.kind, named(verdict), verdict.confidence) == ("suspect", [1, 2], "low")
    unknown = judged({**waiting, 2: Rank(neighbour("isend", None))})
    assert (unknown.kind, named(unknown)) == ("suspect", [2])
    assert named(judged({**waiting, 2: Rank(neighbour("isend", None))}, tp=2, dp=2)) == []


def test_a_sender_and_its_receiver_are_no_circle() -> None:
    ranks = {0: Rank(neighbour("send", 1)), 1: Rank(neighbour("recv", 0)), 2: Rank(neighbour("recv", 1))}
    verdict = judged(ranks)
    assert verdict.culprits == []
    assert not any("one another" in line for line in verdict.evidence)


def test_a_pipeline_without_peers_names_nobody_whatever_its_counters() -> None:
    ranks = {number: Rank(stack(("recv", C10D, 1), *main_frames(), waiting_in="recv", step=5)) for number in range(4)}
    ranks[2] = Rank(stack(("recv", C10D, 1), *main_frames(), waiting_in="recv", step=4))
    verdict = judged(ranks)
    assert (verdict.culprits, verdict.kind) == ([], "hang")
    assert "stacks do not show who is behind" in verdict.evidence


def test_a_stage_outside_is_accused_and_not_the_victim_that_no_rule_knows() -> None:
    """Ranks 0 and 3 wait for rank 2, rank 1 waits in a way of its own; nobody waits for it."""
    ranks = {0: Rank(neighbour("send", 2)), 3: Rank(neighbour("recv", 2)), 1: Rank(unnamed_wait()), 2: Rank(dataset())}
    verdict = judged(ranks)
    assert named(verdict) == [2]
    assert any("nobody waits for it" in line for line in verdict.evidence)


def test_where_a_peer_is_unknown_all_outside_stay_accused() -> None:
    ranks = {0: Rank(neighbour("send", None)), 3: Rank(neighbour("recv", 2))}
    assert named(judged({**ranks, 1: Rank(unnamed_wait()), 2: Rank(dataset())})) == [1, 2]


def test_a_chain_leads_to_its_end() -> None:
    ranks = {0: Rank(neighbour("send", 1)), 1: Rank(neighbour("send", 2)), 2: Rank(neighbour("send", 3))}
    verdict = judged({**ranks, 3: Rank(dataset()), 4: Rank(unnamed_wait())})
    assert named(verdict) == [3]


def test_groups_of_two_axes_lead_to_the_rank_that_is_missing_in_both() -> None:
    """Rank 3 is missing in the row of rank 2 and in the column of rank 1; rank 0 is missing nowhere."""
    ranks = {1: Rank(gradient_reduce()), 2: Rank(tensor_reduce()), 3: Rank(dataset()), 0: Rank(unnamed_wait())}
    # Rank 1's column are 1 and 3, rank 2's row are 2 and 3.
    given = evidence(ranks)
    for seen in given.roster:
        rank = seen.sample.rank or 0
        seen.sample.parallel = {"tp": rank % 2, "dp": rank // 2, "tp_size": 2, "dp_size": 2}
    assert named(judge_job(given)) == [3]


@pytest.mark.parametrize(("minority", "kind", "culprits"), [((1,), "suspect", [1]), ((2, 3), "unclear", [])])
def test_in_groups_of_several_axes_a_minority_proves_little(
    minority: tuple[int, ...], kind: str, culprits: list[int]
) -> None:
    ranks = {number: Rank(broadcast() if number in minority else all_reduce()) for number in range(8)}
    verdict = judged(ranks, tp=2, dp=4)
    assert named(verdict) == culprits
    assert verdict.kind in (kind, "hang" if not culprits else kind)


def test_one_axis_is_all_ranks() -> None:
    ranks = {number: Rank(broadcast() if number == 2 else all_reduce()) for number in range(4)}
    verdict = judged(ranks, tp=1, dp=4)
    assert (verdict.kind, named(verdict)) == ("hang", [2])
