"""A port that stands still while those beside it carry a job's traffic, and everything that only looks like it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.health.link.rails import served_gpus, takes_port
from mltop.probes.model import Finding, LinkSample, Sample
from tests.builders.evaluated import evaluate
from tests.builders.health_links import over, port
from tests.builders.health_samples import link, node_h100, rank

QUIET: dict[str, Any] = {"rx_bytes_per_s": 120.0, "tx_bytes_per_s": 90.0}  # the subnet manager's
TIMES = range(0, 91, 5)


def _node(at: float, *quiet: int, ports: int = 8, name: str = "n1", **fields: Any) -> Sample:
    links = [link(number, **(QUIET if number in quiet else {})) for number in range(min(ports, 8))]
    links += [replace(link(7, **QUIET), device=f"mlx5_{number}", pci_bus_id=None) for number in range(8, ports)]
    return replace(node_h100(at, links=links, **fields), node=name)


def _told(*samples: Sample) -> list[Finding]:
    return [one for one in evaluate(samples) if one.id == "ib.still"]


def test_a_port_that_stands_still() -> None:
    stands_at = 45
    samples = over(TIMES, lambda at: _node(at, *((3,) if at >= stands_at else ())))
    (found,) = _told(*samples)
    assert (found.severity, found.subject, found.since, found.until) == ("warning", "mlx5_3", stands_at, None)
    assert found.message == ("mlx5_3, the rail of GPU 3, carries nothing while 7 ports beside it carry 5.00 GB/s each")
    assert found.gpus == [3]
    assert _told(*[one for one in samples if one.sampled_at < stands_at + 30]) == [], "not before 30 s"


def test_two_ports_of_eight_and_the_pair_of_a_card() -> None:
    assert [one.subject for one in _told(*over(TIMES, lambda at: _node(at, 2, 3)))] == ["mlx5_2", "mlx5_3"]


def test_traffic_that_comes_in_bursts() -> None:
    """A step of twenty seconds sends for five of them."""

    def burst(at: float) -> Sample:
        sends = at % 20 == 0
        links = [link(number, **({} if sends and number != 3 else QUIET)) for number in range(8)]
        return node_h100(at, links=links)

    assert [one.subject for one in _told(*over(range(0, 181, 5), burst))] == ["mlx5_3"]


def test_it_is_over_when_it_carries_again() -> None:
    samples = over(range(0, 301, 5), lambda at: _node(at, *((3,) if 45 <= at < 120 else ())))
    (found,) = _told(*samples)
    assert found.until == 115


HEALTHY: dict[str, Any] = {
    "all work": lambda at: _node(at),
    "an idle node": lambda at: node_h100(at, load="idle", links=[link(number, **QUIET) for number in range(8)]),
    "a job between two steps": lambda at: _node(at, *range(8)),
    "no ranks": lambda at: _node(at, 3, ranks=[]),
    "a job on six of eight GPUs": lambda at: _node(at, 6, 7, ranks=[rank(index) for index in range(6)]),
    "two jobs": lambda at: _node(at, 7, ranks=[rank(index, job=str(index < 7)) for index in range(8)]),
    "one job of two users' names": lambda at: _node(at, 7, ranks=[rank(index, uid=index // 7) for index in range(8)]),
    "half of the ports": lambda at: _node(at, 4, 5, 6, 7),
    "two more ports for storage": lambda at: _node(at, ports=10),
    "left out on purpose": lambda at: _node(
        at, 3, ranks=[rank(index, settings={"NCCL_IB_HCA": "^mlx5_3"}) for index in range(8)]
    ),
    "ranks whose GPUs are not known, too few": lambda at: _node(
        at, 7, ranks=[rank(index, gpus=[]) for index in range(4)]
    ),
    "a slower port for the management": lambda at: node_h100(
        at, links=[*(link(n) for n in range(7)), replace(link(7), rate_bits_per_s=25e9, **QUIET)]
    ),
    "no rates": lambda at: node_h100(at, links=[link(n, **(dict.fromkeys(QUIET) if n == 3 else {})) for n in range(8)]),
    "a port that is down": lambda at: node_h100(
        at,
        links=[
            port(n, **({"state": "DOWN", "physical_state": "Polling", **QUIET} if n == 3 else {})) for n in range(8)
        ],
    ),
    "Ethernet, bonds and their slaves": lambda at: node_h100(
        at,
        links=[
            LinkSample(f"eth{n}", 1, "ethernet", "UP", "UP", 100e9, **(QUIET if n == 3 else {"rx_bytes_per_s": 2e9}))
            for n in range(8)
        ],
    ),
    "one of four is little": lambda at: _node(
        at, *range(1, 8), ranks=[rank(index, local_world_size=8) for index in range(8)]
    ),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_what_only_looks_like_it(case: str) -> None:
    assert _told(*over(TIMES, HEALTHY[case])) == []


def test_at_first_sight_nobody_knows() -> None:
    assert _told(_node(0.0, 3)) == []


def test_like_nodes_tell_what_a_port_is_for() -> None:
    """Ten ports, eight GPUs: alone nobody knows which of them are the job's."""

    def fleet(at: float, *quiet: int) -> list[Sample]:
        return [_node(at, *(quiet if name == "n0" else ()), ports=10, name=name) for name in ("n0", "n1", "n2", "n3")]

    found = _told(*(one for at in TIMES for one in fleet(at, 3)))
    assert [(one.node, one.subject) for one in found] == [("n0", "mlx5_3")], "its storage ports are idle everywhere"


def test_a_port_that_stands_still_everywhere_is_meant_to() -> None:
    samples = [_node(at, 3, name=f"n{number}") for at in TIMES for number in range(5)]
    assert _told(*samples) == []


def test_ranks_whose_gpus_are_not_known() -> None:
    """NVML's pids do not match in containers: eight ranks on eight GPUs are all of them."""
    samples = over(TIMES, lambda at: _node(at, 3, ranks=[rank(index, gpus=[]) for index in range(8)]))
    assert [one.subject for one in _told(*samples)] == ["mlx5_3"]


def test_elastic_fabric_adapters() -> None:
    def node(at: float) -> Sample:
        adapters = [
            LinkSample(f"rdmap{n}s0", 1, "efa", "ACTIVE", "LinkUp", 100e9, 2e9, 2e9, pci_bus_id=f"0001:{n:02x}:00.0")
            for n in range(16)
        ]
        return node_h100(at, links=[replace(one, **QUIET) if one.device == "rdmap5s0" else one for one in adapters])

    (found,) = _told(*over(TIMES, node))
    assert found.subject == "rdmap5s0" and "GPU" not in found.message


def test_a_port_without_a_device_file_is_told_by_that() -> None:
    def node(at: float) -> Sample:
        links = [link(n, **({**QUIET, "has_chardev": False} if n == 3 else {})) for n in range(8)]
        return node_h100(at, links=links)

    found = [one for one in evaluate(over(TIMES, node)) if one.subject == "mlx5_3"]
    assert [one.id for one in found] == ["ib.chardev"]
    assert [one.id for one in found[0].explains] == ["ib.still"]


def test_which_gpu_a_port_serves() -> None:
    assert served_gpus(_node(0.0)) == {f"mlx5_{number}": number for number in range(8)}
    far = [link(number, numa_node=1 - number // 4) for number in range(8)]
    assert served_gpus(node_h100(0.0, links=far)) == {}, "the order of addresses is not that of the sockets"
    assert served_gpus(node_h100(0.0, links=[link(number) for number in range(7)])) == {}
    same = [link(number, pci_bus_id="0000:18:00.0") for number in range(8)]
    assert served_gpus(node_h100(0.0, links=same, pci=[])) == {f"mlx5_{number}": number for number in range(8)}


@pytest.mark.parametrize(
    ("setting", "taken"),
    [
        ("", True),
        ("mlx5", True),
        ("mlx5_3", True),
        ("mlx5_1", False),
        ("mlx5_0,mlx5_3:1", True),
        ("mlx5_0,mlx5_3:2", False),
        ("=mlx5_3", True),
        ("=mlx5", False),
        ("^mlx5_3", False),
        ("^mlx5_1", True),
        ("^=mlx5", True),
        ("^=mlx5_3:1", False),
        ("^mlx5_3:2", True),
        ("^", True),
        ("=", True),
        (",", False),
    ],
)
def test_nccls_list_of_ports(setting: str, taken: bool) -> None:
    assert takes_port(setting, "mlx5_3", 1) is taken
