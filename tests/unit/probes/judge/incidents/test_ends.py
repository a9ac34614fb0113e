"""What is told of a job after its end, after another start, and over nodes whose clocks differ."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mltop.probes.judge.incidents.scene import NodeScene
from mltop.probes.judge.incidents.watch import IncidentWatch
from mltop.probes.model import Frame, Incident, JobMotion, JobReport, RankDeath, Sample, StackDigest
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_time
from tests.builders.scenes import (
    NOW,
    STALLED_AT,
    finding,
    fleet,
    hang,
    incidents,
    node,
    stalled,
    with_findings,
    without_rank,
)

ENDED_AT = NOW + 600.0
WAITED = f"15 ranks waited in all_reduce since {clock_time(STALLED_AT)}, until the job"


def samples_of(nodes: Mapping[str, NodeScene], skew_s: Mapping[str, float] | None = None) -> list[Sample]:
    """As their agents would send them, each by its own clock."""
    sent = []
    for each in nodes.values():
        ahead_s = (skew_s or {}).get(each.node, 0.0)
        deaths = [replace(death, at=(death.at or 0.0) + ahead_s) for death in each.deaths]
        at = each.at + ahead_s
        sent.append(Sample(each.node, at, ranks=list(each.ranks), deaths=deaths, clock_skew_s=ahead_s))
    return sent


def see(watch: IncidentWatch, nodes: Mapping[str, NodeScene], *motions: JobMotion) -> list[Incident]:
    for sample in samples_of(nodes):
        watch.see(sample, nodes[sample.node].findings)
    return watch.incidents((), motions)


def dumped(report: JobReport, at: float = NOW - 10.0) -> JobReport:
    report.digests = [
        StackDigest(rank, 5000 + rank, "MainThread", "S", [Frame("f", "t.py", 1)], node=f"n{rank // 8}", taken_at=at)
        for rank in range(16)
    ]
    return report


def ended(nodes: dict[str, NodeScene], **how: object) -> dict[str, NodeScene]:
    """All of its ranks, one after the other."""
    nodes = {name: replace(each, at=ENDED_AT + 10.0) for name, each in nodes.items()}
    for rank in range(16):
        nodes = without_rank(nodes, rank, **{"at": ENDED_AT + 0.3 * rank, **how})
    return nodes


@pytest.mark.parametrize(
    ("how", "kind", "severity", "end"),
    [
        ({"how": "signal", "code": 6}, "crash", "critical", "died"),
        ({"how": "signal", "code": 9}, "crash", "critical", "died"),
        ({"how": "exit", "code": 1}, "crash", "critical", "died"),
        ({"how": "exit", "code": 1, "error": "Watchdog caught a timeout"}, "crash", "critical", "died"),
        ({"how": "stopped", "code": 15}, "stopped", "warning", "was ended from outside"),
    ],
)  # fmt: skip
def test_what_stood_until_it_was_ended_is_told_by_who_held_it_up(
    how: dict[str, object], kind: str, severity: str, end: str
) -> None:
    nodes, watch = fleet(), IncidentWatch()
    watch.take_stacks([dumped(hang(2))])
    (hung,) = see(watch, nodes, stalled(nodes))
    (over,) = see(watch, ended(nodes, **how))
    assert over.headline == (
        "rank 2 (n0 GPU 2) was stuck in ShardDataset.__getitem__ (dataset.py:26), "
        f"{WAITED} {end} at {clock_time(ENDED_AT)}"
    )
    assert (over.kind, over.severity, over.id, over.since) == (kind, severity, hung.id, hung.since)
    assert [culprit.rank for culprit in over.culprits] == [2]
    assert over.suffers.gpu_hours == pytest.approx(16 * (ENDED_AT - STALLED_AT) / 3600.0)
    assert "5002" not in over.action  # a process that is gone


def test_its_cause_too() -> None:
    server = finding("fs.stall", "n0", "/data", "/data does not answer")
    nodes, watch = with_findings(fleet(), server), IncidentWatch()
    watch.take_stacks([dumped(hang(2))])
    see(watch, nodes, stalled(nodes))
    (over,) = see(watch, ended(nodes, how="signal", code=6))
    assert over.headline.startswith(f"n0: /data does not answer; rank 2 was stuck, {WAITED} died at ")
    assert over.action == server.action


def test_from_outside_alone_it_is_remembered_that_it_stood() -> None:
    nodes, watch = fleet(), IncidentWatch()
    see(watch, nodes, stalled(nodes))
    (over,) = see(watch, ended(nodes, how="signal", code=6))
    assert over.headline == (
        f"all 16 ranks stuck since {clock_time(STALLED_AT)}, blocking rank unknown, "
        f"until the job died at {clock_time(ENDED_AT)}"
    )
    nodes, watch = fleet(), IncidentWatch()
    see(watch, nodes, stalled(nodes))
    see(watch, nodes, stalled(nodes, phase="moving", since=NOW, signals=[]))
    (over,) = see(watch, ended(nodes, how="signal", code=6))
    assert over.headline.startswith("the job has died at")


def test_what_a_rank_died_of_meanwhile_is_told_itself() -> None:
    nodes, watch = fleet(), IncidentWatch()
    watch.take_stacks([dumped(hang(2))])
    see(watch, nodes, stalled(nodes))
    over = ended(nodes, how="exit", code=1, error="Connection closed by peer")
    first = replace(over["n1"].deaths[0], how="oom", code=9, at=ENDED_AT - 5.0, error="")
    over["n1"] = replace(over["n1"], deaths=(first, *over["n1"].deaths[1:]))
    (told,) = see(watch, over)
    assert told.headline.startswith("rank 8 (n1 GPU 0) died (killed by the kernel for want of memory)")


def test_a_job_that_ended_well_after_all_is_no_incident() -> None:
    nodes, watch = fleet(), IncidentWatch()
    watch.take_stacks([dumped(hang(2))])
    assert see(watch, nodes, stalled(nodes))
    assert see(watch, ended(nodes, how="exit", code=0)) == []


def test_stacks_of_an_earlier_stall_accuse_nobody_of_this_one() -> None:
    nodes, watch = fleet(), IncidentWatch()
    watch.take_stacks([dumped(hang(2), NOW - 3600.0)])
    (stall,) = see(watch, nodes, stalled(nodes, since=NOW - 100.0))
    assert stall.culprits == []
    (before,) = incidents(nodes, hang(2), motions=(stalled(nodes, since=NOW - 5.0),))
    assert [culprit.rank for culprit in before.culprits] == [2]  # a movement is seen by the sample after it


def earlier(rank: int, at: float, **how: object) -> RankDeath:
    return RankDeath(4000 + rank, rank, "train", 1000, at=at, **{"how": "signal", "code": 9, **how})  # type: ignore[arg-type]


def test_deaths_before_a_start_with_fewer_ranks_are_of_another_time() -> None:
    nodes = fleet(1)
    began_at = STALLED_AT - 1000.0
    ranks = tuple(replace(rank, started_at=began_at) for rank in nodes["n0"].ranks)
    nodes["n0"] = replace(nodes["n0"], ranks=ranks, deaths=(earlier(12, began_at - 30.0),))
    (told,) = incidents(nodes, hang(2, 8), motions=(stalled(nodes),))
    assert [culprit.rank for culprit in told.culprits] == [2]
    nodes["n0"] = replace(nodes["n0"], deaths=(earlier(12, STALLED_AT - 1.0),))
    (told,) = incidents(nodes, motions=(stalled(nodes),))
    assert [culprit.rank for culprit in told.culprits] == [12]


def test_a_death_that_the_job_got_on_with_is_not_why_it_stands() -> None:
    nodes = fleet(1)
    nodes["n0"] = replace(nodes["n0"], deaths=(earlier(12, STALLED_AT - 3000.0),))
    (told,) = incidents(nodes, motions=(stalled(nodes),))
    assert told.culprits == []


def test_who_died_first_over_nodes_whose_clocks_differ() -> None:
    nodes = ended(fleet(), how="exit", code=1)
    for name, rank, after_s in (("n0", 3, 0.0), ("n1", 9, 8.0)):
        deaths = [replace(death, at=ENDED_AT + 20.0) for death in nodes[name].deaths]
        deaths[rank % 8] = replace(deaths[rank % 8], how="signal", code=11, at=ENDED_AT + after_s)
        nodes[name] = replace(nodes[name], deaths=tuple(deaths))
    for skew_s in (0.0, -30.0, 30.0):
        watch = IncidentWatch()
        for sample in samples_of(nodes, {"n1": skew_s}):
            watch.see(sample, ())
        (told,) = watch.incidents()
        assert [culprit.rank for culprit in told.culprits] == [3]


def test_what_the_kernel_says_of_a_rank_is_of_the_same_clock() -> None:
    nodes = ended(fleet(), how="exit", code=1)
    at = ENDED_AT - 5.0 + 900.0  # by n1's clock
    deaths = list(nodes["n1"].deaths)
    deaths[1] = replace(deaths[1], how="signal", code=9, at=ENDED_AT - 5.0)
    nodes["n1"] = replace(nodes["n1"], deaths=tuple(deaths))
    killed = finding("mem.oom", "n1", "host", "the kernel killed a process for lack of memory", since=at)
    watch = IncidentWatch()
    for sample in samples_of(nodes, {"n1": 900.0}):
        watch.see(sample, (killed,) if sample.node == "n1" else ())
    (told,) = watch.incidents()
    assert [cause.id for cause in told.causes] == ["mem.oom"]


@pytest.mark.parametrize("rule", ["gpu.lost", "mem.oom", "ib.down", "fs.stall"])
def test_the_join_takes_twice_as_long_for_twice_as_many(rule: str) -> None:
    def cpu_s(count: int) -> float:
        nodes = fleet(count)
        with_findings(nodes, *(finding(rule, name, "GPU 2", "is broken") for name in nodes))
        motion, began = stalled(nodes), time.thread_time()
        incidents(nodes, hang(None, 8 * count), motions=(motion,))
        return time.thread_time() - began

    few = min(cpu_s(256) for _ in range(3))
    assert any(
        cpu_s(2048) < 22 * few for _ in range(3)
    )  # eight times as many; more than 32 times as long where each is compared with each


def test_two_jobs_of_one_name_and_another_user_end_apart() -> None:
    nodes = {**fleet(1), "n1": node("n1", 0, "train", 8, 2000)}
    nodes = without_rank(nodes, 3, how="signal", code=11)
    listed = incidents(nodes, motions=(stalled({"n0": nodes["n0"]}),))
    assert [(each.uid, [culprit.rank for culprit in each.culprits]) for each in listed] == [(1000, [3])]


def test_a_rank_that_left_before_the_others_is_told_so() -> None:
    nodes = ended(fleet(), how="exit", code=1)
    deaths = list(nodes["n0"].deaths)
    deaths[3] = replace(deaths[3], code=0, at=ENDED_AT - 4.0)
    nodes["n0"] = replace(nodes["n0"], deaths=tuple(deaths))
    (told,) = incidents(nodes)
    assert told.headline == (
        "rank 3 (n0 GPU 3) left before the others (exited with code 0), 15 other ranks went down with it "
        f"at {clock_time(ENDED_AT - 4.0)}"
    )
    assert told.action.startswith("look why it came to its end before the others")


def test_of_a_job_that_was_started_again_until_it_gave_up_the_last_time_is_told() -> None:
    nodes = fleet(1)
    tries = [
        replace(earlier(rank, ENDED_AT + 30.0 * again, how="stopped", code=15), pid=6000 + 10 * again + rank)
        for again in range(3)
        for rank in range(8)
    ]
    for again, culprit in ((0, 5), (1, 6), (2, 3)):
        first = tries[8 * again + culprit]
        tries[8 * again + culprit] = replace(first, how="exit", code=3, at=(first.at or 0.0) - 0.5)
    tries = [replace(each, started_at=ENDED_AT + 30.0 * (at // 8) - 20.0) for at, each in enumerate(tries)]
    nodes["n0"] = replace(nodes["n0"], ranks=(), deaths=tuple(tries))
    (told,) = incidents(nodes)
    assert told.headline == (
        f"rank 3 died (exited with code 3), 7 other ranks went down with it at {clock_time(ENDED_AT + 59.5)}"
    )


def test_jobs_of_one_loopback_name_that_nobody_saw_alive_end_apart() -> None:
    nodes = {name: replace(node(name, None), deaths=()) for name in ("n0", "n1")}
    for name, rank in (("n0", 3), ("n1", 5)):
        death = replace(earlier(rank, STALLED_AT), job="127.0.0.1:29500")
        nodes[name] = replace(nodes[name], deaths=(death,))
    assert [[culprit.rank for culprit in each.culprits] for each in incidents(nodes)] == [[3], [5]]


def test_it_is_one_incident_while_its_ranks_go() -> None:
    """They are gone before it is known how they ended."""
    nodes, watch = fleet(), IncidentWatch()
    (hung,) = see(watch, nodes, stalled(nodes))
    (ending,) = see(watch, nodes, stalled(nodes, phase="unknown", signals=["its ranks have ended"]))
    empty = {name: replace(each, ranks=(), at=NOW + 3.0) for name, each in nodes.items()}
    (gone,) = see(watch, empty)
    (over,) = see(watch, ended(nodes, how="signal", code=9, at=NOW + 2.0))
    assert {hung.id, ending.id, gone.id, over.id} == {hung.id} and watch.ended == []
    assert over.kind == "crash" and f"until the job died at {clock_time(NOW + 2.0)}" in over.headline
    later = {name: replace(each, ranks=(), at=NOW + 60.0) for name, each in nodes.items()}
    assert see(watch, later) == []
    assert [each.id for each in watch.ended] == [hung.id]


def test_one_number_on_two_nodes_is_no_other_start() -> None:
    """Two jobs share a name, or a node counts its own ranks."""
    nodes = {"n0": node("n0", None), "n1": node("n1", None)}
    first = earlier(0, STALLED_AT, code=11)
    others = [earlier(rank, STALLED_AT + 10.0, code=15) for rank in range(8)]
    nodes["n0"] = replace(nodes["n0"], deaths=(first, *others[1:]))
    nodes["n1"] = replace(nodes["n1"], deaths=tuple(others))
    (told,) = incidents(nodes)
    assert [culprit.reason for culprit in told.culprits] == ["killed by SIGSEGV"]


@pytest.mark.parametrize("how", [{"how": "exit", "code": 0}, {"how": "signal", "code": 9}])
def test_a_hang_does_not_come_back_when_the_ends_are_too_old_to_be_told(how: dict[str, object]) -> None:
    nodes, watch = fleet(), IncidentWatch()
    watch.take_stacks([dumped(hang(2))])
    see(watch, nodes, stalled(nodes))
    over = ended(nodes, **how)
    see(watch, over)
    for later_s in (3700.0, 3710.0, 90_000.0):
        empty = {name: replace(each, deaths=(), at=ENDED_AT + later_s) for name, each in over.items()}
        assert [incident for incident in see(watch, empty) if incident.until is None] == []
    assert not watch._stacks and not watch._stood


def test_two_processes_with_one_number_are_no_two_starts() -> None:
    nodes = fleet(1)
    for rank in range(8):
        first = rank == 5
        nodes = without_rank(
            nodes, rank, how="signal", code=11 if first else 6, at=ENDED_AT + 0.6 * (not first), started_at=NOW - 900.0
        )
    twin = RankDeath(7000, 3, "train", 1000, "exit", 1, ENDED_AT + 5.0, started_at=NOW - 899.0)
    nodes["n0"] = replace(nodes["n0"], deaths=(*nodes["n0"].deaths, twin), at=ENDED_AT + 10.0)
    (told,) = incidents(nodes)
    assert told.headline.startswith("rank 5 (GPU 5) died (killed by SIGSEGV)")


def test_a_job_that_once_met_at_loopback_is_one_when_it_no_longer_does() -> None:
    watch = IncidentWatch()
    nodes = fleet()
    at_loopback = [replace(rank, master_address="127.0.0.1") for rank in nodes["n0"].ranks]
    watch.see(Sample("n0", NOW - 9000.0, ranks=at_loopback), ())
    (told,) = see(watch, nodes, stalled(nodes))
    assert (told.id, told.suffers.gpus) == ("job/train/1000", 16)


def test_a_job_that_was_slow_and_hangs_now_has_hung_since_it_hangs() -> None:
    slow = replace(
        finding("job.straggler", "n0", "job train", "rank 3 keeps 15 waiting", since=NOW - 6000.0),
        job="train",
        uid=1000,
        ranks=Ranges.of([3]),
    )
    nodes, watch = fleet(), IncidentWatch()
    for sample in samples_of(nodes):
        watch.see(sample, ())
    (before,) = watch.incidents([slow])
    assert (before.kind, before.since) == ("straggler", slow.since)
    watch.take_stacks([dumped(hang(2))])
    (hung,) = watch.incidents([slow], [stalled(nodes)])
    assert (hung.kind, hung.since, hung.id) == ("hang", STALLED_AT, before.id)
    assert clock_time(STALLED_AT) in hung.headline
    assert slow in hung.effects and not any("keeps 15 waiting" in line.text for line in hung.evidence)


def test_a_fault_that_stops_a_job_later_is_told_from_when_it_stands() -> None:
    server = finding("fs.stall", "n0", "/data", "/data does not answer", since=STALLED_AT - 300.0)
    nodes, watch = with_findings(fleet(), server), IncidentWatch()
    (fault,) = see(watch, nodes)
    assert (fault.kind, fault.since) == ("node", server.since)
    watch.take_stacks([dumped(hang(2))])
    (hung,) = see(watch, nodes, stalled(nodes))
    assert (hung.kind, hung.id, hung.since) == ("hang", fault.id, STALLED_AT)


def test_a_rank_that_was_asked_to_end_is_named_once_the_others_stand() -> None:
    nodes = without_rank(fleet(), 3, how="signal", code=15)
    assert incidents(nodes) == [], "the job may be on its way to its end"
    (told,) = incidents(nodes, motions=(stalled(nodes),))
    assert told.headline.startswith("rank 3 (n0 GPU 3) died (killed by SIGTERM), 15 ranks wait")
    assert (str(told.suffers.ended), told.suffers.waiting.count) == ("3", 15)


def test_who_is_gone_waits_for_nobody() -> None:
    nodes = without_rank(without_rank(fleet(), 3, how="exit", code=1, error="boom"), 4, how="signal", code=6)
    (told,) = incidents(nodes, motions=(stalled(nodes),))
    assert (str(told.suffers.waiting), str(told.suffers.ended)) == ("0-2,5-15", "3-4")
    (gone,) = incidents(ended(fleet(), how="exit", code=1, error="boom"))
    assert not gone.suffers.waiting and gone.suffers.ended.count == 16


IN_VAIN = {"how": "exit", "code": 1, "error": "RuntimeError: Timed out waiting 25000ms for recv operation to complete"}


def one_node(*dead: int, at: float = NOW - 10.0, **how: object) -> dict[str, NodeScene]:
    """A job of eight, of which these have ended."""
    nodes = fleet(1)
    for rank in dead:
        nodes = without_rank(nodes, rank, **{"at": at + 0.1 * rank, **how})
    return nodes


def test_who_waited_in_vain_is_not_accused_and_who_lives_is_named() -> None:
    (told,) = incidents(one_node(0, 1, 2, 4, 5, 6, 7, **IN_VAIN))
    assert (told.kind, [culprit.rank for culprit in told.culprits], told.confidence) == ("hang", [3], "medium")
    assert "waited for it in vain" in told.headline


@pytest.mark.parametrize("dead", [(0, 1, 2), (0, 1, 2, 4, 5, 6)])
def test_where_more_live_or_some_are_not_seen_nobody_is_named(dead: tuple[int, ...]) -> None:
    nodes = one_node(*dead, **IN_VAIN)
    if len(dead) > 4:  # one of the eight was never watched
        nodes["n0"] = replace(nodes["n0"], ranks=nodes["n0"].ranks[:1])
    (told,) = incidents(nodes)
    assert told.culprits == []


def test_nobody_is_named_while_others_may_still_be_ending() -> None:
    (told,) = incidents(one_node(0, 1, 2, 4, 5, 6, 7, at=NOW - 3.0, **IN_VAIN))
    assert told.culprits == []


@pytest.mark.parametrize(("still_s", "named"), [(25.0, []), (5.0, [0]), (None, [0])])
def test_an_end_without_a_word_after_a_standstill_accuses_nobody(still_s: float | None, named: list[int]) -> None:
    died_at = NOW - 10.0
    watch, nodes = IncidentWatch(), fleet(1)
    if still_s is not None:
        quiet = stalled(nodes, phase="quiet", at=died_at - 1.0, since=died_at - still_s)
        see(watch, nodes, quiet)
    (told,) = see(watch, one_node(0, 2, at=died_at, told_by="proc connector", how="exit", code=1))
    assert [culprit.rank for culprit in told.culprits] == named
    assert (told.confidence == "low") is not bool(named)


def test_a_job_that_went_on_before_a_rank_ended_had_not_stood() -> None:
    died_at = NOW - 10.0
    watch, nodes = IncidentWatch(), fleet(1)
    see(watch, nodes, stalled(nodes, phase="quiet", at=died_at - 12.0, since=died_at - 40.0))
    see(watch, nodes, stalled(nodes, phase="moving", at=died_at - 1.0, since=died_at - 11.0))
    (told,) = see(watch, one_node(0, 2, at=died_at, told_by="proc connector", how="exit", code=1))
    assert [culprit.rank for culprit in told.culprits] == [0]


def test_what_a_log_says_is_evidence_of_the_hang() -> None:
    nodes = fleet(1)
    said = finding(
        "job.log", "n0", "rank 2", "the log of rank 2 says: Watchdog caught (/out:7)", since=NOW - 5.0, ranks=(2,)
    )
    (told,) = incidents(with_findings(nodes, said), motions=(stalled(nodes),))
    assert told.kind == "hang" and said in told.effects
    assert [(line.source, line.text) for line in told.evidence if line.source == "log"] == [("log", said.message)]
