"""Jobs and nodes as the join of incidents sees them: ``fleet(nodes=8)`` trains, each test breaks a thing."""

from __future__ import annotations

from dataclasses import replace

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.incidents.join import incidents_of
from mltop.probes.judge.incidents.scene import NodeScene, Scene, Stacks, scene_of
from mltop.probes.model import (
    Culprit,
    Finding,
    Frame,
    Incident,
    JobMotion,
    JobReport,
    PlacedJob,
    RankDeath,
    RankSample,
    StackClass,
    Verdict,
    Waiting,
)
from mltop.probes.model.ranks import Ranges

NOW = 1_790_000_000.0
STALLED_AT = NOW - 400.0
GPUS = 8
RULE = {rule.id: rule for rule in ALL_RULES}


def node(name: str, first_rank: int | None = 0, job: str = "train", world: int = GPUS, uid: int = 1000) -> NodeScene:
    """A node with 8 GPUs, and a rank of ``job`` on each unless ``first_rank`` is None."""
    first = first_rank or 0
    ranks = tuple(
        RankSample(5000 + first + gpu, first + gpu, gpu, world, job=job, uid=uid, user="ada", gpus=[gpu], state="S")
        for gpu in range(GPUS)
    )
    return NodeScene(name, NOW, (), ranks if first_rank is not None else (), (), GPUS)


def fleet(nodes: int = 2, job: str = "train", uid: int = 1000) -> dict[str, NodeScene]:
    """``n0``, ``n1`` … with one job on all of them."""
    world = nodes * GPUS
    return {f"n{at}": node(f"n{at}", at * GPUS, job, world, uid) for at in range(nodes)}


def finding(rule_id: str, node_name: str, subject: str, message: str, **more: object) -> Finding:
    rule = RULE[rule_id]
    values: dict[str, object] = {"action": rule.action, "since": STALLED_AT - 5.0, "remedy": rule.remedy, **more}
    severity = values.pop("severity", rule.severity)
    return Finding(rule_id, severity, node_name, subject, message, **values)  # type: ignore[arg-type]


def with_findings(nodes: dict[str, NodeScene], *findings: Finding) -> dict[str, NodeScene]:
    for one in findings:
        nodes[one.node] = replace(nodes[one.node], findings=(*nodes[one.node].findings, one))
    return nodes


def without_rank(nodes: dict[str, NodeScene], rank: int, **how: object) -> dict[str, NodeScene]:
    """The rank has died, ``how``: fields of its RankDeath."""
    name = f"n{rank // GPUS}"
    here = nodes[name]
    gone = next(each for each in here.ranks if each.rank == rank)
    values: dict[str, object] = {"at": STALLED_AT, "gpus": list(gone.gpus), **how}
    death = RankDeath(gone.pid, rank, gone.job, gone.uid, **values)  # type: ignore[arg-type]
    left = tuple(each for each in here.ranks if each.rank != rank)
    nodes[name] = replace(here, ranks=left, deaths=(*here.deaths, death))
    return nodes


def stalled(nodes: dict[str, NodeScene], job: str = "train", **more: object) -> JobMotion:
    ranks = [rank for each in nodes.values() for rank in each.ranks if rank.job == job]
    values: dict[str, object] = {
        "phase": "stalled",
        "at": NOW,
        "since": STALLED_AT,
        "patience_s": 60.0,
        "signals": ["no main thread ran", "power near idle"],
        "ranks": Ranges.of(rank.rank for rank in ranks if rank.rank is not None),
        "ranks_seen": len(ranks),
        "world_size": max((rank.world_size or 0 for rank in ranks), default=0),
        "nodes": [each.node for each in nodes.values() if any(rank.job == job for rank in each.ranks)],
        **more,
    }
    uid = ranks[0].uid if ranks else 1000
    return JobMotion(job, uid, "ada", **values)  # type: ignore[arg-type]


def hang(culprit: int | None, world: int = 16, job: str = "train", **more: object) -> JobReport:
    """What stacks say: ``culprit`` stands in a dataset, the others wait in all_reduce."""
    waiting = Ranges.below(world).without(Ranges.of([] if culprit is None else [culprit]))
    place = "ShardDataset.__getitem__ (dataset.py:26)"
    reason = "is stuck outside any collective while the others wait for it"
    culprits = [] if culprit is None else [Culprit(culprit, f"n{culprit // GPUS}", 5000 + culprit, reason, place)]
    culprits = [replace(each, how="stands") for each in culprits]
    values: dict[str, object] = {"evidence": ["15 of 16 ranks wait"], "confidence": "high", "since": STALLED_AT, **more}
    verdict = Verdict("hang", culprits, [Waiting(waiting, "all_reduce, called from train (train.py:60)")], **values)  # type: ignore[arg-type]
    made = StackClass(waiting, waiting.count, "all_reduce", [Frame("all_reduce", "torch/distributed/x.py", 1)])
    return JobReport(job, world, verdict, [made], [], 1000, "ada")


def incidents(
    nodes: dict[str, NodeScene],
    *reports: JobReport,
    motions: tuple[JobMotion, ...] = (),
    job_findings: tuple[Finding, ...] = (),
) -> list[Incident]:
    return incidents_of(scene(nodes, *reports, motions=motions, job_findings=job_findings))


def scene(
    nodes: dict[str, NodeScene],
    *reports: JobReport,
    motions: tuple[JobMotion, ...] = (),
    job_findings: tuple[Finding, ...] = (),
) -> Scene:
    stacks = {PlacedJob(report.job, report.uid, ""): Stacks(report, NOW - 10.0) for report in reports}
    return scene_of(nodes.values(), job_findings, motions, stacks)
