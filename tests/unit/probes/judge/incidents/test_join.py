"""One cause, one incident: whatever told of it, nothing that was said is lost, and no advice contradicts another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.judge.incidents.scene import NodeScene
from mltop.probes.model import Finding, Incident, JobReport, Rhythm, Sample, Verdict, Waiting
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

SINCE = f"since {clock_time(STALLED_AT)}"
LOST = "GPU 4 fell off the bus (Xid 79)"


def test_a_fine_fleet_has_none() -> None:
    nodes = fleet()
    assert not incidents(nodes, motions=(stalled(nodes, phase="moving", signals=[]),))


def test_who_hangs_is_the_headline() -> None:
    nodes = fleet()
    (incident,) = incidents(nodes, hang(2), motions=(stalled(nodes),))
    assert incident.headline == (
        f"rank 2 (n0 GPU 2) is stuck in ShardDataset.__getitem__ (dataset.py:26), 15 ranks wait in all_reduce {SINCE}"
    )
    assert (incident.kind, incident.severity, incident.confidence) == ("hang", "critical", "high")
    assert [(culprit.rank, culprit.gpu) for culprit in incident.culprits] == [(2, 2)]
    assert (str(incident.suffers.ranks), incident.suffers.gpus) == ("0-15", 16)
    assert incident.suffers.gpu_hours == pytest.approx(16 * 400 / 3600)
    assert {line.source for line in incident.evidence} == {"stacks", "samples"}


def test_of_one_node_its_name_is_not_told() -> None:
    (incident,) = incidents(fleet(1), hang(2, 8))
    assert incident.headline.startswith("rank 2 (GPU 2) is stuck in")


def test_of_several_jobs_each_has_its_name() -> None:
    nodes = {**fleet(1), "n1": node("n1", 0, "eval")}
    (incident,) = incidents(nodes, hang(2, 8))
    assert incident.headline.startswith("train: rank 2")


def test_the_hardware_is_the_cause_and_the_jobs_loss_stands_in_the_same_sentence() -> None:
    nodes = without_rank(fleet(), 4, how="signal", code=6)
    with_findings(nodes, finding("gpu.lost", "n0", "GPU 4", LOST))
    (incident,) = incidents(nodes, motions=(stalled(nodes),))
    assert incident.headline == f"n0: {LOST}; rank 4 died, 15 ranks wait {SINCE}"
    assert [cause.id for cause in incident.causes] == ["gpu.lost"]
    assert incident.action == incident.causes[0].action
    assert [(culprit.rank, culprit.node, culprit.gpu) for culprit in incident.culprits] == [(4, "n0", 4)]
    assert "killed by SIGABRT" in incident.culprits[0].reason


def test_a_fault_elsewhere_is_not_the_cause() -> None:
    nodes = with_findings(fleet(), finding("gpu.lost", "n1", "GPU 4", LOST))
    of_job, of_node = incidents(nodes, hang(2))
    assert (of_job.kind, of_job.causes) == ("hang", [])
    assert (of_node.kind, of_node.headline) == ("node", f"n1: {LOST}")


def test_what_came_long_after_is_not_the_cause() -> None:
    late = finding("gpu.lost", "n0", "GPU 2", LOST, since=STALLED_AT + 300.0)
    assert [incident.kind for incident in incidents(with_findings(fleet(), late), hang(2))] == ["hang", "node"]


def test_where_nobody_is_named_the_fault_names_them() -> None:
    """Below Python nothing differs: a dead port on one of the job's nodes does."""
    nodes = with_findings(fleet(4), finding("ib.down", "n3", "mlx5_2", "mlx5_2 has no link"))
    (incident,) = incidents(nodes, hang(None, 32, confidence="medium"))
    assert incident.headline.startswith("n3: mlx5_2 has no link; ranks 24-31 are stuck, 24 ranks wait in all_reduce")
    assert incident.confidence == "high"


def test_a_fault_of_all_accuses_nobody() -> None:
    down = [finding("fs.stall", f"n{at}", "/data", "/data does not answer", server="nfs1:/data") for at in range(4)]
    nodes = with_findings(fleet(4), *down)
    (incident,) = incidents(nodes, hang(None, 32))
    assert [(culprit.rank, culprit.node) for culprit in incident.culprits] == [(None, "nfs1:/data")]
    assert incident.headline.startswith("/data does not answer; all 32 ranks wait in all_reduce, called from train")


def test_a_servers_silence_is_one_incident() -> None:
    down = [finding("fs.stall", f"n{at}", "/data", "/data does not answer", server="nfs1:/data") for at in range(40)]
    nodes = with_findings({f"n{at}": node(f"n{at}", None) for at in range(40)}, *down)
    (incident,) = incidents(nodes)
    assert incident.headline == "40 nodes: /data does not answer"
    assert incident.culprits[0].node == "nfs1:/data"
    assert len(incident.causes) + len(incident.effects) == 40


def test_a_straggler_and_its_hot_gpu_are_one() -> None:
    text = "rank 3 keeps 15 waiting: its GPU runs at 1100 MHz, the others at 1980"
    slow = finding("job.straggler", "n0", "rank 3", text, job="train", uid=1000, ranks=Ranges.of([3]))
    hot = finding("gpu.throttle.hw_thermal", "n0", "GPU 3", "GPU 3 is too hot")
    (incident,) = incidents(with_findings(fleet(), hot), job_findings=(slow,))
    assert incident.kind == "straggler"
    assert incident.headline == "n0: GPU 3 is too hot; rank 3 is slow"
    assert incident.effects == [slow]
    assert incident.severity == "critical"


def test_what_a_dead_rank_leaves_behind_is_its_effect() -> None:
    nodes = without_rank(fleet(1), 6, how="signal", code=9)
    left = finding("gpu.orphan", "n0", "GPU 6", "a process has died and its GPU memory is not freed", since=NOW)
    xid = finding("gpu.xid.app", "n0", "GPU 6", "Xid 43: the program was stopped", severity="info", since=STALLED_AT)
    (incident,) = incidents(with_findings(nodes, left, xid), motions=(stalled(nodes),))
    assert incident.headline == f"rank 6 (GPU 6) died (killed by SIGKILL), 7 ranks wait {SINCE}"
    assert {effect.id for effect in incident.effects} >= {"gpu.orphan"}


def test_oom_is_why_it_died() -> None:
    nodes = without_rank(fleet(1), 6, how="oom", code=9)
    oom = finding("mem.oom", "n0", "python", "the kernel killed python (pid 5006) for lack of memory", pid=5006)
    (incident,) = incidents(with_findings(nodes, oom), motions=(stalled(nodes),))
    assert incident.headline.startswith("the kernel killed python (pid 5006) for lack of memory; rank 6 died")


def test_two_jobs_that_suffer_from_one_fault_are_one_incident() -> None:
    nodes = fleet(2)
    small = replace(node("n0", 0, "eval", 8), ranks=node("n0", 0, "eval", 8).ranks[:2])
    nodes["n0"] = replace(nodes["n0"], ranks=(*nodes["n0"].ranks, *small.ranks))
    with_findings(nodes, finding("nvml.stuck", "n0", "NVML", "a driver call does not return"))
    motions = (stalled(nodes), stalled(nodes, "eval"))
    (incident,) = incidents(nodes, motions=motions)
    assert incident.job == "train"
    assert any("eval" in line.text for line in incident.evidence)


def test_what_moves_again_is_over() -> None:
    nodes = fleet()
    moves = stalled(nodes, phase="moving", since=NOW - 5.0, signals=[])
    assert not incidents(nodes, hang(2), motions=(moves,))


def test_stacks_that_saw_it_move_look_closer_than_counters() -> None:
    nodes = fleet()
    moving = JobReport("train", 16, Verdict("moving"), uid=1000)
    assert not incidents(nodes, moving, motions=(stalled(nodes, since=NOW - 65.0),))


def test_from_outside_alone_it_hangs_and_nobody_is_named() -> None:
    nodes = fleet()
    (incident,) = incidents(nodes, motions=(stalled(nodes, rhythm=Rhythm(2.1, 0.03, 200)),))
    assert incident.headline == f"all 16 ranks stuck {SINCE}, blocking rank unknown"
    assert not incident.culprits
    assert incident.next_act == "stacks"
    assert any("2.1 s ± 3 %" in line.text for line in incident.evidence)


@pytest.mark.parametrize(("code", "kinds"), [(0, []), (1, ["crash"])])
def test_a_finished_job_is_no_incident_and_a_failed_one_is(code: int, kinds: list[str]) -> None:
    nodes = fleet(1)
    for rank in range(8):
        without_rank(nodes, rank, how="exit", code=code if rank == 3 else 0, at=STALLED_AT + rank / 10)
    assert [incident.kind for incident in incidents(nodes)] == kinds


def test_the_first_death_is_told_and_those_that_followed_are_not_blamed() -> None:
    nodes = fleet(1)
    without_rank(nodes, 5, how="exit", code=1, at=STALLED_AT, error="RuntimeError: CUDA error: device-side assert")
    for rank in (0, 1, 2, 3, 4, 6, 7):
        without_rank(nodes, rank, how="signal", code=15, at=STALLED_AT + 0.3)
    (incident,) = incidents(nodes)
    assert incident.headline.startswith(
        "rank 5 (GPU 5) died (exited with code 1: RuntimeError: CUDA error: device-side assert), "
        "7 other ranks went down with it"
    )
    assert [culprit.rank for culprit in incident.culprits] == [5]
    assert incident.suffers.gpu_hours == 0.0


def test_who_died_is_counted_once() -> None:
    nodes = fleet(1)
    for rank in range(8):
        without_rank(nodes, rank, how="signal", code=6, at=STALLED_AT)
    (incident,) = incidents(nodes)
    assert incident.headline.startswith(f"the job has died at {clock_time(STALLED_AT)}, all 8 ranks ended")
    nodes = fleet(1)
    without_rank(nodes, 1, how="signal", code=6, at=STALLED_AT)
    for rank in (0, 2, 3, 4, 5, 6, 7):
        without_rank(nodes, rank, how="stopped", code=15, at=STALLED_AT)
    (incident,) = incidents(nodes)
    assert (incident.kind, incident.confidence) == ("crash", "medium")
    assert incident.headline.startswith("rank 1 (GPU 1) died (killed by SIGABRT), 7 other ranks went down with it")


def test_a_job_that_is_ended_from_outside_is_nobodys_fault() -> None:
    nodes = fleet(1)
    for rank in range(8):
        without_rank(nodes, rank, how="signal", code=15)
    (incident,) = incidents(nodes)
    assert (incident.kind, incident.severity, incident.culprits) == ("stopped", "info", [])


def test_what_stops_most_work_comes_first() -> None:
    nodes = {**fleet(4), "x0": node("x0", 0, "eval"), "x1": node("x1", None)}
    with_findings(nodes, finding("gpu.lost", "x1", "GPU 4", LOST))
    motions = (stalled(nodes), stalled(nodes, "eval"))
    listed = incidents(nodes, motions=motions)
    assert [(incident.kind, incident.job) for incident in listed] == [("hang", "train"), ("hang", "eval"), ("node", "")]


def test_every_finding_is_in_one_incident_once() -> None:
    nodes = without_rank(fleet(), 4, how="signal", code=6)
    findings = (
        finding("gpu.lost", "n0", "GPU 4", LOST),
        finding("gpu.orphan", "n0", "GPU 4", "a process has died and its GPU memory is not freed"),
        finding("ib.ber", "n1", "mlx5_0", "bits arrive damaged", severity="warning"),
        finding("gpu.temp.peer", "n1", "GPU 2", "GPU 2 is cooled worse"),
    )
    listed = incidents(with_findings(nodes, *findings), motions=(stalled(nodes),))
    texts = [each.message for incident in listed for each in (*incident.causes, *incident.effects)]
    assert sorted(texts) == sorted(each.message for each in findings)


def test_ids_are_stable_and_unlike() -> None:
    nodes = with_findings(fleet(), finding("ib.ber", "n1", "mlx5_0", "bits arrive damaged"))
    first, again = (ids(incidents(nodes, hang(2))) for _ in range(2))
    assert first == again
    assert len(first) == len(set(first)) == 2


def ids(listed: list[Incident]) -> list[str]:
    return [incident.id for incident in listed]


def test_no_advice_contradicts_another() -> None:
    nodes = without_rank(fleet(), 4, how="signal", code=6)
    reset = finding("gpu.xid.hw", "n0", "GPU 4", "Xid 48 on GPU 4", action="reset the GPU", remedy="reset")
    replaced = finding("gpu.remap.failed", "n0", "GPU 4", "a row could not be replaced", action="RMA", remedy="replace")
    (incident,) = incidents(with_findings(nodes, reset, replaced), motions=(stalled(nodes),))
    told: list[Finding] = [*incident.causes, *incident.effects]
    assert {each.action for each in told} == {"RMA"}
    assert incident.action == "RMA"


def test_a_suspect_is_no_incident_until_the_job_has_stood_for_longer_than_it_ever_did() -> None:
    """An evaluation on one rank looks the same for a while."""
    nodes, report = fleet(), hang(2)
    report.verdict.kind, report.verdict.confidence = "suspect", "low"
    assert not incidents(nodes, report, motions=(stalled(nodes, phase="quiet"),))
    (incident,) = incidents(nodes, report, motions=(stalled(nodes),))
    assert [culprit.rank for culprit in incident.culprits] == [2]


def test_a_job_that_does_without_a_dead_rank_is_fine() -> None:
    """Elastic training goes on with those that are left."""
    nodes = without_rank(fleet(1), 6, how="signal", code=9)
    assert not incidents(nodes, motions=(stalled(nodes, phase="moving", since=STALLED_AT - 500.0, signals=[]),))


def test_stacks_know_the_number_of_a_rank_that_nobody_saw_alive() -> None:
    nodes = without_rank(fleet(1), 6, how="signal", code=9)
    nodes["n0"].deaths[0].rank = None
    report = hang(6, 8)
    report.verdict.culprits[0].how = "dead"
    (incident,) = incidents(nodes, report, motions=(stalled(nodes),))
    assert [culprit.rank for culprit in incident.culprits] == [6]
    assert "killed by SIGKILL" in incident.headline


def test_jobs_of_one_name_that_meet_at_loopback_addresses_are_jobs_of_their_nodes() -> None:
    """Every node may run one of its own at 127.0.0.1:29500."""
    nodes = {}
    for name in ("n0", "n1"):
        here = node(name, 0, "127.0.0.1:29500")
        ranks = tuple(replace(rank, master_address="127.0.0.1") for rank in here.ranks)
        nodes[name] = NodeScene.of(Sample(name, NOW, ranks=list(ranks)), ())
    only = {"n1": nodes["n1"]}
    (incident,) = incidents(nodes, motions=(stalled(only, "127.0.0.1:29500", place="n1"),))
    assert incident.headline.startswith("127.0.0.1:29500 on n1: all 8 ranks stuck")
    assert incident.suffers.gpus == 8
    assert incident.id.endswith("/n1")


def test_what_the_kernel_killed_within_an_hour_is_one_line_the_newest_first() -> None:
    kills = tuple(
        finding("mem.oom", "n0", "python", f"kernel killed p{ago}", pid=ago, key=str(ago), since=NOW - ago)
        for ago in (30, 10, 20)
    )
    (incident,) = incidents({"n0": replace(node("n0", None), findings=kills)})
    assert incident.headline == "kernel killed p10; and 2 more"
    assert {told.message for told in incident.findings} == {f"kernel killed p{ago}" for ago in (10, 20, 30)}


def test_ranks_that_wait_for_one_another_are_the_headline() -> None:
    report = hang(None)
    report.verdict.circle = [1, 2]
    (incident,) = incidents(fleet(), report)
    assert incident.headline == f"ranks 1-2 wait for one another, 14 other ranks wait for them {SINCE}"
    assert incident.action.startswith("compare the two places in the code")


def test_of_several_places_one_is_not_said_of_all() -> None:
    report = hang(None)
    report.verdict.waiting = [
        Waiting(Ranges.of(range(10)), "recv, called from a (t.py:1)"),
        Waiting(Ranges.of(range(10, 16)), "recv, called from b (t.py:9)"),
    ]
    (incident,) = incidents(fleet(), report)
    assert incident.headline == (
        f"all 16 ranks wait in recv, called from a (t.py:1), and in 1 other place, {SINCE}, blocking rank unknown"
    )


def test_a_server_that_stopped_a_job_is_no_second_incident_on_other_nodes() -> None:
    silent = [finding("fs.stall", name, "/data", "/data does not answer", server="nas1") for name in ("n0", "n1", "n2")]
    nodes = with_findings({**fleet(), "n2": node("n2", None)}, *silent)
    (incident,) = incidents(nodes, hang(2), motions=(stalled(nodes),))
    assert (incident.kind, incident.headline.partition(";")[0]) == ("hang", "/data does not answer")
    assert sorted(each.node for each in incident.findings) == ["n0", "n1", "n2"]


def test_which_of_the_jobs_of_one_loopback_name_is_told() -> None:
    name = "127.0.0.1:29500"
    nodes = {where: node(where, 0, name) for where in ("n0", "n1")}
    motions = tuple(stalled({where: nodes[where]}, name) for where in nodes)
    headlines = [incident.headline for incident in incidents(nodes, motions=motions)]
    assert [text.partition(": ")[0] for text in headlines] == [f"{name} on n0", f"{name} on n1"]
