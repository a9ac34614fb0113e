"""What is wrong at the same time is not for that the cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.incidents.scene import NodeScene
from mltop.probes.judge.incidents.watch import IncidentWatch
from mltop.probes.model import Finding, Incident, JobMotion, Sample
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.vocabulary import CulpritKind
from tests.builders.scenes import STALLED_AT, finding, fleet, hang, incidents, stalled, with_findings, without_rank

OOM = "the kernel killed 3 processes for lack of memory within the hour"


def of_job(listed: list[Incident]) -> Incident:
    return next(incident for incident in listed if incident.kind != "node")


def causes(told: Finding, how: CulpritKind = "stands", seen_to_begin: bool = True) -> list[str]:
    """The causes of a hang of rank 2 on n0 that does ``how``, where ``told`` is what is wrong."""
    nodes = with_findings(fleet(), told)
    report = hang(2)
    report.verdict.culprits[0].how = how
    motions = (stalled(nodes),) if seen_to_begin else ()
    return [cause.id for cause in of_job(incidents(nodes, report, motions=motions)).causes]


def test_other_processes_that_were_killed_do_not_make_a_rank_stand() -> None:
    assert causes(finding("mem.oom", "n0", "host", OOM)) == []
    assert causes(finding("mem.oom", "n0", "python", "killed pid 5003", pid=5003)) == []
    assert causes(finding("mem.oom", "n0", "python", "killed pid 5002", pid=5002)) == ["mem.oom"]


def test_a_rank_that_was_killed_at_that_time_was_one_of_them() -> None:
    nodes = without_rank(fleet(), 2, how="signal", code=9)
    with_findings(nodes, finding("mem.oom", "n0", "host", OOM, since=STALLED_AT - 1.0))
    assert [cause.id for cause in of_job(incidents(nodes, motions=(stalled(nodes),))).causes] == ["mem.oom"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("stands", []), ("kernel", []), ("stopped", []), ("behind", []), ("elsewhere", []), ("", ["ib.down"])],
)
def test_no_cable_makes_a_rank_stand_in_its_own_code(how: CulpritKind, expected: list[str]) -> None:
    assert causes(finding("ib.down", "n0", "mlx5_2", "mlx5_2 has no link"), how) == expected


@pytest.mark.parametrize(("how", "expected"), [("stands", ["fs.stall"]), ("kernel", ["fs.stall"]), ("stopped", [])])
def test_a_filesystem_that_does_not_answer_does(how: CulpritKind, expected: list[str]) -> None:
    assert causes(finding("fs.stall", "n0", "/data", "/data does not answer"), how) == expected


def test_only_the_gpu_of_the_culprit() -> None:
    assert causes(finding("gpu.lost", "n0", "GPU 2", "GPU 2 fell off the bus")) == ["gpu.lost"]
    assert causes(finding("gpu.lost", "n0", "GPU 3", "GPU 3 fell off the bus")) == []


def test_what_is_not_grave_stops_no_job() -> None:
    assert causes(finding("disk.full", "n0", "/", "/ is 85 % full", severity="warning")) == []
    assert causes(finding("mem.pressure", "n0", "host", "tasks wait for memory", severity="warning")) == []


def test_what_was_so_long_before_a_beginning_that_was_seen_is_over_or_of_another_time() -> None:
    old = finding("gpu.xid.hw", "n0", "GPU 2", "Xid 79", since=STALLED_AT - 3000.0, until=STALLED_AT - 2000.0)
    assert causes(old) == []
    assert causes(old, seen_to_begin=False) == ["gpu.xid.hw"]


def test_a_straggler_is_slow_for_what_is_wrong_with_its_own_gpu_only() -> None:
    slow = finding("job.straggler", "n0", "rank 3", "rank 3 is slow", job="train", uid=1000)
    hot = finding("gpu.throttle.sw_thermal", "n0", "GPU 5", "GPU 5 is too hot")
    slow.ranks = Ranges.of([3])
    told = of_job(incidents(with_findings(fleet(), hot), job_findings=(slow,)))
    assert told.causes == []
    slow.ranks = Ranges.of([5])
    assert [cause.id for cause in of_job(incidents(with_findings(fleet(), hot), job_findings=(slow,))).causes] == [
        hot.id
    ]


def silent(node_name: str, **more: Any) -> Finding:
    told = Finding("node.lost", "critical", node_name, "node", f"lost: ssh to {node_name}: no route", "see the console")
    return replace(told, **{"since": STALLED_AT + 2.0, "key": "no route", **more})


def watched(nodes: dict[str, NodeScene], states: tuple[Finding, ...], *motions: JobMotion) -> list[Incident]:
    watch = IncidentWatch()
    for each in nodes.values():
        watch.see(Sample(each.node, each.at, ranks=list(each.ranks)), ())
    assert watch.take_states(states)
    assert not watch.take_states(states)
    return watch.incidents((), motions)


def test_a_job_that_stands_since_a_node_of_it_does_not_answer_waits_for_that_node() -> None:
    nodes = fleet(2)
    (incident,) = watched(nodes, (silent("n1"),), stalled({"n0": nodes["n0"]}))
    assert (incident.kind, incident.id) == ("hang", "job/train/1000")
    assert [(culprit.rank, culprit.node) for culprit in incident.culprits] == [(None, "n1")]
    assert incident.headline.startswith("n1: lost: ssh to n1: no route; 8 of 16 ranks stuck since")
    assert incident.action == "see the console"
    assert incident.confidence != "high"


def test_nodes_that_do_not_answer_for_one_reason_are_one_incident() -> None:
    nodes = fleet(3)
    (incident,) = watched(nodes, (silent("n1"), silent("n2")))
    assert (incident.kind, incident.headline) == ("node", "2 nodes: lost: ssh to n1: no route")
    (incident,) = watched(nodes, (silent("n1"), silent("n2")), stalled({"n0": nodes["n0"]}))
    assert incident.headline.startswith("n1 and 1 more node: lost: ")
    (incident,) = watched({}, (silent("n9"),))  # never seen
    assert incident.headline == "n9: lost: ssh to n9: no route"
    assert watched(nodes, (silent("n1", severity="warning"),)) == [], "late is not lost"


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (-400.0, -300.0, []),  # the job got on after it
        (-400.0, -30.0, ["fs.stall"]),  # what clears is told a while later
        (-400.0, 200.0, ["fs.stall"]),
        (-2000.0, None, []),  # the job got on with it
        (-2000.0, 200.0, []),  # and its end makes no cause of it
        (-3000.0, 600.0, []),  # an event: listed for an hour
    ],
)
def test_what_the_job_got_on_with_did_not_stop_it(since: float, until: float | None, expected: list[str]) -> None:
    over = None if until is None else STALLED_AT + until
    told = finding("fs.stall", "n0", "/data", "/data does not answer", since=STALLED_AT + since, until=over)
    assert causes(told) == expected


def test_what_was_there_before_the_job_may_stop_it_at_its_start() -> None:
    nodes = with_findings(fleet(), finding("gpu.lost", "n0", "GPU 2", "GPU 2 is lost", since=STALLED_AT - 9000.0))
    for began_s, expected in ((-60.0, ["gpu.lost"]), (-8000.0, [])):
        ranks = tuple(replace(rank, started_at=STALLED_AT + began_s) for rank in nodes["n0"].ranks)
        nodes["n0"] = replace(nodes["n0"], ranks=ranks)
        told = of_job(incidents(nodes, hang(2), motions=(stalled(nodes),)))
        assert [cause.id for cause in told.causes] == expected


@pytest.mark.parametrize("skew_s", [0.0, 3600.0, -3600.0])
def test_when_a_node_was_lost_is_told_by_our_clock(skew_s: float) -> None:
    nodes = fleet(2)
    watch = IncidentWatch()
    for each in nodes.values():
        ahead_s = skew_s if each.node == "n1" else 0.0
        watch.see(Sample(each.node, each.at + ahead_s, ranks=list(each.ranks), clock_skew_s=ahead_s), ())
    watch.take_states((silent("n1"),))
    (incident,) = watch.incidents((), [stalled({"n0": nodes["n0"]})])
    assert incident.headline.startswith("n1: lost: ")


def test_a_job_that_went_on_after_we_lost_its_node_does_not_wait_for_that_node() -> None:
    nodes = fleet(2)
    told = watched(nodes, (silent("n1", since=STALLED_AT - 300.0),), stalled({"n0": nodes["n0"]}))
    assert [(incident.kind, [c.node for c in incident.culprits]) for incident in told] == [
        ("hang", []),
        ("node", ["n1"]),
    ]
