"""From samples and dumps to evidence: grouping, who is gone, how long it was quiet."""

from __future__ import annotations

import pytest

from mltop.probes.judge.hang.evidence import evidence_by_job, history_of, quiet_for
from mltop.probes.model import Gap, NodeState, RankDeath, RankSample, RankStacks, Sample, StackDigest
from tests.builders.stack_evidence import all_reduce, dataset, judge_job

LOST = [NodeState(node, "lost") for node in ("n2", "n9")]


def _rank(number: int | None, pid: int, job: str = "a", **more: object) -> RankSample:
    values = {
        "world_size": 4,
        "voluntary_switches": 10,
        "read_syscalls": 5,
        "write_syscalls": 5,
        "state": "S",
    }
    return RankSample(pid=pid, rank=number, job=job, **{**values, **more})  # type: ignore[arg-type]


def _sample(node: str, at: float, *ranks: RankSample) -> Sample:
    return Sample(node, at, ranks=list(ranks))


def _dump(node: str, pid: int, number: int, at: float, stuck: bool = False, job: str = "a") -> RankStacks:
    made = dataset() if stuck else all_reduce()
    counters = _rank(number, pid, job)
    digest = StackDigest(number, pid, state="S", frames=made.frames, waiting_in=made.waiting_in)
    return RankStacks(pid, number, job, node, at, 0.01, counters, counters, [digest])


def test_ranks_of_one_job_come_together_over_nodes() -> None:
    samples = [
        _sample("n2", 100.0, _rank(2, 7), _rank(3, 8)),
        _sample("n1", 100.0, _rank(0, 7), _rank(1, 8, "b")),
    ]
    made = evidence_by_job(samples, [_dump("n2", 7, 2, 101.0), _dump("n1", 7, 0, 101.0)])
    assert [one.job for one in made] == ["a", "b"]
    assert sorted((seen.node, seen.sample.pid) for seen in made[0].roster) == [
        ("n1", 7),
        ("n2", 7),
        ("n2", 8),
    ]
    assert sorted(stacks.node for stacks in made[0].dumps) == ["n1", "n2"]
    assert made[1].dumps == []


def test_equal_loopback_addresses_on_two_nodes_are_two_jobs() -> None:
    ranks = [_rank(number, 7 + number, "127.0.0.1:29500", master_address="127.0.0.1") for number in (0, 1)]
    made = evidence_by_job([_sample("n1", 100.0, *ranks), _sample("n2", 100.0, *ranks)], [])
    assert [len(one.roster) for one in made] == [2, 2]


def test_jobs_of_two_sizes_under_one_name_are_two_jobs() -> None:
    ranks = [_rank(0, 7, world_size=2), _rank(1, 8, world_size=2), _rank(0, 9, world_size=1)]
    made = evidence_by_job([_sample("n1", 100.0, *ranks)], [_dump("n1", 9, 0, 101.0)])
    assert sorted((len(one.roster), len(one.dumps)) for one in made) == [(1, 1), (2, 0)]


def test_a_process_that_its_node_no_longer_has_is_gone() -> None:
    before = _sample("n1", 90.0, _rank(0, 7), _rank(1, 8))
    now = _sample("n1", 100.0, _rank(0, 7))
    (made,) = evidence_by_job([now], [], history_of([now, before]))
    assert [(seen.sample.rank, seen.gone) for seen in made.roster] == [(0, False), (1, True)]


def test_a_node_without_a_newer_sample_says_nothing_about_who_is_gone() -> None:
    before = _sample("n2", 90.0, _rank(1, 8))
    (made,) = evidence_by_job([_sample("n1", 100.0, _rank(0, 7)), before], [], history_of([before]), LOST)
    assert [(seen.sample.rank, seen.gone) for seen in made.roster] == [(0, False), (1, False)]
    assert made.not_answered == LOST


def test_a_job_on_one_machine_does_not_miss_other_nodes() -> None:
    rank = _rank(0, 7, master_address="localhost")
    (made,) = evidence_by_job(
        [_sample("n1", 100.0, rank)], [], not_answered=[NodeState("n9", "lost")], gaps=[Gap("x", "y")]
    )
    assert (made.not_answered, made.gaps) == ([], [Gap("x", "y")])


def test_a_process_that_was_dumped_after_the_sample_lives() -> None:
    before = _sample("n1", 90.0, _rank(0, 7), _rank(1, 8))
    now = _sample("n1", 100.0, _rank(0, 7))
    (made,) = evidence_by_job([now], [_dump("n1", 8, 1, 101.0)], history_of([before, now]))
    assert [seen.gone for seen in made.roster] == [False, False]


def test_a_job_that_has_wholly_ended_is_no_job() -> None:
    history = history_of([_sample("n1", 90.0, _rank(0, 7))])
    assert evidence_by_job([_sample("n1", 100.0)], [], history) == []


def test_a_reused_pid_is_another_process() -> None:
    before = _sample("n1", 90.0, _rank(1, 8, started_at=10.0))
    now = _sample("n1", 100.0, _rank(1, 8, started_at=95.0))
    (made,) = evidence_by_job([now], [], history_of([before, now]))
    assert [(seen.gone, seen.sample.started_at) for seen in made.roster] == [(False, 95.0)]


def test_a_nameless_zombie_belongs_to_the_job_of_its_node() -> None:
    zombie = RankSample(9, state="Z")
    (made,) = evidence_by_job([_sample("n1", 100.0, _rank(0, 7), zombie)], [])
    assert [seen.sample.pid for seen in made.roster] == [7, 9]


def _points(*steps: tuple[float, int, int]) -> list[tuple[float, RankSample]]:
    return [
        (at, RankSample(7, voluntary_switches=switches, read_syscalls=calls, write_syscalls=0))
        for at, switches, calls in steps
    ]


def test_quiet_time_is_the_standstill_at_the_end() -> None:
    assert quiet_for(_points((0, 10, 10), (1, 60, 400), (2, 60, 400), (12, 61, 400))) == 11.0
    assert quiet_for(_points((0, 10, 10), (1, 60, 400))) == 0.0
    assert quiet_for(_points((0, 10, 10))) is None


def test_the_loaders_poll_is_quiet_and_a_slow_loop_is_not() -> None:
    polling = _points(*((float(at), at // 5, 0) for at in range(60)))
    assert quiet_for(polling) == 59.0
    slow = _points(*((float(at), at, 0) for at in range(60)))
    quiet = quiet_for(slow)
    assert quiet is not None
    assert quiet < 5.0


def test_a_burst_long_ago_ends_the_quiet_time() -> None:
    quiet = quiet_for(_points((0, 0, 0), (1, 30, 0), (2, 30, 0), (200, 30, 0)))
    assert quiet == 199.0


def test_unknown_counters_are_not_quiet() -> None:
    points = [(float(at), RankSample(7)) for at in range(10)]
    assert quiet_for(points) == 0.0


def test_history_gives_the_quiet_time_before_the_first_dump() -> None:
    samples = [_sample("n1", float(at), *(_rank(n, 7 + n) for n in range(4))) for at in range(60, 101)]
    dumps = [_dump("n1", 7 + n, n, at, stuck=n == 2) for n in range(4) for at in (101.0, 102.0)]
    (made,) = evidence_by_job([samples[-1]], dumps, history_of(samples))
    assert [seen.quiet_s for seen in made.roster] == [41.0] * 4
    verdict = judge_job(made)
    assert [culprit.rank for culprit in verdict.culprits] == [2]
    assert verdict.confidence == "high"


def test_a_killed_rank_is_named_from_the_samples() -> None:
    samples = [_sample("n1", float(at), *(_rank(n, 7 + n) for n in range(4))) for at in range(60, 70)]
    samples += [_sample("n1", float(at), *(_rank(n, 7 + n) for n in (0, 1, 3))) for at in range(70, 101)]
    dumps = [_dump("n1", 7 + n, n, at) for n in (0, 1, 3) for at in (101.0, 103.0, 106.5)]
    (made,) = evidence_by_job([samples[-1]], dumps, history_of(samples))
    verdict = judge_job(made)
    assert [(one.rank, one.pid) for one in verdict.culprits] == [(2, 9)]


def test_a_machine_under_two_names_is_not_judged() -> None:
    samples = [
        Sample(node, 100.0, boot_id="boot", ranks=[_rank(number, 7 + number, world_size=2) for number in (0, 1)])
        for node in ("h12.example.org", "h12")
    ]
    dumps = [_dump(sample.node, 7 + n, n, at) for sample in samples for n in (0, 1) for at in (101.0, 107.0)]
    (made,) = evidence_by_job(samples, dumps, history_of(samples))
    verdict = judge_job(made)
    assert (verdict.kind, verdict.culprits) == ("unclear", [])
    assert "a machine has several names" in verdict.evidence[0]
    assert [gap.code for gap in verdict.gaps] == ["duplicate"]


def test_what_is_gone_of_an_earlier_start_with_more_ranks_is_not_missing() -> None:
    earlier = _sample("n1", 90.0, *(_rank(number, 7 + number) for number in range(4)))
    now = _sample("n1", 100.0, *(_rank(number, 17 + number, world_size=2) for number in range(2)))
    (made,) = evidence_by_job([now], [], history_of([earlier, now]))
    assert [(seen.sample.rank, seen.gone) for seen in made.roster] == [(0, False), (1, False)]
    same = _sample("n1", 100.0, *(_rank(number, 17 + number) for number in range(2)))
    (made,) = evidence_by_job([same], [], history_of([earlier, same]))
    assert sum(seen.gone for seen in made.roster) == 4


@pytest.mark.parametrize("job", ["127.0.0.1:29500", "[::1]:29500", "localhost:29500", "ppid:41", "sid:41"])
def test_jobs_of_a_name_that_every_machine_may_have_are_jobs_of_their_nodes(job: str) -> None:
    deaths = [RankDeath(7, 0, job, 0, "exit", 1, 99.0)]
    samples = [Sample(node, 100.0, deaths=deaths) for node in ("n1", "n2")]
    made = evidence_by_job(samples, [], or_ended=True)
    assert [[node for node, _ in one.deaths] for one in made] == [["n1"], ["n2"]]
