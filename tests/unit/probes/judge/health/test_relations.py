"""What rules are said to be the cause of: every pair that is declared, and those that must and must not be."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from mltop.probes.judge.health.folding import alike, fold_findings, told_of_nvml
from mltop.probes.judge.health.host.storage import server_of
from mltop.probes.judge.health.registry import ALL_RULES, JOB_RULES, RULE_OF, RULES
from mltop.probes.judge.health.relations import OF_RANKS, RANK_ENDED, RANK_SLOWED, RANK_STALLED, is_named
from mltop.probes.judge.health.rule import Rule
from mltop.probes.model import BlockedProcess, FilesystemSample, Finding, JobKey, KernelEvent, Severity
from mltop.probes.model.ranks import Ranges
from mltop.tui.render.story import fold_alike
from tests.builders.evaluated import evaluate
from tests.builders.health_samples import judged, node_h100, rank, sample, xid

NOW = 100_000.0
IDS = tuple(RULE_OF)
OF_JOBS = {rule.id for rule in JOB_RULES}


def _named(patterns: tuple[str, ...]) -> list[str]:
    return [rule_id for rule_id in IDS if is_named(rule_id, patterns)]


def _pairs() -> Iterator[tuple[str, str, bool]]:
    """(cause, effect, whether on the same subject) of all that folds on one node."""
    for rule in RULES:
        yield from ((rule.id, effect, True) for effect in _named(rule.explains) if effect != rule.id)
        yield from ((rule.id, effect, False) for effect in _named(rule.explains_node) if effect != rule.id)


def _finding(rule_id: str, severity: Severity, subject: str, text: str) -> Finding:
    return Finding(rule_id, severity, "n1", subject, text, since=NOW)


@pytest.mark.parametrize(("cause", "effect", "same"), list(_pairs()))
def test_every_declared_pair_is_one_line(cause: str, effect: str, same: bool) -> None:
    subject = "GPU 3" if same else "elsewhere"
    findings = [_finding(effect, "warning", subject, "the effect"), _finding(cause, "critical", "GPU 3", "the cause")]
    (told,) = fold_findings(findings, working_gpus=8)
    assert (told.id, told.folded) == (cause, [f"{effect} {subject}"])
    if same:
        findings[0].subject = "GPU 4"
        apart = fold_findings(findings, working_gpus=8)
        assert len(apart) == 1 + (effect not in _named(RULE_OF[cause].explains_node))


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)
def test_relations_name_what_there_is(rule: Rule) -> None:
    for pattern in (*rule.explains, *rule.explains_node, *rule.explains_peers):
        assert _named((pattern,)), pattern
    about_ranks = {one for one in IDS if one in OF_JOBS} | set(OF_RANKS)
    assert set(rule.explains_ranks) <= about_ranks
    assert set(rule.follows_ranks) <= set(OF_RANKS)
    assert all(RULE_OF[effect].alike == "kind" for effect in _named(rule.explains_peers))
    for one, other in pairwise((rule.explains, rule.explains_node, rule.explains_ranks, rule.explains_peers)):
        assert len(set(one)) == len(one) and len(set(other)) == len(other)
    # Nobody is the cause of itself, by whatever way.
    seen: set[str] = set()
    left = [*rule.explains_ranks]
    while left:
        effect = left.pop()
        assert effect != rule.id
        if effect not in seen:
            seen.add(effect)
            left += RULE_OF[effect].explains_ranks if effect in RULE_OF else ()


# Written by hand, from what faults do to jobs.
RANKS: dict[str, tuple[set[str], set[str]]] = {
    "gpu.lost": ({RANK_ENDED, RANK_STALLED, "job.hang", "job.odd_rank", "job.straggler"}, {"job.starved"}),
    "gpu.xid.hw": ({RANK_ENDED, RANK_STALLED, "job.hang", "job.straggler"}, {"job.starved"}),
    "gpu.xid.warn": ({RANK_ENDED, "job.hang"}, {"job.gc"}),
    "gpu.ecc.dbe_volatile": ({RANK_ENDED, RANK_STALLED}, {"job.straggler"}),
    "gpu.throttle.hw_thermal": ({RANK_SLOWED, "job.straggler"}, {RANK_ENDED, "job.hang"}),
    "gpu.throttle.power_brake": ({RANK_SLOWED, "job.straggler"}, {RANK_ENDED, RANK_STALLED}),
    "gpu.power.limit_low": ({"job.straggler"}, {RANK_ENDED}),
    "gpu.clock.low_busy": ({"job.straggler"}, {RANK_ENDED}),
    "gpu.persistence": (set(), {*OF_RANKS, *OF_JOBS}),
    "gpu.ecc.sbe_rate": (set(), {*OF_RANKS, *OF_JOBS}),
    "gpu.temp.peer": (set(), {RANK_ENDED, RANK_STALLED}),
    "nvml.stuck": ({RANK_STALLED, "job.hang"}, {"job.straggler"}),
    "nvlink.inactive": ({RANK_ENDED, RANK_STALLED, "job.straggler", "job.hang"}, {"job.gc"}),
    "fabric.manager": ({RANK_STALLED, "job.hang"}, {"job.straggler"}),
    "pcie.width": ({"job.straggler", "job.starved"}, {RANK_ENDED, "job.hang"}),
    "ib.down": ({RANK_ENDED, RANK_STALLED, "job.hang", "job.straggler"}, {"job.starved", "job.gc"}),
    "ib.rate": ({RANK_SLOWED, "job.straggler"}, {RANK_ENDED, "job.hang"}),
    "ib.transport": ({RANK_STALLED, "job.straggler", "job.hang"}, {"job.gc"}),
    "fs.stall": ({RANK_STALLED, "job.hang", "job.odd_rank", "job.starved"}, {"job.gc"}),
    "disk.full": ({RANK_ENDED}, {"job.gc"}),
    "mem.oom": ({RANK_ENDED, RANK_STALLED, "job.hang", "job.odd_rank"}, {"job.straggler"}),
    "mem.shm": ({RANK_ENDED, "job.starved"}, {"job.straggler"}),
    "mem.swap": ({RANK_SLOWED, "job.starved"}, {RANK_ENDED}),
    "mem.pressure": ({RANK_SLOWED, "job.starved"}, {RANK_ENDED}),
    "cpu.load": ({RANK_SLOWED, "job.starved", "job.straggler"}, {RANK_ENDED, RANK_STALLED}),
    "cpu.dstate": ({RANK_STALLED, "job.hang", "job.odd_rank"}, {RANK_ENDED}),
    "job.affinity": ({RANK_SLOWED, "job.straggler", "job.starved"}, {RANK_ENDED}),
    "job.threads": ({"job.starved"}, {RANK_ENDED}),
    "time.sync": (set(), {*OF_RANKS, *OF_JOBS}),
    "host.ptrace": (set(), {*OF_RANKS, *OF_JOBS}),
}
PEERS = {
    "ib.down": ({"ib.transport", "ib.wait", "roce.slow"}, {"ib.down", "ib.rate", "job.hang"}),
    "ib.rate": ({"ib.wait", "ib.transport"}, {"ib.rate"}),
    "gpu.lost": ({"ib.transport"}, {"gpu.lost", "ib.wait"}),
    "mem.oom": ({"ib.transport"}, {"mem.oom"}),
    "gpu.throttle.hw_thermal": (set(), {"ib.transport"}),
    "ib.transport": (set(), {"ib.transport"}),
    "ib.wait": (set(), {"ib.transport"}),
}


@pytest.mark.parametrize("cause", RANKS)
def test_what_becomes_of_ranks(cause: str) -> None:
    must, never = RANKS[cause]
    declared = {one for one in (*OF_RANKS, *OF_JOBS) if is_named(one, RULE_OF[cause].explains_ranks)}
    assert must <= declared and not never & declared


@pytest.mark.parametrize("cause", PEERS)
def test_what_peers_complain_of(cause: str) -> None:
    must, never = PEERS[cause]
    declared = set(_named(RULE_OF[cause].explains_peers))
    assert must <= declared and not never & declared


def test_what_comes_of_a_rank_that_ended() -> None:
    follow = {rule.id for rule in ALL_RULES if RANK_ENDED in rule.follows_ranks}
    assert {"gpu.xid.app", "gpu.orphan", "gpu.leftover", "job.hang", "job.odd_rank", "ib.transport"} <= follow
    assert not {"gpu.xid.hw", "gpu.lost", "ib.down", "mem.oom", "fs.stall"} & follow


# What a finding says as data, so that nobody has to read its words.


def test_gpus_of_a_finding() -> None:
    (found,) = judged([node_h100(NOW, kernel_events=[xid(NOW - 5, 79)])], "gpu.xid.hw")
    assert found.gpus == [3] and found.job_key is None
    braked = {"throttle_reasons": ["power_brake"], "sm_clock_mhz": 420}
    nodes = [node_h100(NOW + at, dict.fromkeys(range(8), braked)) for at in range(0, 120, 5)]
    (found,) = judged(nodes, "gpu.throttle.power_brake")
    assert found.gpus == list(range(8)) and found.gpu is None
    (told,) = fold_findings([found], working_gpus=8)
    assert told.gpus == list(range(8))


def test_the_server_of_a_mount_that_stalls() -> None:
    mounts = [
        FilesystemSample("/ckpt", "10.0.4.11:/export", "nfs4", True, stalled_s=30.0),
        FilesystemSample("/home", "10.0.4.11:/home", "nfs4", True, stalled_s=30.0),
        FilesystemSample("/scratch", "/dev/nvme0n1", "xfs", False, stalled_s=30.0),
    ]
    host = {"filesystems": mounts}
    events = [KernelEvent(NOW - 30, "nfs", "10.0.4.11", None, "nfs: server 10.0.4.11 not responding")]
    found = [one for one in evaluate([sample(NOW, host=host, kernel_events=events)]) if one.id == "fs.stall"]
    every = [one for line in found for one in (line, *line.explains)]
    assert {one.subject: one.server for one in every if one.server} == dict.fromkeys(
        ("/ckpt", "/home", "NFS 10.0.4.11"), "10.0.4.11"
    )


@pytest.mark.parametrize(
    ("device", "server"),
    [
        ("10.0.4.11:/export", "10.0.4.11"),
        ("filer:/", "filer"),
        ("[fe80::1]:/export", "fe80::1"),
        ("10.0.1.1@o2ib:10.0.1.2@o2ib:/scratch", "10.0.1.1@o2ib:10.0.1.2@o2ib"),
        ("weka", ""),
        ("", ""),
    ],
)
def test_the_name_of_a_server(device: str, server: str) -> None:
    assert server_of(FilesystemSample("/x", device, is_network=True)) == server
    assert server_of(FilesystemSample("/x", device, is_network=False)) == ""


def test_ranks_and_pids_of_findings() -> None:
    stuck = BlockedProcess(4711, "python", 90.0, "nfs_wait", 12)
    (found,) = [one for one in evaluate([sample(NOW, host={"blocked": [stuck]})]) if one.id == "cpu.dstate"]
    assert (found.ranks, found.pid) == (Ranges.of([12]), 4711)
    pinned = rank(3, cpus_allowed="7", job="llm", uid=1000)
    node = sample(NOW, ranks=[pinned], host={"cpu_count": 64})
    (found,) = [one for one in evaluate([node]) if one.id == "job.affinity"]
    assert (found.job_key, found.ranks, found.pid) == (JobKey("llm", 1000), Ranges.of([3]), pinned.pid)


def test_a_rank_of_a_strange_number_costs_nothing() -> None:
    stuck = BlockedProcess(4711, "python", 90.0, None, -5)
    (found,) = [one for one in evaluate([sample(NOW, host={"blocked": [stuck]})]) if one.id == "cpu.dstate"]
    assert not found.ranks and found.pid == 4711


# What folds across nodes, and what NVML's findings are made of, is said by the rules.


@pytest.mark.parametrize(
    ("rule_id", "subjects", "lines"),
    [
        ("gpu.lost", [f"GPU {at}" for at in range(6)], 1),
        ("ib.down", [f"mlx5_{at}" for at in range(6)], 1),
        ("efa", [f"rdmap{at}" for at in range(6)], 1),
        ("job.odd_rank", [f"rank {at}" for at in range(6)], 1),
        ("mem.oom", [f"python{at}" for at in range(6)], 1),
        ("disk.full", ["/ckpt"] * 6, 1),
        ("disk.full", [f"/data{at}" for at in range(6)], 6),
        ("job.bad_env", [f"job {at}" for at in range(6)], 6),
    ],
)
def test_what_folds_across_nodes(rule_id: str, subjects: list[str], lines: int) -> None:
    findings = [Finding(rule_id, "warning", f"n{at}", subject, "text") for at, subject in enumerate(subjects)]
    assert len(fold_alike(findings)) == lines
    assert len({alike(one) for one in findings}) == lines


def test_every_rule_about_a_device_or_rank_folds() -> None:
    devices = ("gpu.", "nvlink.", "pcie.", "fabric.", "ib.", "roce.", "efa", "eth.")
    for rule in ALL_RULES:
        assert (rule.alike == "kind") == rule.id.startswith(devices), rule.id


def test_what_tells_of_all_of_nvml() -> None:
    def told(rule_id: str, severity: Severity = "critical") -> set[str]:
        return told_of_nvml([Finding(rule_id, severity, "n1", "driver", "text")])

    assert "driver_mismatch" in told("gpu.driver") and told("nvml.stuck") == {"stuck"}
    assert told("gpu.driver", "warning") == set() == told("gpu.lost") == told("health.failed")
    assert [rule.id for rule in ALL_RULES if rule.tells_nvml] == ["nvml.stuck", "gpu.driver"]
