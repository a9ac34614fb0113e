"""Phases of jobs from simulated samples: every way to hang is asked about in time, nothing healthy ever is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mltop.probes.judge.stall.motions import JobMotions
from mltop.probes.model import RankDeath, Sample
from tests.builders.simulated_motion import (
    ASLEEP,
    BLOCKED,
    COMPILING,
    GLOO,
    IMPORTING,
    LOADER_POLL,
    LOOKING_AFTER,
    NCCL,
    NCCL_SAVING,
    NCCL_WAIT,
    POLLING,
    RAY,
    SAVING,
    SPINNING,
    STOPPED,
    Act,
    Doing,
    SimulatedJob,
    stepping,
)

HEALTHY_S = 30.0
SETTLED_S = 10.0  # eight seconds, and a sample of one second at each end
SLOW = replace(GLOO, switches=30, main_cpu=0.004, reads=8, writes=10)


def gloo() -> SimulatedJob:
    return SimulatedJob(4).run(HEALTHY_S, GLOO)


def nccl(**changes: object) -> SimulatedJob:
    return SimulatedJob(16, with_gpus=True, **changes).run(HEALTHY_S, NCCL)  # type: ignore[arg-type]


def busy_ray(at: float) -> Act:
    """Where others want the processors, nothing wakes up as regularly as a clock; and Ray calls now and then."""
    calls = 2 if int(at) % 5 == 0 else 0
    return replace(LOOKING_AFTER, switches=40 + 25 * (int(at) % 3), main_cpu=0.03, cpu=0.04, reads=calls, writes=calls)


def beside(act: Act, calls: float) -> Act:
    """With threads that read and write, as NCCL's and torch's do 4.3 times a second on an H100."""
    return replace(act, reads=act.reads + calls / 2, writes=act.writes + calls / 2)


def helped() -> SimulatedJob:
    return SimulatedJob(16, with_gpus=True).run(HEALTHY_S, beside(NCCL, 4.3))


# Through shared memory MPI's ranks move data without a call.
MPI_SLEEPER = Act(8, 0.004, cpu=0.01)


HANGS: dict[str, tuple[Callable[[], SimulatedJob], Doing, dict[int, Doing]]] = {
    "Ray's main threads on a busy node": (lambda: SimulatedJob(4, launcher="ray").run(HEALTHY_S, RAY), busy_ray, {}),
    "all wait, one sleeps": (gloo, ASLEEP, {}),
    "its worker waits for a lock": (gloo, ASLEEP, {2: LOADER_POLL}),
    "stopped": (gloo, ASLEEP, {2: STOPPED}),
    "in the kernel": (gloo, ASLEEP, {2: BLOCKED}),
    "all poll": (gloo, POLLING, {}),
    "Ray's main threads look after those that wait": (
        lambda: SimulatedJob(4).run(HEALTHY_S, RAY),
        LOOKING_AFTER,
        {},
    ),
    "NCCL spins": (nccl, NCCL_WAIT, {}),
    "NCCL spins and one never launched": (nccl, NCCL_WAIT, {3: ASLEEP}),
    "one node of two": (lambda: nccl(seen=1), NCCL_WAIT, {}),
    "NCCL spins, its threads call": (helped, beside(NCCL_WAIT, 4.3), {3: beside(ASLEEP, 4.3)}),
    "NCCL spins, a monitor calls often": (helped, beside(NCCL_WAIT, 60.0), {}),
    "all poll, threads call": (gloo, beside(replace(POLLING, switches=98, main_cpu=0.0045), 4.3), {}),
    "all wait, a monitor calls often": (gloo, beside(ASLEEP, 60.0), {}),
    "GPUs of unknown ranks": (lambda: nccl(gpus_matched=False), NCCL_WAIT, {}),
    "a container, calls unreadable": (lambda: nccl(calls_readable=False), NCCL_WAIT, {}),
    "a container without GPUs": (
        lambda: SimulatedJob(4, calls_readable=False).run(HEALTHY_S, GLOO),
        ASLEEP,
        {},
    ),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_asked_about_within_ten_seconds(name: str) -> None:
    make, doing, others = HANGS[name]
    job = make().run(80.0, doing, others)
    assert [phase for _, phase in job.phases] == ["starting", "moving", "quiet", "stalled"]
    quiet, stalled = job.said("quiet"), job.said("stalled")
    assert quiet is not None and stalled is not None
    assert HEALTHY_S + 7.0 <= quiet <= HEALTHY_S + SETTLED_S
    assert HEALTHY_S + 59.0 <= stalled <= HEALTHY_S + 60.0 + 2.0
    motion = job.motion
    assert len(motion.signals) >= 2
    assert motion.ranks.count == motion.ranks_seen
    assert motion.patience_s == 60.0
    assert motion.still_s == pytest.approx(80.0, abs=2.0)


def test_a_log_that_says_so_makes_a_pause_a_stall_at_once() -> None:
    job = gloo().run(20.0, ASLEEP)
    assert job.phase == "quiet"
    job.log("timeout", waited_s=20.0)
    job.run(3.0, ASLEEP)
    assert job.phase == "stalled" and job.motion.still_s == pytest.approx(23.0, abs=2.0)


def test_what_ranks_do_while_they_log_it_is_no_movement() -> None:
    job = gloo().run(20.0, ASLEEP)
    job.log("timeout", waited_s=20.0)
    job.run(2.0, GLOO).run(2.0, ASLEEP)
    assert job.phase == "stalled" and job.motion.still_s == pytest.approx(24.0, abs=2.0)


def test_nor_are_the_flight_records_that_they_write_then() -> None:
    """Their heartbeat threads wait for one another before they do."""
    job = gloo().run(20.0, ASLEEP)
    job.log("timeout", waited_s=20.0)
    job.run(6.0, ASLEEP).run(3.0, SAVING).run(4.0, ASLEEP)
    assert job.phase == "stalled" and job.motion.still_s == pytest.approx(33.0, abs=2.0)


def test_a_job_that_goes_on_after_its_log_said_so_moves() -> None:
    job = gloo().run(20.0, ASLEEP)
    job.log("timeout", waited_s=20.0)
    job.run(30.0, GLOO)
    assert job.phase == "moving"


@pytest.mark.parametrize("waited_s", [None, 3.0])
def test_a_short_wait_or_one_of_unknown_length_tells_nothing(waited_s: float | None) -> None:
    job = gloo().run(20.0, ASLEEP)
    job.log("timeout", waited_s=waited_s)
    assert job.run(3.0, ASLEEP).phase == "quiet"


def test_who_waited_in_vain_and_ended_is_not_odd() -> None:
    job = gloo().run(20.0, ASLEEP)
    job.log("timeout", waited_s=20.0)
    for rank in (0, 2):
        job.lose(rank, RankDeath(0, how="exit", code=1, error="RuntimeError: Timed out waiting 20000ms for recv"))
    job.run(5.0, ASLEEP)
    assert job.phase == "stalled" and job.motion.odd == []


def test_coarse_samples_cost_one_sample_more() -> None:
    job = SimulatedJob(16, with_gpus=True, interval_s=10.0).run(130.0, NCCL).run(80.0, NCCL_WAIT)
    quiet = job.said("quiet")
    assert quiet is not None and quiet <= 130.0 + 10.0 + 10.0 + 0.1


def unreadable(job: SimulatedJob) -> SimulatedJob:
    job.gpu_changes = {index: {"state": "lost"} for index in range(8)}
    return job


HEALTHY: dict[str, Callable[[], SimulatedJob]] = {
    "first compile": lambda: SimulatedJob(16, with_gpus=True).run(20, IMPORTING).run(200, COMPILING).run(40, NCCL),
    "indexing on rank 0": lambda: SimulatedJob(4).run(10, IMPORTING).run(200, ASLEEP, {0: IMPORTING}).run(30, GLOO),
    "evaluation on rank 0, GPU": lambda: nccl().run(90, NCCL_WAIT, {0: NCCL}).run(30, NCCL),
    "evaluation on rank 0, processor": lambda: gloo().run(45, ASLEEP, {0: SPINNING}).run(30, GLOO),
    "saving on rank 0": lambda: nccl().run(90, NCCL_WAIT, {0: NCCL_SAVING}).run(30, NCCL),
    "saving by all": lambda: gloo().run(90, SAVING).run(30, GLOO),
    "accumulation": lambda: SimulatedJob(8, with_gpus=True).run(120, stepping(8.0, NCCL, NCCL_WAIT, share=0.9)),
    "slow": lambda: SimulatedJob(4).run(120, stepping(1.0, SLOW, ASLEEP, share=0.5)),
    "Ray, its thread computes": lambda: SimulatedJob(4).run(60, RAY).run(120, replace(LOOKING_AFTER, cpu=0.6)),
    "Ray, its GPUs work": lambda: SimulatedJob(8, with_gpus=True).run(180, replace(LOOKING_AFTER, gpu="training")),
    "Ray, its GPUs cannot be read": lambda: unreadable(SimulatedJob(8, with_gpus=True)).run(180, LOOKING_AFTER),
    "Ray on a busy node, its thread computes": lambda: (
        SimulatedJob(4, launcher="ray").run(60, RAY).run(120, lambda at: replace(busy_ray(at), cpu=0.6))
    ),
    "Ray on a busy node, its GPUs work": lambda: SimulatedJob(8, with_gpus=True, launcher="ray").run(
        180, lambda at: replace(busy_ray(at), gpu="training")
    ),
    "steps that differ": lambda: SimulatedJob(4).run(180, lambda at: Act(40 + 25 * (int(at) % 3), 0.03, cpu=0.05)),
    "a start that computes": lambda: SimulatedJob(4).run(700, SPINNING),
    "MPI computes": lambda: SimulatedJob(4, launcher="mpirun").run(700, SPINNING),
    "MPI sleeps in its steps": lambda: SimulatedJob(4, launcher="mpirun").run(700, MPI_SLEEPER),
    "notebook": lambda: SimulatedJob(1, age_s=100.0).run(30, SPINNING).run(400, ASLEEP),
    "a thread trains": lambda: SimulatedJob(4).run(10, IMPORTING).run(180, beside(ASLEEP, 40.0)),
    "recompilation": lambda: nccl().run(90, COMPILING).run(30, NCCL),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_healthy_is_asked_about(name: str) -> None:
    said = {phase for _, phase in HEALTHY[name]().phases}
    assert not said & {"quiet", "stalled"}


def test_slow_steps_are_the_rhythm() -> None:
    """A step of 30 s of which most is waiting: once that is known nobody asks, and patience is ten of them."""
    job = SimulatedJob(4).run(333.0, stepping(30.0, GLOO, ASLEEP, share=0.1))
    assert job.phase == "moving" and "stalled" not in {phase for _, phase in job.phases}
    rhythm = job.motion.rhythm
    assert rhythm is not None and rhythm.step_s == pytest.approx(30.0, rel=0.03)
    assert job.motion.patience_s == pytest.approx(300.0, rel=0.03)
    job.phases.clear()
    job.run(280.0, ASLEEP)
    assert "stalled" not in {phase for _, phase in job.phases}
    job.run(40.0, ASLEEP)
    assert job.phase == "stalled"


def test_patience_grows_with_pauses_that_end() -> None:
    job = gloo()
    for _ in range(2):
        job.run(50.0, ASLEEP).run(40.0, GLOO)
    assert job.motion.patience_s == pytest.approx(100.0, abs=4.0)
    job.phases.clear()
    job.run(90.0, ASLEEP)
    assert job.phase == "quiet"


def test_a_loop_is_told_later_than_an_evaluation_takes() -> None:
    """From outside both are one core that computes while the others wait; who does is named at once."""
    job = gloo().run(20.0, ASLEEP, {2: SPINNING})
    assert job.phase == "moving"
    assert [(odd.rank, odd.reason) for odd in job.motion.odd] == [
        (2, "computes on a core while the others make no progress")
    ]
    job.run(45.0, ASLEEP, {2: SPINNING})
    assert job.phase == "quiet"
    job.run(130.0, ASLEEP, {2: SPINNING})
    assert job.phase == "stalled"
    assert str(job.motion.ranks) == "0-1,3"


def test_a_loop_among_more_ranks_than_cores_still_computes() -> None:
    crowded = replace(SPINNING, main_cpu=0.12, cpu=0.12)
    job = gloo().run(50.0, ASLEEP, {2: crowded})
    assert job.phase == "moving"


ODD: dict[str, tuple[Act, str, str]] = {
    "stopped": (STOPPED, "stopped (T)", "do_signal_stop"),
    "traced": (replace(STOPPED, state="t"), "held by a debugger (t)", "do_signal_stop"),
    "kernel": (BLOCKED, "in the kernel, uninterruptible (D)", "rpc_wait_bit_killable"),
}


@pytest.mark.parametrize("name", ODD)
def test_who_differs_is_named(name: str) -> None:
    act, reason, where = ODD[name]
    job = gloo().run(20.0, ASLEEP, {2: act})
    assert [(odd.rank, odd.pid, odd.reason, odd.where) for odd in job.motion.odd] == [(2, 102, reason, where)]


def test_the_only_idle_gpu_is_named() -> None:
    job = nccl().run(20.0, NCCL_WAIT, {5: ASLEEP})
    odd = job.motion.odd
    assert [(culprit.rank, culprit.node, culprit.gpu) for culprit in odd] == [(5, "node-0", 5)]


def test_half_of_the_ranks_differing_is_no_minority() -> None:
    assert nccl().run(20.0, NCCL_WAIT, dict.fromkeys(range(8), ASLEEP)).motion.odd == []


def test_a_rank_that_is_gone_is_an_incident_at_once() -> None:
    job = gloo()
    job.lose(2, RankDeath(0, how="signal", code=9))
    job.run(13.0, ASLEEP)
    assert job.phase == "stalled"
    assert [(odd.rank, odd.pid, odd.reason) for odd in job.motion.odd] == [(2, 102, "killed by SIGKILL")]
    assert job.motion.ranks_seen == 3 and job.motion.world_size == 4


def test_a_rank_that_is_gone_without_a_word_too() -> None:
    job = gloo()
    job.lose(2)
    job.run(13.0, ASLEEP)
    assert job.phase == "stalled"
    assert [odd.reason for odd in job.motion.odd] == ["its process is gone"]


def test_a_death_that_nobody_saw_counts() -> None:
    """It ended before the node was watched, and the others stand since then."""
    job = SimulatedJob(4, age_s=100.0)
    job.lose(1, RankDeath(0, how="exit", code=1))
    job.deaths[0] = replace(job.deaths[0], at=job.at - 20.0)
    job.run(14.0, ASLEEP)
    assert job.phase == "stalled"
    assert [(odd.rank, odd.reason) for odd in job.motion.odd] == [(1, "exited with code 1")]


def test_a_finished_job_is_not_accused() -> None:
    job = gloo()
    for rank in (3, 2, 1):
        job.lose(rank, RankDeath(0, how="exit", code=0))
        job.run(1.0, ASLEEP)
    job.run(40.0, ASLEEP)
    assert {phase for _, phase in job.phases} == {"starting", "moving", "unknown"}
    assert job.motion.odd == []
    job.lose(0, RankDeath(0, how="exit", code=0))
    job.run(2.0, ASLEEP)
    assert job.motions.motions() == ()


def test_one_that_ended_well_leaves_the_others_their_usual_time() -> None:
    job = gloo()
    job.lose(3, RankDeath(0, how="exit", code=0))
    job.run(30.0, ASLEEP)
    assert job.phase == "quiet" and job.motion.odd == []
    job.run(40.0, ASLEEP)
    assert job.phase == "stalled"
    assert [odd.reason for odd in job.motion.odd] == ["exited with code 0"]


def test_a_teardown_is_no_stall() -> None:
    job = SimulatedJob(8).run(HEALTHY_S, GLOO)
    job.lose(2, RankDeath(0, how="signal", code=9))
    job.run(1.0, ASLEEP)
    job.lose(3, RankDeath(0, how="signal", code=15))
    job.run(20.0, ASLEEP)
    assert job.phase == "unknown" and job.motion.signals == ["its ranks are being ended"]


def test_a_job_that_was_started_anew_begins_anew() -> None:
    job = gloo()
    lost = dict(job.ranks)
    for rank in lost:
        job.lose(rank)
    job.ranks = {rank: replace(old, pid=old.pid + 1000) for rank, old in lost.items()}
    job.run(20.0, ASLEEP)
    assert job.phase == "starting" and job.motion.odd == []


def test_few_ranks_that_move_once_do_not_end_a_stall() -> None:
    """A watchdog writes its lines."""
    job = SimulatedJob(64).run(HEALTHY_S, GLOO).run(80.0, ASLEEP)
    before = job.motion.since
    job.run(1.0, ASLEEP, {5: SAVING}).run(5.0, ASLEEP)
    assert job.phase == "stalled" and job.motion.since == before


def test_going_on_ends_a_stall() -> None:
    job = gloo().run(80.0, ASLEEP).run(6.0, GLOO)
    assert job.phase == "moving" and job.motion.since == pytest.approx(job.at, abs=6.0)


def test_never_seen_to_step_takes_five_minutes() -> None:
    job = SimulatedJob(4, age_s=5.0).run(280.0, ASLEEP)
    assert job.phase == "starting"
    assert job.run(30.0, ASLEEP).phase == "stalled"
    old = SimulatedJob(4, age_s=7200.0).run(100.0, ASLEEP)
    assert old.phase == "unknown" and old.motion.signals == ["it has not been seen to step yet"]


def test_under_mpi_one_that_sleeps_while_the_others_spin_is_told() -> None:
    """Its waits spin: who neither works nor spins is not in one."""
    job = SimulatedJob(4, launcher="mpirun").run(310.0, SPINNING, {2: ASLEEP})
    assert job.phase == "stalled"
    looked_at = Act(8, 0.0001)  # by py-spy, which stops it each time
    assert job.run(20.0, SPINNING, {2: looked_at}).run(5.0, SPINNING, {2: ASLEEP}).phase == "stalled"
    polls = SimulatedJob(4).run(310.0, POLLING)
    assert polls.phase == "stalled"  # without MPI a poll is none of its waits


def test_too_little_is_readable_to_say_so() -> None:
    """Main threads alone are one signal."""
    job = SimulatedJob(4, calls_readable=False)
    job.without_cpu = True
    job.run(HEALTHY_S, replace(GLOO, switches=60, main_cpu=0.2)).run(30.0, ASLEEP)
    assert job.phase == "unknown" and job.motion.signals == ["too few of its counters can be read"]


def test_the_same_tuple_comes_out_while_no_sample_came() -> None:
    job = gloo()
    first = job.motions.motions()
    assert job.motions.motions() is first
    job.run(2.0, GLOO)
    assert job.motions.motions() is not first
    assert first[0].at < job.motion.at


def test_nodes_that_are_forgotten_are_neither_still_nor_gone() -> None:
    job = SimulatedJob(16).run(HEALTHY_S, GLOO)
    job.motions.forget("node-1")
    assert job.motion.nodes == ["node-0"] and job.motion.odd == []
    job.motions.forget("node-0")
    assert job.motions.motions() == ()
    job.motions.forget("node-0")


def test_a_node_that_is_silent_is_not_seen() -> None:
    job = SimulatedJob(16).run(HEALTHY_S, GLOO)
    job._next[1] = float("inf")
    job.run(30.0, GLOO)
    assert job.motion.ranks_seen == 8 and job.motion.nodes == ["node-0"]


def test_old_samples_and_other_clocks() -> None:
    motions = JobMotions()
    motions.see(Sample("idle", 5.0))
    assert motions.motions() == ()
    job = SimulatedJob(2, motions=motions).run(10.0, GLOO)
    at = job.motion.at
    motions.see(Sample("node-0", at - 3.0))
    assert job.motion.at == at
    motions.see(Sample("node-0", at + 101.0, clock_skew_s=100.0))
    assert motions.motions() == ()


def test_two_jobs_of_one_node_are_apart() -> None:
    motions = JobMotions()
    hung = SimulatedJob(2, motions=motions, job="a")
    hung.run(HEALTHY_S, GLOO)
    samples: list[Sample] = []
    other = SimulatedJob(2, job="b", first_pid=900)

    def both(sample: Sample) -> None:
        samples.append(sample)
        other._next[0] = float("inf")
        other.at = hung.at
        motions.see(replace(sample, ranks=[*sample.ranks, *(other._rank(rank, 1.0) for rank in other.ranks.values())]))

    hung.see = both
    for _ in range(20):
        hung.run(1.0, ASLEEP)
        other.run(1.0, GLOO)
    assert {motion.job: motion.phase for motion in motions.motions()} == {"a": "quiet", "b": "moving"}


def test_jobs_at_loopback_are_one_for_each_node() -> None:
    """Their name is the same everywhere, and they have nothing to do with each other."""
    motions = JobMotions()
    jobs = [SimulatedJob(2, motions=motions, job="127.0.0.1:29500") for _ in range(2)]
    for index, job in enumerate(jobs):

        def moved(sample: Sample, index: int = index) -> None:
            ranks = [replace(rank, master_address="127.0.0.1") for rank in sample.ranks]
            motions.see(replace(sample, node=f"n{index}", ranks=ranks))

        job.see, job.look = moved, False
    for _ in range(int(HEALTHY_S)):
        for job in jobs:
            job.run(1.0, GLOO)
    for _ in range(20):
        jobs[0].run(1.0, ASLEEP)
        jobs[1].run(1.0, GLOO)
    assert [(motion.nodes, motion.phase) for motion in motions.motions()] == [(["n0"], "quiet"), (["n1"], "moving")]


def test_a_clock_that_is_set_back_costs_no_node() -> None:
    job = SimulatedJob(16).run(HEALTHY_S, GLOO)
    ahead = True
    see = job.motions.see

    def skewed(sample: Sample) -> None:
        see(replace(sample, sampled_at=sample.sampled_at + 3600.0) if ahead and sample.node == "node-1" else sample)

    job.see = skewed
    job.run(5.0, GLOO)
    ahead = False
    job.run(20.0, GLOO)
    assert (job.phase, job.motion.ranks_seen) == ("moving", 16)
    job.run(13.0, ASLEEP)
    assert job.phase == "quiet"


@pytest.mark.parametrize("skew_s", [0.0, 300.0, -300.0])
def test_a_rank_that_is_gone_on_a_node_with_another_clock(skew_s: float) -> None:
    """Starts and ends are told by the node's clock, samples' times by ours."""
    job = SimulatedJob(4)
    see = job.motions.see

    def skewed(sample: Sample) -> None:
        ranks = [replace(rank, started_at=(rank.started_at or 0.0) + skew_s) for rank in sample.ranks]
        deaths = [replace(death, at=None if death.at is None else death.at + skew_s) for death in sample.deaths]
        see(replace(sample, sampled_at=sample.sampled_at + skew_s, clock_skew_s=skew_s, ranks=ranks, deaths=deaths))

    job.see = skewed
    job.run(HEALTHY_S, GLOO)
    job.lose(2)
    job.run(70.0, ASLEEP)
    assert job.phase == "stalled"
    assert [odd.rank for odd in job.motion.odd] == [2]


def test_no_time_is_no_sample() -> None:
    job = gloo()
    for at in (float("nan"), float("inf"), float("-inf")):
        job.motions.see(Sample("node-0", at))
    assert job.phase == "moving" and job.run(20.0, ASLEEP).phase == "quiet"


def test_processes_without_a_number_come_and_go() -> None:
    job = SimulatedJob(8)
    see = job.motions.see

    def unnumbered(sample: Sample) -> None:
        see(replace(sample, ranks=[replace(rank, rank=None) for rank in sample.ranks]))

    job.see = unnumbered
    job.run(HEALTHY_S, GLOO)
    for rank in range(6):
        job.lose(rank)
        job.run(3.0, GLOO)
    assert job.phase == "moving"


def test_a_job_that_was_started_anew_with_fewer_ranks_misses_none_of_the_others() -> None:
    job = gloo()
    for rank in list(job.ranks):
        old = job.ranks[rank]
        job.lose(rank, RankDeath(0, how="signal", code=9))
        if rank < 3:
            job.ranks[rank] = replace(old, pid=old.pid + 1000)
    job.began_at, job.world_size = job.at + 0.1, 3
    job.run(5.0, IMPORTING)
    assert job.phase == "starting" and job.motion.odd == []
    job.run(HEALTHY_S, GLOO).run(20.0, ASLEEP)
    assert job.phase == "quiet" and job.motion.odd == []
    job.lose(1, RankDeath(0, how="signal", code=9))
    job.run(13.0, ASLEEP)
    assert [odd.rank for odd in job.motion.odd] == [1]
