"""What each rank and GPU does, from motion, incidents and stacks: nobody is accused who is not known to hold it up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.judge.states import HELD_BYTES, States, holds_gpu, is_working, states_of
from mltop.probes.model import (
    Culprit,
    GpuProcess,
    GpuSample,
    Incident,
    JobMotion,
    JobReport,
    RankSample,
    StackClass,
    Verdict,
)
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.verdict import StackDigest
from mltop.probes.model.vocabulary import CulpritKind, IncidentKind, MotionPhase, VerdictKind

STOPPED_AT, TOLD_AT, NOW = 1000.0, 1005.0, 1400.0
CULPRIT = Culprit(2, "n1", 102, "stands", "read (data.py:1)", gpu=2, how="stands")


def motion(phase: MotionPhase, **fields: object) -> JobMotion:
    made = JobMotion("run", 5, phase=phase, at=NOW, since=STOPPED_AT, ranks_seen=4)
    return replace(made, **fields)  # type: ignore[arg-type]


def incident(kind: IncidentKind = "hang", *culprits: Culprit, **fields: object) -> Incident:
    made = Incident("1", kind, "critical", "words", job="run", uid=5, since=TOLD_AT, culprits=list(culprits))
    return replace(made, **fields)  # type: ignore[arg-type]


def report(kind: VerdictKind = "hang", *culprits: Culprit, at: float | None = NOW, **fields: object) -> JobReport:
    """Ranks 0, 1 and 3 wait in all_reduce; ``at``: when the stacks were taken."""
    classes = [
        StackClass(Ranges.of([0, 1, 3]), 3, "all_reduce"),
        StackClass(Ranges.of([2]), 1, None),
    ]
    digests = [StackDigest(number, 100 + number, taken_at=at) for number in range(4)]
    made = JobReport("run", 4, Verdict(kind, list(culprits)), classes, digests, uid=5)
    return replace(made, **fields)  # type: ignore[arg-type]


def rank(number: int | None, **fields: object) -> RankSample:
    made = RankSample(100 + (9 if number is None else number), number, job="run", uid=5, state="S")
    return replace(made, **fields)  # type: ignore[arg-type]


def words(states: States, node: str = "n1") -> list[str]:
    """What ranks 0 to 3 do."""
    return [states.rank(node, rank(number)).state for number in range(4)]


WAITING = ["waits", "waits", "stands", "waits"]


@pytest.mark.parametrize(
    ("phase", "incidents", "reports", "expected"),
    [
        ("moving", [], [], ["works"] * 4),
        ("starting", [], [], ["starting"] * 4),
        ("unknown", [], [], ["unknown"] * 4),
        ("quiet", [], [], ["quiet"] * 4),
        ("stalled", [], [], ["stalled"] * 4),
        # Who holds it up is known.
        ("stalled", [incident("hang", CULPRIT)], [], WAITING),
        ("quiet", [incident("hang", CULPRIT)], [], WAITING),
        ("stalled", [incident("hang", CULPRIT)], [report("hang", CULPRIT)], WAITING),
        # It is known of some that they wait, and of nobody that he holds it up.
        ("stalled", [incident("hang")], [report()], ["waits", "waits", "stalled", "waits"]),
        ("stalled", [incident("hang")], [], ["stalled"] * 4),
        # A suspect computes while the others wait.
        ("stalled", [], [report("suspect", CULPRIT)], ["waits", "waits", "alone", "waits"]),
        ("stalled", [incident("hang", CULPRIT)], [report("suspect", CULPRIT)], ["waits", "waits", "alone", "waits"]),
        # An incident tells of a hang of which the counters say nothing.
        ("unknown", [incident("hang", CULPRIT)], [], WAITING),
        ("starting", [incident("hang", CULPRIT)], [], WAITING),
        ("unknown", [incident("crash", CULPRIT)], [], WAITING),
        # Stacks know of a hang before the counters do; of a job that moves nothing else does.
        ("moving", [incident("hang", CULPRIT)], [report("hang", CULPRIT)], WAITING),
        ("moving", [incident("hang", CULPRIT)], [], ["works"] * 4),
        ("moving", [incident("hang", CULPRIT)], [report("hang", CULPRIT, at=STOPPED_AT - 1)], ["works"] * 4),
        ("moving", [], [report("suspect", CULPRIT)], ["works"] * 4),
        ("moving", [incident("straggler", CULPRIT)], [], ["works"] * 4),
        ("moving", [incident("starved")], [], ["starved"] * 4),
        ("unknown", [incident("starved")], [], ["starved"] * 4),
        ("stalled", [incident("starved")], [], ["stalled"] * 4),
        # What is over, of another job, or says that it cannot be told.
        ("stalled", [incident("hang", CULPRIT, until=NOW)], [], ["stalled"] * 4),
        ("stalled", [incident("hang", CULPRIT, job="other")], [], ["stalled"] * 4),
        ("stalled", [incident("hang", CULPRIT, uid=6)], [], ["stalled"] * 4),
        ("unknown", [incident("hang", CULPRIT, until=NOW)], [], ["unknown"] * 4),
        ("stalled", [], [report("unclear")], ["stalled"] * 4),
        ("stalled", [], [report("moving")], ["stalled"] * 4),
        ("stalled", [], [report("hang", CULPRIT, uid=6)], ["stalled"] * 4),
        # Stacks of before it last moved.
        ("stalled", [], [report("suspect", CULPRIT, at=STOPPED_AT - 1)], ["stalled"] * 4),
        ("stalled", [incident("hang", CULPRIT)], [report("suspect", CULPRIT, at=STOPPED_AT - 1)], WAITING),
    ],
)
def test_what_ranks_do(
    phase: MotionPhase, incidents: list[Incident], reports: list[JobReport], expected: list[str]
) -> None:
    assert words(states_of([motion(phase)], incidents, reports)) == expected


def test_an_incident_of_a_job_whose_motion_nobody_watches() -> None:
    assert words(states_of([], [incident("hang", CULPRIT)])) == WAITING
    assert words(states_of([], [incident("straggler", CULPRIT)])) == ["unknown"] * 4
    assert words(states_of([], [incident("hang", CULPRIT, until=NOW)])) == ["unknown"] * 4


def test_since_when_and_where() -> None:
    states = states_of([motion("stalled")], [incident("hang", CULPRIT)], [report()])
    waits, stands = states.rank("n1", rank(0)), states.rank("n1", rank(2))
    assert (waits.since, waits.where) == (STOPPED_AT, "all_reduce")
    assert stands.since == STOPPED_AT, "one time for all of it: the earlier one"
    told = states_of([motion("unknown", since=None)], [incident("hang", CULPRIT)])
    assert told.rank("n1", rank(0)).since == TOLD_AT, "of the incident, where motion knows nothing"
    later = states_of([motion("stalled", since=TOLD_AT + 2.0)], [incident("hang", CULPRIT)], [report()])
    assert {later.rank("n1", rank(number)).since for number in (0, 2)} == {TOLD_AT}


def test_a_culprit_is_found_by_its_number_its_process_or_its_gpu() -> None:
    unnumbered = replace(CULPRIT, rank=None)
    states = states_of([motion("stalled")], [incident("hang", unnumbered)])
    assert states.rank("n1", rank(None, pid=102)).state == "stands"
    assert states.rank("n2", rank(None, pid=102)).state == "waits", "another node's process of the same pid"
    gpu = GpuSample(2, busy=1.0, sm_active=0.5)
    assert states.gpu("n1", gpu, [rank(None, pid=102)]).state == "stands"
    assert states.gpu("n2", gpu, [rank(0)]).state == "waits"


def test_dead_ranks_have_ended_and_do_not_stand() -> None:
    dead = replace(CULPRIT, how="dead")
    states = states_of([motion("stalled")], [incident("crash", dead)])
    assert words(states) == ["waits", "waits", "ended", "waits"]
    moving = states_of([motion("moving")], [])
    assert [moving.rank("n1", rank(0), state).state for state in ("Z", "X", "Z (zombie)", "S", "")] == [
        *["ended"] * 3,
        *["works"] * 2,
    ]
    assert States().rank("n1", rank(0), "Z").state == "ended", "that is known of any process"


@pytest.mark.parametrize("how", ["stands", "computes", "polls", "elsewhere", "behind", "stopped", "kernel", "left", ""])
def test_every_other_culprit_stands(how: CulpritKind) -> None:
    states = states_of([motion("stalled")], [incident("hang", replace(CULPRIT, how=how))])
    assert words(states) == WAITING


def test_jobs_that_share_a_name_on_nodes_of_their_own() -> None:
    here, there = motion("stalled", place="n1"), motion("moving", place="n2")
    states = states_of([here, there], [incident("hang", CULPRIT)])
    assert words(states, "n1") == WAITING and words(states, "n2") == ["works"] * 4
    assert states.is_placed("n1", "run", 5) and not states.is_placed("n3", "run", 5)
    assert words(states, "n3") == ["unknown"] * 4
    elsewhere = states_of([motion("unknown", place="n2")], [incident("hang", CULPRIT)])
    assert words(elsewhere, "n2") == ["unknown"] * 4, "its namesake's incident says nothing of it"


def test_nothing_is_known_of_other_peoples_jobs() -> None:
    states = states_of([motion("moving")], [])
    assert states.rank("n1", rank(0, uid=6)).state == states.rank("n1", rank(0, job="x")).state == "unknown"
    assert states.job("n1", "x", 5) is None and states.job("n9", "run", 5) is not None


@pytest.mark.parametrize(
    ("gpu", "ranks", "processes", "phase", "expected"),
    [
        (GpuSample(0, state="lost"), [rank(0)], None, "stalled", "lost"),
        (GpuSample(0, state="error"), [rank(0)], None, "stalled", "error"),
        (GpuSample(0, sm_active=0.1), [rank(0)], None, "stalled", "stalled"),
        (GpuSample(0, sm_active=0.0, busy=0.0), [rank(0)], None, "moving", "idle"),
        # Held down: where it works, and where nothing graver is known of its rank.
        (GpuSample(0, sm_active=0.9, throttle_reasons=["hw_thermal"]), [rank(0)], None, "moving", "throttled"),
        (GpuSample(0, sm_active=0.9, throttle_reasons=["hw_thermal"]), [rank(0)], None, "stalled", "stalled"),
        (GpuSample(0, sm_active=0.9, throttle_reasons=["sw_power_cap"]), [rank(0)], None, "moving", "works"),
        (GpuSample(0, sm_active=0.0, busy=0.0, throttle_reasons=["power_brake"]), [], [], "moving", "no_process"),
        (GpuSample(0, throttle_reasons=["power_brake"]), [], None, "moving", "throttled"),
        # Of no rank.
        (GpuSample(0, sm_active=0.5), [], None, "moving", "works"),
        (GpuSample(0, sm_active=0.0, busy=0.0), [], [], "moving", "no_process"),
        (GpuSample(0, sm_active=0.0, busy=0.0), [], [GpuProcess(7)], "moving", "idle"),
        (GpuSample(0, sm_active=0.0, busy=0.0, memory_used_bytes=1), [], None, "moving", "no_process"),
        (GpuSample(0, sm_active=0.0, busy=0.0, memory_used_bytes=HELD_BYTES), [], None, "moving", "idle"),
        (GpuSample(0, sm_active=0.0, busy=0.0), [], None, "moving", "idle"),
        (GpuSample(0), [], None, "moving", "unknown"),
        (GpuSample(0), [], [], "moving", "no_process"),
        # Memory is taken by what NVML does not list here.
        (GpuSample(0, sm_active=0.0, busy=0.0, memory_used_bytes=40 << 30), [], [], "moving", "idle"),
        (GpuSample(0, memory_used_bytes=1), [], None, "moving", "unknown"),
        # Of a rank of which nothing is known.
        (GpuSample(0, sm_active=0.5), [rank(0, job="x")], None, "moving", "works"),
        (GpuSample(0, sm_active=0.0, busy=0.0), [rank(0, job="x")], None, "moving", "idle"),
        (GpuSample(0), [rank(0, job="x")], None, "moving", "unknown"),
    ],
)
def test_what_gpus_do(
    gpu: GpuSample, ranks: list[RankSample], processes: list[GpuProcess] | None, phase: MotionPhase, expected: str
) -> None:
    assert states_of([motion(phase)], []).gpu("n1", gpu, ranks, processes).state == expected


def test_what_slows_a_gpu_is_told() -> None:
    hot = GpuSample(0, sm_active=0.9, throttle_reasons=["sw_power_cap", "hw_thermal"])
    assert States().gpu("n1", hot, []).where == "hw_thermal"


def test_of_several_ranks_on_a_gpu_the_gravest_speaks() -> None:
    states = states_of([motion("stalled")], [incident("hang", replace(CULPRIT, gpu=None))])
    gpu = GpuSample(0, sm_active=0.5)
    assert states.gpu("n1", gpu, [rank(0), rank(2), rank(1)]).state == "stands"
    assert states.gpu("n1", gpu, [rank(0, job="x"), rank(1)]).state == "waits"


@pytest.mark.parametrize(
    ("sm", "busy", "works"),
    [
        (None, None, None),
        (0.0, None, False),
        (None, 0.0, False),
        (0.0, 1.0, True),
        (0.5, 0.0, True),
        (0.001, 0.01, False),
        (0.0071, None, True),  # a kernel of one block on an H100
    ],
)
def test_whether_anything_runs(sm: float | None, busy: float | None, works: bool | None) -> None:
    assert is_working(GpuSample(0, sm_active=sm, busy=busy)) is works


@pytest.mark.parametrize(
    ("held", "gpus", "ranks", "expected"),
    [
        (None, 8, 8, True),
        (None, 8, 1, True),
        (None, 8, 0, False),
        (0, 8, 4, False),
        (HELD_BYTES, 8, 4, True),
        (0, 8, 8, True),
    ],
)
def test_whose_gpu_is_a_ranks_where_only_numbers_are_known(
    held: int | None, gpus: int, ranks: int, expected: bool
) -> None:
    assert holds_gpu(GpuSample(0, memory_used_bytes=held), gpus, ranks) is expected
