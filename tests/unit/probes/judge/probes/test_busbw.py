"""What a collective should reach: at the same size, never a plateau, None where nobody has measured."""

from __future__ import annotations

import pytest

from mltop.probes.judge.probes.hardware import busbw
from mltop.probes.judge.probes.hardware.busbw import expected_busbw, network_ceiling
from mltop.probes.judge.probes.hardware.peaks import PEAKS

MIB, GIB = 1 << 20, 1 << 30
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
H200, B200, GB200 = "NVIDIA H200", "NVIDIA B200", "NVIDIA GB200"


@pytest.mark.parametrize(
    ("model", "gpus", "nodes", "size", "gb_per_s"),
    [
        (A100, 8, 1, 64 * MIB, 172),
        (A100, 8, 1, 16 * GIB, 235),
        (H100, 8, 1, 256 * MIB, 423),
        (H100, 8, 1, GIB, 466),
        (H200, 8, 1, MIB, 39.93),
        (H200, 8, 1, 256 * MIB, 436.15),
        (H200, 8, 1, 16 * GIB, 482.26),
        (H200, 4, 1, 8 * GIB, 363.3),
        (B200, 8, 1, GIB, 723),
        (B200, 6, 1, 8 * GIB, 778.2),
        ("AMD Instinct MI300X", 8, 1, 4 * GIB, 312.9),
        ("AMD Instinct MI300X", 2, 1, 4 * GIB, 47.7),
    ],
)
def test_what_was_measured_on_one_node(model: str, gpus: int, nodes: int, size: int, gb_per_s: float) -> None:
    found = expected_busbw(model, gpus, nodes, size)
    assert found is not None
    assert found.bytes_per_s == pytest.approx(gb_per_s * 1e9)
    assert found.certain and found.source


@pytest.mark.parametrize(
    ("model", "gpus", "nodes", "size"),
    [
        (H100, 8, 1, MIB),  # below the smallest size: not its plateau
        (H100, 8, 1, 16 * GIB),  # above the largest certain one
        (A100, 8, 1, 32 * GIB),
        (H200, 4, 1, GIB),  # four GPUs were measured at 8 GiB only
        (H200, 2, 1, 8 * GIB),
        (H200, 1, 1, GIB),
        (GB200, 4, 1, GIB),
        (GB200, 4, 4, GIB),
        ("NVIDIA H100 PCIe", 8, 1, GIB),
        ("NVIDIA GeForce RTX 5090", 8, 1, GIB),
        ("Tesla V100-SXM2-16GB", 8, 1, GIB),
        ("something else", 8, 1, GIB),
        ("", 8, 2, GIB),
    ],
)
def test_what_nobody_has_measured(model: str, gpus: int, nodes: int, size: int) -> None:
    assert expected_busbw(model, gpus, nodes, size) is None


def test_between_two_sizes_it_follows_the_logarithm() -> None:
    middle = expected_busbw(A100, 8, 1, 128 * MIB)  # half way from 64 to 256 MiB
    assert middle is not None
    assert middle.bytes_per_s == pytest.approx((172e9 + 194e9) / 2)
    assert middle.certain and "between" in middle.source


@pytest.mark.parametrize("model", [A100, H100, H200, B200])
def test_larger_sizes_are_never_slower(model: str) -> None:
    found = [expected_busbw(model, 8, 1, 64 * MIB << step) for step in range(7)]
    rates = [one.bytes_per_s for one in found if one is not None]
    assert len(rates) == 7 and rates == sorted(rates)


def test_two_points_far_apart_make_no_certain_line() -> None:
    found = expected_busbw(GB200, 4, 18, 2 * GIB)
    assert found is not None and 586e9 < found.bytes_per_s < 847e9 and not found.certain


def test_nodes_with_400_gigabit_for_each_gpu() -> None:
    told = expected_busbw(B200, 8, 4, GIB, nic_bytes_per_s=50e9)
    assumed = expected_busbw(B200, 8, 4, GIB)
    assert told is not None and assumed is not None
    assert told.bytes_per_s == assumed.bytes_per_s == 362e9
    assert told.certain and not assumed.certain


def test_pairs_are_compared_with_two_node_figures_alone() -> None:
    pair = expected_busbw(B200, 8, 2, 8 * GIB, nic_bytes_per_s=50e9)
    four = expected_busbw(B200, 8, 4, 8 * GIB, nic_bytes_per_s=50e9)
    assert pair is not None and four is not None
    assert pair.bytes_per_s == 690e9 and pair.certain
    assert four.bytes_per_s < 390e9


def test_an_estimate_is_the_smaller_of_node_and_network_and_uncertain() -> None:
    by_node = expected_busbw(H200, 8, 2, GIB, nic_bytes_per_s=50e9)  # ceiling 750, inside 463.58
    assert by_node is not None and by_node.bytes_per_s == pytest.approx(463.58e9) and not by_node.certain
    by_network = expected_busbw(H200, 8, 2, GIB, nic_bytes_per_s=12.5e9)
    assert by_network is not None and by_network.bytes_per_s == pytest.approx(187.5e9) and not by_network.certain
    assert "100 Gb/s" in by_network.source


@pytest.mark.parametrize(("nodes", "gb_per_s"), [(2, 750), (4, 516.7), (8, 450), (64, 405.6)])
def test_ceiling_of_the_network(nodes: int, gb_per_s: float) -> None:
    assert network_ceiling(8, nodes, 50e9) == pytest.approx(gb_per_s * 1e9, rel=1e-3)


@pytest.mark.parametrize("curve", busbw.MANY_NODES, ids=lambda curve: f"{curve.nodes} x {curve.model}")
def test_measured_figures_keep_below_their_ceiling(curve: busbw.Curve) -> None:
    ceiling = network_ceiling(curve.gpus, curve.nodes, busbw.MANY_NODES_NIC)
    assert all(rate < ceiling for rate in curve.points.values())


@pytest.mark.parametrize("collective", ["all-gather", "reduce-scatter"])
def test_only_all_reduce_exceeds_the_ring(collective: str) -> None:
    measured = expected_busbw(H200, 8, 1, 16 * GIB, collective)
    assert measured is not None and measured.certain and measured.bytes_per_s < 365e9
    estimate = expected_busbw(H100, 8, 1, GIB, collective)
    assert estimate is not None and estimate.bytes_per_s == 370e9 and not estimate.certain
    small = expected_busbw(H200, 8, 1, 16 * MIB, collective)
    assert small is not None and small.bytes_per_s == pytest.approx(219.89e9) and not small.certain


def test_other_collectives_are_unknown() -> None:
    assert expected_busbw(H200, 8, 1, GIB, "all-to-all") is None
    assert expected_busbw(H200, 8, 2, GIB, "all-to-all") is None


def test_wrong_marks_of_other_tools_are_not_here() -> None:
    """A test suite in the wild asks 300, 800 and 900 GB/s of A100, H100 and B200 at 128 MiB and less."""
    for model, wrong in ((A100, 300e9), (H100, 800e9), (B200, 900e9)):
        for size in (64 * MIB, 128 * MIB):
            found = expected_busbw(model, 8, 1, size)
            assert found is not None and found.bytes_per_s < 0.7 * wrong


def test_families_are_rows_of_the_table() -> None:
    assert set(busbw.FAMILY) <= {peak.name for peak in PEAKS}
    assert {curve.model for curve in busbw.ONE_NODE} <= set(busbw.FAMILY.values())
    assert all(curve.source for curve in (*busbw.ONE_NODE, *busbw.MANY_NODES))
