"""Ranks of one job with other settings, versions or GPUs than the others, and what differs by design."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.job.whole_job import visible_gpus
from mltop.probes.model import Finding, JobKey, Sample
from mltop.probes.model.ranks import Ranges
from tests.builders.evaluated import evaluate
from tests.builders.health_samples import gpu, rank, sample

Own = Callable[[int, int], dict[str, Any]]  # (node, local rank) → changed fields of its RankSample
SAME = {"OMP_NUM_THREADS": "8", "NCCL_IB_TIMEOUT": "22"}


def _nodes(own: Own, nodes: int = 4, per_node: int = 4, gpus: int = 4, at: float = 0.0) -> list[Sample]:
    samples = []
    for node in range(nodes):
        ranks = []
        for local in range(per_node):
            number = node * per_node + local
            fields = {"settings": SAME, "world_size": nodes * per_node, "local_world_size": per_node, "uid": 1000}
            fields |= {"local_rank": local, "gpus": [local], **own(node, local)}
            ranks.append(rank(local, at, rank=fields.pop("rank", number), **fields))
        found = [gpu(index, nvlink={"links": []}) for index in range(gpus)]
        samples.append(sample(1000.0 + at, found, node=f"node{node}", ranks=ranks))
    return samples


def _told(own: Own, **sizes: int) -> list[Finding]:
    return evaluate(_nodes(own, **sizes), ())


def _with(**changed: str | None) -> dict[str, Any]:
    settings = {name: value for name, value in {**SAME, **changed}.items() if value is not None}
    return {"settings": settings}


# Settings


def test_a_node_with_another_setting() -> None:
    (found,) = _told(lambda node, _: _with(NCCL_ALGO="Ring") if node == 3 else {})
    assert (found.id, found.severity, found.node, found.subject) == ("job.settings", "warning", "node3", "job 1042")
    assert found.message == "job 1042: ranks 12-15 (node3): NCCL_ALGO=Ring, the others without it"
    assert (found.job_key, found.ranks) == (JobKey("1042", 1000), Ranges.of(range(12, 16)))


def test_a_rank_that_lacks_a_setting() -> None:
    (found,) = _told(lambda node, local: _with(NCCL_IB_TIMEOUT=None) if (node, local) == (1, 2) else {})
    assert found.message == "job 1042: rank 6 (node1): without NCCL_IB_TIMEOUT, the others 22"


def test_half_and_half_is_told_against_rank_0() -> None:
    (found,) = _told(lambda node, _: _with(NCCL_PROTO="LL") if node else {}, nodes=2)
    assert found.message == "job 1042: ranks 4-7 (node1): NCCL_PROTO=LL, the others without it"


def test_much_that_differs_is_one_line() -> None:
    many = {f"NCCL_X{number}": "1" for number in range(6)}
    (found,) = _told(lambda node, _: _with(**many) if node == 3 else {})
    assert found.message.count("NCCL_X") == 3 and found.message.endswith("and 3 more")
    assert len(found.evidence) == 6


def test_what_only_costs_speed_is_worth_knowing() -> None:
    (found,) = _told(lambda node, _: _with(OMP_NUM_THREADS="1") if node == 2 else {})
    assert (found.severity, found.ranks) == ("info", Ranges.of(range(8, 12)))


def test_the_loopback_is_another_interface() -> None:
    (found,) = _told(lambda node, _: _with(NCCL_SOCKET_IFNAME="lo" if node == 1 else f"eth{node}"))
    assert "NCCL_SOCKET_IFNAME=lo, the others eth0" in found.message
    (fewer,) = _told(lambda node, _: _with(NCCL_IB_HCA="mlx5_0" if node == 1 else "mlx5_0,mlx5_1"))
    assert "NCCL_IB_HCA=mlx5_0, the others mlx5_0,mlx5_1" in fewer.message


BY_DESIGN: dict[str, Own] = {
    "all alike": lambda node, local: {},
    "a GPU for each rank": lambda node, local: _with(CUDA_VISIBLE_DEVICES=str(local)),
    "names of interfaces": lambda node, local: _with(NCCL_SOCKET_IFNAME=f"ens{node}", GLOO_SOCKET_IFNAME=f"ens{node}"),
    "a card for each rank": lambda node, local: _with(NCCL_IB_HCA=f"mlx5_{local}", UCX_NET_DEVICES=f"mlx5_{local}:1"),
    "cards of another kind": lambda node, local: _with(NCCL_IB_HCA="^mlx5_8" if node else "^mlx5_bond_0"),
    "rank 0 logs": lambda node, local: _with(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="ALL") if node + local == 0 else {},
    "a file for each rank": lambda node, local: _with(NCCL_DEBUG_FILE=f"/tmp/{node}.{local}", NVTE_X_PATH=f"/{node}"),
    "a host's own number": lambda node, local: _with(NCCL_HOSTID=str(node)),
    "rank 0 is profiled": lambda node, local: _with(LD_PRELOAD="/nsys.so", NSIGHT_X="1") if node + local == 0 else {},
    "bound to cores": lambda node, local: _with(OMP_PLACES=f"{{{local}}}", GOMP_CPU_AFFINITY=str(local)),
    "each rank of a node its own": lambda node, local: _with(NCCL_MY_NUMBER=str(local)),
    "every rank another one": lambda node, local: _with(NCCL_MY_NUMBER=f"{node}.{local}"),
    "every node another one": lambda node, local: _with(NCCL_MY_NODE=str(node)),
    "an environment that was changed later": lambda node, local: (
        {**_with(NCCL_ALGO=None), "identified_by": "live environment"} if node + local == 0 else _with(NCCL_ALGO="Ring")
    ),
    "too many to be sent": lambda node, local: (
        {"settings": {f"NCCL_A{number:02d}": "1" for number in range(40)}}
        if node == 0
        else {"settings": {f"NCCL_A{number:02d}": "1" for number in range(41)}}
    ),
    "two worlds of one job": lambda node, local: (
        {**_with(NCCL_ALGO="Ring"), "master_address": "node3:1", "rank": local} if node == 3 else {}
    ),
    "a rank that has died": lambda node, local: {"settings": {}, "state": "Z"} if node == 3 else {},
    "ranks without a number": lambda node, local: {"settings": {}, "rank": None} if node == 3 else {},
    "libraries that only some have loaded": lambda node, local: {"versions": {"flash_attn": "2.8"} if node else {}},
    "nodes with fewer GPUs": lambda node, local: {"local_world_size": 4},
}


@pytest.mark.parametrize("case", BY_DESIGN)
def test_what_differs_by_design(case: str) -> None:
    assert [(one.id, one.message) for one in _told(BY_DESIGN[case])] == []


def test_two_users_jobs_of_one_name_are_not_compared() -> None:
    assert _told(lambda node, _: {**_with(NCCL_ALGO="Ring"), "uid": 7} if node > 1 else {}) == []


# Versions


def test_a_node_with_an_older_library() -> None:
    def own(node: int, _: int) -> dict[str, Any]:
        return {"versions": {"torch": "2.8.0", "nccl": "2.26.2" if node == 3 else "2.27.5"}}

    (found,) = _told(own)
    assert (found.id, found.severity, found.node) == ("job.versions", "warning", "node3")
    assert found.message == "job 1042: ranks 12-15 (node3): NCCL 2.26.2, the others 2.27.5"


def test_versions_and_settings_of_one_node_are_a_line_each() -> None:
    found = _told(lambda node, _: {**_with(NCCL_ALGO="Ring"), "versions": {"torch": "2.7" if node == 3 else "2.8"}})
    assert [one.id for one in found] == ["job.versions"]
    found = _told(lambda node, _: {**_with(NCCL_ALGO=str(node == 3)), "versions": {"torch": str(node == 3)}})
    assert sorted(one.id for one in found) == ["job.settings", "job.versions"]


# GPUs


def test_two_ranks_on_one_gpu() -> None:
    (found,) = _told(lambda node, local: {"gpus": [2]} if (node, local) == (1, 3) else {})
    assert (found.id, found.node, found.gpus) == ("job.devices", "node1", [2])
    assert found.message == "job 1042: ranks 6-7 (node1) share GPU 2"
    assert found.ranks == Ranges.of([6, 7])


def test_all_ranks_on_gpu_0() -> None:
    (found,) = _told(lambda node, local: {"gpus": [0]}, nodes=1)
    assert found.message == "job 1042: ranks 0-3 (node0) share GPU 0"


def test_a_node_that_sees_fewer_gpus() -> None:
    (found,) = _told(lambda node, _: _with(CUDA_VISIBLE_DEVICES="0,1,2" if node == 3 else None))
    assert found.message == "job 1042: ranks 12-15 (node3): 3 GPUs for 4 ranks, the others one GPU for each rank"


SHARED_BY_DESIGN: dict[str, tuple[Own, dict[str, int]]] = {
    "contexts on GPU 0 beside their own": (lambda _, local: {"gpus": sorted({0, local})}, {}),
    "all that they see": (lambda _, __: {"gpus": [0], **_with(CUDA_VISIBLE_DEVICES="0")}, {}),
    "more ranks than GPUs": (lambda _, local: {"gpus": [local % 2]}, {"gpus": 2}),
    "no process list": (lambda _, __: {"gpus": []}, {}),
    "no GPUs": (lambda _, __: {"gpus": []}, {"gpus": 0}),
    "several for each rank": (lambda _, local: {"gpus": [2 * local, 2 * local + 1]}, {"gpus": 8}),
}


@pytest.mark.parametrize("case", SHARED_BY_DESIGN)
def test_what_is_shared_by_design(case: str) -> None:
    own, sizes = SHARED_BY_DESIGN[case]
    assert _told(own, **sizes) == []


def test_nodes_of_two_sizes() -> None:
    """Eight ranks on eight GPUs, four on four: every rank has one."""
    big, small = _nodes(lambda *_: {}, nodes=1, per_node=8, gpus=8), _nodes(lambda *_: {}, nodes=1)
    small[0].node = "small"
    for number, one in enumerate(small[0].ranks):
        one.rank = 8 + number
    for one in (*big[0].ranks, *small[0].ranks):
        one.world_size = 12
    assert evaluate([*big, *small], ()) == []


def test_mig_instances_are_devices_of_their_own() -> None:
    samples = _nodes(lambda node, local: {"gpus": [0]})
    for one in samples:
        one.gpus = [gpu(index, nvlink={"links": []}, mig_enabled=True) for index in range(4)]
    assert evaluate(samples, ()) == []


@pytest.mark.parametrize(
    ("setting", "visible"),
    [(None, 8), ("", 0), ("3", 1), ("0,1,2", 3), ("0,1,-1,2", 2), ("GPU-aa,GPU-bb", 2), ("0, 1", 2), ("NoDevFiles", 0)],
)
def test_how_many_gpus_a_process_sees(setting: str | None, visible: int) -> None:
    assert visible_gpus(setting, 8) == visible
    assert visible_gpus(setting, None) is None


# In a live view


def test_it_is_told_while_nodes_come_one_by_one_and_ends_with_its_cause() -> None:
    def odd(node: int, _: int) -> dict[str, Any]:
        return _with(NCCL_ALGO="Ring") if node == 3 else {}

    health = Health(rules=())
    for number, one in enumerate(_nodes(odd)):
        one.sampled_at += 3.0 * number
        health.see(one)
    assert [one.id for one in health.of_jobs()] == ["job.settings"], "as soon as the last node has come"
    for at in range(10, 80, 2):
        for one in _nodes(lambda *_: {}, at=float(at)):
            health.see(one)
    (ended,) = health.of_jobs()
    assert ended.until is not None
