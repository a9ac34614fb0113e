"""What looks like a hang and is none, what looks like progress and is none, and what cannot be known."""

from __future__ import annotations

import random

import pytest

from mltop.probes.model import GpuSample, Sample, StackDigest, Verdict
from tests.builders.stack_evidence import (
    C10D,
    START,
    Child,
    Rank,
    Stack,
    all_reduce,
    broadcast,
    compute,
    dataset,
    evidence,
    judge_job,
    loader_wait,
    main_frames,
    spin,
    stack,
    validation,
    waiters,
    worker_idle,
    worker_stuck,
)


def _ranks(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


def _gap_text(verdict: Verdict) -> str:
    return "; ".join(f"{gap.what}: {gap.why} [{gap.fix}]" for gap in verdict.gaps)


# Step 0: gone or unseen


def test_a_rank_on_a_node_nobody_watches_is_a_gap_not_gone() -> None:
    verdict = judge_job(evidence(waiters(*range(8)), world_size=64))
    assert verdict.culprits == []
    assert "ranks 8-63 are not on the watched nodes [add their nodes with -w]" in _gap_text(verdict)
    assert verdict.confidence == "low"


def test_a_missing_local_rank_on_a_watched_node_is_gone() -> None:
    ranks = {number: Rank(all_reduce(), local_rank=number - 4) for number in (4, 5, 7)}
    verdict = judge_job(evidence(ranks, world_size=16, local_world_size=4))
    assert [(one.rank, one.node, one.pid) for one in verdict.culprits] == [(6, "n1", None)]
    assert "no process on n1, which runs ranks 4-7" in verdict.culprits[0].reason
    assert "ranks 0-3,8-15" in _gap_text(verdict)


def test_a_loopback_master_means_that_the_whole_job_is_here() -> None:
    verdict = judge_job(evidence(waiters(0, 1, 3), world_size=4, master="127.0.0.1"))
    assert _ranks(verdict) == [2]


@pytest.mark.parametrize("sees_all", [False, None])
def test_in_a_container_other_ranks_may_run_beside_it(sees_all: bool | None) -> None:
    """A loopback address or a local size says where they run, not that they show."""
    loopback = judge_job(evidence(waiters(2, 3), world_size=4, master="127.0.0.1", sees_all=sees_all))
    assert (_ranks(loopback), loopback.confidence) == ([], "low")
    seen = "ranks 0-1 are not seen from here: n1 may show only one container's processes"
    assert f"{seen} [run mltop on the machine itself, outside of containers]" in _gap_text(loopback)
    ranks = {number: Rank(all_reduce(), local_rank=number) for number in (2, 3)}
    sized = judge_job(evidence(ranks, world_size=4, local_world_size=4, sees_all=sees_all))
    assert (_ranks(sized), sized.confidence) == ([], "low")
    assert seen in _gap_text(sized)
    by_majority = judge_job(evidence(waiters(*range(7)), world_size=8, master="n1", sees_all=sees_all))
    assert _ranks(by_majority) == []


def test_one_of_few_that_waits_elsewhere_is_only_suspected_while_one_is_unseen() -> None:
    """The unseen one may wait where it does, or be whom they all wait for. Of many the most are sure."""
    few = evidence(
        {number: Rank(all_reduce(61 if number == 0 else 60)) for number in range(3)}, world_size=4, master=None
    )
    many = evidence(
        {number: Rank(all_reduce(61 if number == 0 else 60)) for number in range(40)}, world_size=44, master=None
    )
    for given, kind in ((few, "suspect"), (many, "hang")):
        verdict = judge_job(given)
        assert (verdict.kind, [culprit.rank for culprit in verdict.culprits]) == (kind, [0])
        assert verdict.evidence[0].startswith("every rank that was seen waits, in one operation")


def test_who_was_seen_before_has_died_in_a_container_too() -> None:
    ranks = {**waiters(0, 1, 3), 2: Rank(None, gone=True)}
    assert _ranks(judge_job(evidence(ranks, world_size=4, master="127.0.0.1", sees_all=False))) == [2]


def test_one_of_two_ranks_may_well_be_on_another_node() -> None:
    assert _ranks(judge_job(evidence(waiters(0), world_size=2, master="n1"))) == []


def test_the_one_hole_of_a_job_with_its_master_here_is_gone() -> None:
    assert _ranks(judge_job(evidence(waiters(*range(7)), world_size=8, master="n1"))) == [7]


def test_switches_that_another_debugger_causes_are_no_movement() -> None:
    dumped = {"switches_per_s": 5.0, "main_cpu_s_per_s": 0.00006}
    ranks = {**waiters(0, 1, 3, **dumped), 2: Rank(dataset(), **dumped)}
    verdict = judge_job(evidence(ranks, rounds=16, gap_s=0.35))
    assert (verdict.kind, _ranks(verdict)) == ("hang", [2])
    working = {"switches_per_s": 5.0, "main_cpu_s_per_s": 0.004}
    ranks = {**waiters(0, 1, 3, **working), 2: Rank(dataset(), **working)}
    verdict = judge_job(evidence(ranks, rounds=16, gap_s=0.35))
    assert verdict.kind in ("moving", "straggler")
    assert _ranks(verdict) == []


def test_a_hole_in_a_job_started_by_hand_is_gone_but_not_in_one_started_by_srun() -> None:
    by_hand = evidence(waiters(0, 1, 3), world_size=4, master=None, launcher="env")
    assert _ranks(judge_job(by_hand)) == [2]
    by_srun = evidence(waiters(0, 1, 3), world_size=4, master=None, launcher="srun")
    assert _ranks(judge_job(by_srun)) == []


def test_a_nameless_zombie_is_matched_to_the_only_missing_rank() -> None:
    ranks = {number: Rank(all_reduce(), local_rank=number) for number in (0, 1, 3)}
    ranks[90] = Rank(None, state="Z", rank=None, error="zombie: it has exited")
    verdict = judge_job(evidence(ranks, world_size=4, local_world_size=4))
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(2, 4090)]
    assert "zombie" in verdict.culprits[0].reason


def test_two_zombies_for_two_missing_ranks_leave_open_which_is_which() -> None:
    ranks = {number: Rank(all_reduce(), local_rank=number) for number in (0, 1)}
    for number in (90, 91):
        ranks[number] = Rank(None, state="Z", rank=None, error="zombie: it has exited")
    verdict = judge_job(evidence(ranks, world_size=4, local_world_size=4))
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(2, None), (3, None)]


def test_a_restarted_rank_is_not_gone() -> None:
    ranks = {**waiters(0, 1, 2, 3), 50: Rank(None, gone=True, rank=2)}
    verdict = judge_job(evidence(ranks, world_size=4))
    assert verdict.culprits == []


def test_a_gone_rank_is_not_accused_while_the_others_move() -> None:
    ranks = {number: Rank(compute(), switches_per_s=9, syscalls_per_s=40) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(None, gone=True)}))
    assert (verdict.kind, verdict.culprits) == ("moving", [])
    assert any("rank 2" in line for line in verdict.evidence)


def test_a_job_of_zombies_only_accuses_nobody() -> None:
    verdict = judge_job(evidence({number: Rank(None, state="Z", error="zombie: x") for number in range(4)}))
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("unclear", [], "high")
    assert verdict.ended
    assert "every rank of the job has ended" in verdict.evidence[0]


def test_a_job_that_goes_on_elsewhere_has_not_ended() -> None:
    """Its ranks here have; of those on nodes that nobody watches nothing is known."""
    dead = {number: Rank(None, state="Z", error="zombie: x", local_rank=number) for number in range(4)}
    verdict = judge_job(evidence(dead, world_size=8, local_world_size=4))
    assert (verdict.kind, verdict.ended, verdict.confidence) == ("unclear", False, "low")
    assert "every rank on the watched nodes has ended" in verdict.evidence[0]


def test_ranks_on_a_node_that_did_not_answer_are_unknown() -> None:
    ranks = {**waiters(0, 1), 2: Rank(None, node="n2", dumped=False), 3: Rank(None, node="n2", dumped=False)}
    verdict = judge_job(evidence(ranks, nodes_missing=("n2",)))
    assert verdict.culprits == []
    assert "node.n2: lost; its ranks (ranks 2-3) are unknown" in _gap_text(verdict)
    assert "ranks 2-3 on n2 gave no stack: look there first" in verdict.evidence
    assert verdict.confidence == "low"


def test_a_job_on_a_silent_node_still_names_the_rank_outside() -> None:
    ranks = {**waiters(0), 1: Rank(dataset()), 2: Rank(None, node="n2", dumped=False)}
    verdict = judge_job(evidence(ranks, nodes_missing=("n2",)))
    assert _ranks(verdict) == [1]
    assert verdict.confidence == "medium"
    assert "rank 2 on n2 gave no stack" in verdict.evidence


def test_two_jobs_under_one_name_are_not_judged_as_one() -> None:
    ranks = {**waiters(0, 1), 8: Rank(dataset(), rank=0), 9: Rank(dataset(), rank=1)}
    verdict = judge_job(evidence(ranks, world_size=2))
    assert (verdict.kind, verdict.culprits) == ("unclear", [])
    assert "more than once" in _gap_text(verdict)


# Step 1: stopped, kernel


def test_one_dump_in_the_kernel_is_normal() -> None:
    def only_first(turn: int) -> Stack:
        return all_reduce()

    given = evidence({**waiters(0, 1, 3), 2: Rank(only_first)})
    for stacks in given.dumps[:]:
        if stacks.rank == 2 and stacks.taken_at > 1000.0:
            stacks.digests[0].state = "D"
    assert judge_job(given).culprits == []


def test_a_stopped_rank_is_not_accused_while_the_others_move() -> None:
    ranks = {number: Rank(compute(), switches_per_s=9, syscalls_per_s=40) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(compute(), state="T")}))
    assert (verdict.kind, verdict.culprits) == ("moving", [])
    assert "rank 2 stopped by a signal (state T) while the others move; to let it run on: kill" in verdict.evidence[0]
    verdict = judge_job(evidence({**ranks, 2: Rank(compute(), state="t")}))
    assert verdict.evidence[0] == "rank 2 held by a debugger (state t) while the others move"


@pytest.mark.parametrize("state", ["T", "t"])
@pytest.mark.parametrize("stopped", [2, 3, 4])
def test_stopped_ranks_never_move_whatever_a_debugger_does_to_their_counters(state: str, stopped: int) -> None:
    """Another one that looks at them makes switches, gives them CPU time, and calls for the stack again and again."""
    poked = {"state": state, "switches_per_s": 40.0, "syscalls_per_s": 90.0, "main_cpu_s_per_s": 0.5, "cpu": 0.9}
    ranks = {number: Rank(lambda turn: compute(48 + turn), **poked) for number in range(stopped)}  # type: ignore[arg-type]
    ranks |= {number: Rank(compute(), switches_per_s=9, syscalls_per_s=40) for number in range(stopped, 4)}
    verdict = judge_job(evidence(ranks))
    assert (verdict.kind, _ranks(verdict), verdict.confidence) == ("hang", list(range(stopped)), "high")
    how = "stopped by a signal (state T" if state == "T" else "held by a debugger (state t"
    assert f"ranks 0-{stopped - 1} {how} in every dump)" in verdict.evidence


def test_a_stopped_worker_is_stuck_whatever_a_debugger_does_to_it() -> None:
    frames = [Child(4711, worker_stuck(), state="t"), Child(4711, worker_idle(), state="t")]
    given = evidence({**waiters(0, 1, 3), 2: Rank(loader_wait(), children=[frames[0]])})
    for turn, stacks in enumerate(stacks for stacks in given.dumps if stacks.rank == 2):
        stacks.digests[1].frames = [*worker_stuck().frames[1:]] if turn == 1 else worker_stuck().frames
    verdict = judge_job(given)
    assert (_ranks(verdict), verdict.confidence) == ([2], "high")
    assert "which a debugger holds in" in verdict.culprits[0].reason


def test_a_wholly_stopped_job_says_so() -> None:
    verdict = judge_job(evidence({number: Rank(all_reduce(), state="T") for number in range(2)}))
    assert (verdict.kind, _ranks(verdict), verdict.confidence) == ("hang", [0, 1], "high")


# Step 2: movement


def test_the_loaders_poll_every_five_seconds_is_not_movement() -> None:
    ranks = {**waiters(0, 1, 3), 2: Rank(loader_wait(), switches_per_s=0.2)}
    verdict = judge_job(evidence(ranks, rounds=6))
    assert (verdict.kind, _ranks(verdict)) == ("hang", [2])


def test_a_spinning_gpu_wait_is_not_progress() -> None:
    wait = stack(*main_frames(), waiting_in="cuda.synchronize")
    ranks = {number: Rank(wait, state="R", cpu=1.0) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(dataset())}))
    assert (verdict.kind, _ranks(verdict), verdict.confidence) == ("hang", [2], "high")


def test_a_retry_loop_with_sleeps_is_found_but_not_with_confidence() -> None:
    def retry(turn: int) -> Stack:
        return stack(("retry", "job/io.py", 9), *main_frames(58), attempt=turn)

    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: Rank(retry, switches_per_s=10, syscalls_per_s=3)}))
    assert (_ranks(verdict), verdict.confidence) == ([2], "low")
    quiet = {number: Rank(all_reduce(), quiet_s=200.0) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**quiet, 2: Rank(retry, switches_per_s=10, syscalls_per_s=3)}))
    assert (_ranks(verdict), verdict.confidence) == ([2], "medium")


@pytest.mark.parametrize("calls", [4.3, 60.0])
def test_calls_of_other_threads_hide_no_hang(calls: float) -> None:
    """NCCL's and torch's threads made 4.3 a second on an H100; a monitor in the job makes more."""
    ranks = {number: Rank(all_reduce(), helpers_per_s=calls) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(dataset(), helpers_per_s=calls)}))
    assert (verdict.kind, _ranks(verdict), verdict.confidence) == ("hang", [2], "high")


@pytest.mark.parametrize(("calls", "confidence"), [(4.3, "high"), (60.0, "low")])
def test_calls_of_all_threads_count_where_the_main_one_waits_for_them(calls: float, confidence: str) -> None:
    culprit = Rank(dataset(), wchan="futex_do_wait", helpers_per_s=calls)
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: culprit}))
    assert (_ranks(verdict), verdict.confidence) == ([2], confidence)


def test_where_the_main_threads_calls_are_not_known_a_few_of_the_process_are_no_movement() -> None:
    """As in captures of earlier versions."""
    ranks = {number: Rank(all_reduce(), helpers_per_s=4.3) for number in (0, 1, 3)}
    bundle = evidence({**ranks, 2: Rank(dataset(), helpers_per_s=4.3)})
    for counters in (stacks.before for stacks in bundle.dumps):
        assert counters is not None
        counters.main_syscalls = None
    verdict = judge_job(bundle)
    assert (verdict.kind, _ranks(verdict), verdict.confidence) == ("hang", [2], "high")


@pytest.mark.parametrize(("watts", "kind"), [(688.0, "moving"), (124.0, "hang")])
def test_who_waits_for_a_gpu_that_computes_moves(watts: float, kind: str) -> None:
    """An H100 that trains draws 688 W, one in a collective that waits 124 W. Both are busy, both main threads spin."""
    spinning = stack(("synchronize", "torch/cuda/__init__.py", 9), *main_frames(58), waiting_in="cuda.synchronize")
    ranks = {number: Rank(spinning, cpu=1.0, main_cpu_s_per_s=1.0, state="R") for number in range(4)}
    bundle = evidence(ranks)
    gpus = [GpuSample(index, busy=1.0, power_w=watts, power_limit_w=700.0) for index in range(4)]
    bundle.samples = {"n1": Sample("n1", START, gpus=gpus)}
    for number, seen in enumerate(bundle.roster):
        seen.sample.gpus = [number]
    assert judge_job(bundle).kind == kind


def test_waiters_that_went_through_a_collective_mean_a_moving_job() -> None:
    def passing(turn: int) -> Stack:
        return all_reduce(step=turn)

    ranks = {number: Rank(passing) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(validation())}))
    assert (verdict.kind, verdict.culprits) == ("moving", [])


def test_waiters_seen_in_one_place_but_with_running_counters_move() -> None:
    ranks = {number: Rank(all_reduce(), switches_per_s=4) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(compute(), switches_per_s=4)}))
    assert (verdict.kind, verdict.culprits) == ("moving", [])


@pytest.mark.parametrize(("switches", "kind"), [(0.0, "unclear"), (5.0, "moving")])
def test_without_a_waiter_and_a_majority_nobody_is_accused(switches: float, kind: str) -> None:
    ranks = {number: Rank(compute(), switches_per_s=switches) for number in range(2)}
    rest = {number: Rank(dataset(), switches_per_s=switches) for number in (2, 3)}
    verdict = judge_job(evidence({**ranks, **rest}))
    assert (verdict.kind, verdict.culprits) == (kind, [])
    assert verdict.evidence


def test_one_rank_ahead_of_computing_ranks_is_no_hang() -> None:
    ranks = {number: Rank(compute(), state="R", cpu=1.0) for number in range(3)}
    verdict = judge_job(evidence({**ranks, 3: Rank(all_reduce())}))
    assert (verdict.kind, verdict.culprits) == ("unclear", [])


@pytest.mark.parametrize(
    ("rounds", "gap_s", "quiet_s", "confidence"),
    [
        (2, 1.0, None, "low"),
        (3, 1.8, None, "medium"),
        (4, 2.0, None, "high"),
        (2, 1.0, 12.0, "medium"),
        (2, 1.0, 31.0, "high"),
        (1, 0.0, 31.0, "high"),
    ],
)
def test_confidence_follows_the_time_watched(rounds: int, gap_s: float, quiet_s: float | None, confidence: str) -> None:
    ranks = {number: Rank(all_reduce(), quiet_s=quiet_s) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(dataset())}, rounds=rounds, gap_s=gap_s))
    assert (_ranks(verdict), verdict.confidence) == ([2], confidence)


def test_the_quiet_time_before_is_told() -> None:
    ranks = {number: Rank(all_reduce(), quiet_s=200.0) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(dataset())}, rounds=3, gap_s=2.5))
    assert "no progress for 3 min 25 s" in verdict.evidence[0]


def test_one_look_without_history_accuses_nobody() -> None:
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: Rank(dataset())}, rounds=1))
    assert (verdict.kind, verdict.culprits) == ("unclear", [])


def test_stacks_without_counters_are_weak_evidence() -> None:
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: Rank(dataset())}, counters=False))
    assert (_ranks(verdict), verdict.confidence) == ([2], "low")


def test_autograd_that_sleeps_counts_as_waiting_and_one_that_computes_does_not() -> None:
    engine = stack(("_engine_run_backward", "torch/autograd/graph.py", 869), *main_frames())
    asleep = {number: Rank(engine) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**asleep, 2: Rank(dataset())}))
    assert (_ranks(verdict), verdict.confidence) == ([2], "medium")
    busy = {number: Rank(engine, state="R", cpu=3.0) for number in (0, 1, 3)}
    assert judge_job(evidence({**busy, 2: Rank(dataset())})).culprits == []


def test_autograds_own_threads_tell_what_backward_waits_in() -> None:
    engine = stack(("_engine_run_backward", "torch/autograd/graph.py", 869), *main_frames())
    given = evidence({**{number: Rank(engine) for number in (0, 1, 3)}, 2: Rank(dataset())})
    for stacks in given.dumps:
        if stacks.rank != 2:
            thread = StackDigest(
                stacks.rank, stacks.pid, "pt_autograd_0", frames=all_reduce().frames, waiting_in="all_gather"
            )
            stacks.digests.append(thread)
    verdict = judge_job(given)
    assert (_ranks(verdict), verdict.confidence) == ([2], "high")
    assert verdict.waiting[0].where.startswith("all_gather")


# Step 3: children


def test_a_dead_worker_is_the_culprit_and_an_idle_one_is_not() -> None:
    dead = Child(4711, None, state="Z", error="zombie: it has exited and its parent has not collected it")
    children = [Child(4710, worker_idle()), dead]
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: Rank(loader_wait(), children=children)}))
    assert [(one.rank, one.pid, one.child_pid) for one in verdict.culprits] == [(2, 4002, 4711)]
    assert "which has died" in verdict.culprits[0].reason


def test_idle_workers_leave_the_rank_itself() -> None:
    children = [Child(4710, worker_idle()), Child(4711, worker_idle())]
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: Rank(loader_wait(), children=children)}))
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(2, 4002)]
    assert "all idle" in verdict.culprits[0].reason
    assert verdict.confidence == "medium"


def test_a_worker_in_the_kernel_is_told_with_its_place() -> None:
    child = Child(4711, worker_stuck(), state="D", wchan="folio_wait_bit")
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: Rank(loader_wait(), children=[child])}))
    assert "in the kernel (folio_wait_bit), state D" in verdict.culprits[0].reason


# Unreadable stacks


def test_an_unreadable_rank_is_a_gap_with_its_fix_and_no_culprit() -> None:
    hidden = Rank(None, error="permission denied", fix="sudo mltop stacks")
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: hidden}))
    assert verdict.culprits == []
    assert "stacks.2: permission denied [sudo mltop stacks]" in _gap_text(verdict)
    assert verdict.confidence == "low"
    assert any("may be in one that was not" in line for line in verdict.evidence)


def test_too_many_unreadable_ranks_are_unclear() -> None:
    hidden = {number: Rank(None, error="permission denied") for number in (1, 2, 3)}
    verdict = judge_job(evidence({**waiters(0), **hidden}))
    assert (verdict.kind, verdict.culprits) == ("unclear", [])


def test_unreadable_ranks_whose_counters_run_still_move() -> None:
    hidden = {number: Rank(None, error="permission denied", switches_per_s=9) for number in range(4)}
    assert judge_job(evidence(hidden)).kind == "moving"


# Steps 4 to 6


def test_a_tie_shows_both_sides() -> None:
    ranks = {**waiters(0, 1), 2: Rank(broadcast()), 3: Rank(broadcast())}
    verdict = judge_job(evidence(ranks))
    assert (verdict.kind, _ranks(verdict), verdict.confidence) == ("suspect", [0, 1, 2, 3], "low")
    assert all(one.reason.startswith("mismatch: ") for one in verdict.culprits)


def test_one_operation_from_two_lines_is_a_mismatch() -> None:
    other = stack(("all_reduce", C10D, 2900), ("log_loss", "job/case.py", 71), *main_frames(), waiting_in="all_reduce")
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: Rank(other)}))
    assert (_ranks(verdict), verdict.confidence) == ([2], "medium")
    assert "log_loss (job/case.py:71)" in verdict.culprits[0].reason


def test_one_helper_called_from_two_lines_is_a_mismatch() -> None:
    verdict = judge_job(evidence({**waiters(0, 1, 3), 2: Rank(all_reduce(line=66))}))
    assert _ranks(verdict) == [2]
    assert "job/case.py:66" in verdict.culprits[0].reason


def test_different_lines_inside_torch_are_no_mismatch() -> None:
    source = stack(("broadcast", C10D, 1), ("broadcast_object_list", C10D, 3300), *main_frames(), waiting_in="b")
    target = stack(("broadcast", C10D, 1), ("broadcast_object_list", C10D, 3322), *main_frames(), waiting_in="b")
    ranks = {0: Rank(source), **{number: Rank(target) for number in (1, 2, 3)}}
    verdict = judge_job(evidence(ranks))
    assert verdict.culprits == []
    assert "below Python" in verdict.evidence[1]


def test_pipeline_neighbours_are_not_accused() -> None:
    recv = stack(("recv", C10D, 2500), *main_frames(), waiting_in="recv")
    send = stack(("send", C10D, 2400), *main_frames(), waiting_in="send")
    verdict = judge_job(evidence({0: Rank(send), 1: Rank(recv), 2: Rank(recv), 3: Rank(recv)}))
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("hang", [], "low")


def test_the_rank_behind_is_named_among_512() -> None:
    ranks = {
        number: Rank(all_reduce(global_step=4110 if number == 317 else 4111, rank=number, port=20000 + number * 7))
        for number in range(512)
    }
    verdict = judge_job(evidence(ranks))
    assert _ranks(verdict) == [317]
    assert "behind the others: global_step is 4110 here and 4111 on ranks 0-316,318-511" in verdict.culprits[0].reason


@pytest.mark.parametrize(
    "ints",
    [
        lambda rank: {"rank": rank, "my_rank": rank},
        lambda rank: {"port": 29500 + rank, "obj_id": 140000000 + rank * 48},
        lambda rank: {"is_first": int(rank == 0)},
        lambda rank: {"batch_size": 17 if rank == 3 else 32},
        lambda rank: {"offset": rank * 1024, "numel": 1000 + rank},
    ],
)
def test_integers_that_differ_for_good_reasons_accuse_nobody(ints: object) -> None:
    assert callable(ints)
    ranks = {number: Rank(all_reduce(step=7, **ints(number))) for number in range(4)}
    verdict = judge_job(evidence(ranks))
    assert (verdict.kind, verdict.culprits) == ("hang", [])


@pytest.mark.parametrize(
    "name",
    [
        "iter_num",
        "step_num",
        "epoch_num",
        "local_step",
        "total_step",
        "last_step",
        "num_batches_done",
        "n_iter",
        "global_step",
        "step",
        "stepIdx",
        "batches_seen",
    ],
)
def test_names_that_count_the_turns_of_a_loop(name: str) -> None:
    ranks = {number: Rank(all_reduce(**{name: 6 if number == 2 else 5})) for number in range(4)}
    assert _ranks(judge_job(evidence(ranks))) == [2]


@pytest.mark.parametrize(
    "name",
    [
        "num_steps",
        "n_iters",
        "max_steps",
        "total_steps",
        "max_train_iters",
        "num_epochs",
        "batch_size",
        "step_size",
        "seq_len",
        "log_every_step",
        "eval_interval",
        "save_steps_freq",
        "local_rank",
        "rank_index",
        "n",
        "num",
    ],
)
def test_names_of_bounds_and_sizes_count_nothing(name: str) -> None:
    ranks = {number: Rank(all_reduce(**{name: 6 if number == 2 else 5})) for number in range(4)}
    assert _ranks(judge_job(evidence(ranks))) == []


def test_two_ranks_in_different_turns_are_a_tie() -> None:
    verdict = judge_job(evidence({0: Rank(all_reduce(step=5)), 1: Rank(all_reduce(step=6))}))
    assert (_ranks(verdict), verdict.confidence) == ([0, 1], "low")


def test_equal_ranks_point_below_python_and_name_no_rank() -> None:
    verdict = judge_job(evidence(waiters(*range(8))))
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("hang", [], "medium")
    assert "waits in all_reduce" in verdict.evidence[0]
    assert "below Python" in verdict.evidence[1]


def test_a_job_of_one_rank_has_nobody_to_wait_for() -> None:
    for rank in (Rank(dataset()), Rank(spin, state="R", cpu=1.0), Rank(compute(), switches_per_s=9)):
        verdict = judge_job(evidence({0: rank}, world_size=None))
        assert verdict.culprits == []
        assert verdict.kind in ("unclear", "moving")


def test_stragglers_need_more_than_luck() -> None:
    dice = random.Random(7)
    named = 0
    for _ in range(200):
        ranks = {}
        for number in range(8):
            waits = [dice.random() < 0.5 for _ in range(10)]
            ranks[number] = Rank(
                lambda turn, waits=waits: all_reduce(step=turn) if waits[turn] else compute(step=turn),
                switches_per_s=9,
            )
        named += judge_job(evidence(ranks, rounds=10, gap_s=0.4)).kind == "straggler"
    assert named <= 10


def _healthy(dice: random.Random) -> Verdict:
    """A job with its own pace and noise: steps between dumps, waits by chance, counters that run."""
    count = dice.choice([1, 2, 4, 8, 16])
    share, pace = dice.random() * 0.8, dice.uniform(2.0, 60.0)
    polls = dice.random() < 0.3  # log writers and the like
    counted = dice.random() < 0.5  # the loop counter is an integer local
    ranks = {}
    for number in range(count):
        waits = [dice.random() < share for _ in range(16)]
        calm = counted and dice.random() < 0.1  # a rank in a long kernel: few switches

        def at(turn: int, waits: list[bool] = waits, number: int = number) -> Stack:
            ints = {"step": turn} if counted else {}
            busy = [compute(48, **ints), dataset(14), validation(), loader_wait()]
            return all_reduce(**ints) if waits[turn] else busy[(turn + number) % 4]

        ranks[number] = Rank(
            at,
            switches_per_s=0.0 if calm else pace * dice.uniform(0.5, 1.5),
            syscalls_per_s=pace * 10 if polls else 0.0,
            state=dice.choice("RSD"),
            cpu=dice.uniform(0.0, 2.0),
            quiet_s=dice.choice([None, 0.0, 1.0]),
        )
    rounds = dice.choice([2, 3, 5, 16])
    return judge_job(evidence(ranks, rounds=rounds, gap_s=dice.uniform(0.4, 2.5)))


def test_five_hundred_healthy_jobs_accuse_nobody() -> None:
    dice = random.Random(20)
    verdicts = [_healthy(dice) for _ in range(500)]
    assert [verdict for verdict in verdicts if verdict.culprits] == []
    assert sum(verdict.kind in ("moving", "straggler") for verdict in verdicts) > 400
    assert not any(verdict.kind == "hang" for verdict in verdicts)


def test_one_switch_in_a_short_window_is_a_poll_not_movement() -> None:
    ranks = {number: Rank(all_reduce(), switches_per_s=0.7) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(dataset())}, rounds=2, gap_s=1.5))
    assert (verdict.kind, _ranks(verdict)) == ("suspect", [2])
