"""Which link between host and GPUs, or between GPUs, is slow; healthy inputs next to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mltop.probes.judge.probes.transfers import JUDGES
from mltop.probes.model.probe import CopiesResult, PastResult, PeerCopy, ProbeVerdict
from tests.builders.copies_results import L40S, Machines, earlier, uuid_of, ways_of


def judge_copies(results: Sequence[CopiesResult], past: Sequence[PastResult] = ()) -> ProbeVerdict:
    return JUDGES["copies"].judge(results, past)


def accused(verdict: ProbeVerdict) -> list[tuple[str, int | None]]:
    return [(one.node, one.gpu) for one in verdict.suspects]


def with_one(gpu: int, **fields: object) -> list[CopiesResult]:
    """A node of eight of which one differs."""
    machines = Machines()
    return [machines.copies(index, **(fields if index == gpu else {})) for index in range(8)]


def test_a_healthy_node_accuses_nobody() -> None:
    verdict = judge_copies(Machines().node())
    assert verdict.suspects == []
    assert verdict.text.startswith("8 GPUs alike at 51") and "to the host" in verdict.text


@pytest.mark.parametrize("seed", range(30))
def test_healthy_nodes_accuse_nobody(seed: int) -> None:
    machines = Machines(seed, jitter=0.01)
    nodes = [result for node in range(5) for result in machines.node(f"n{node}")]
    assert judge_copies(nodes).suspects == []


@pytest.mark.parametrize(
    ("gen", "width", "rate", "words"),
    [
        (3, 8, 6.5e9, "PCIe gen 3 x8 instead of gen 5 x16"),
        (4, 16, 26e9, "PCIe gen 4 x16 instead of gen 5 x16"),
        (5, 8, 26e9, "PCIe gen 5 x8 instead of gen 5 x16"),
        (1, 16, 3.5e9, "PCIe gen 1 x16 instead of gen 5 x16"),
    ],
)
def test_a_link_below_its_best_is_the_reason(gen: int, width: int, rate: float, words: str) -> None:
    verdict = judge_copies(with_one(5, gen=gen, width=width, to_device=rate, to_host=rate))
    assert accused(verdict) == [("n1", 5)]
    assert verdict.suspects[0].uuid == uuid_of("n1", 5)
    assert words in verdict.suspects[0].reason and "both ways" in verdict.suspects[0].reason
    assert words in verdict.text and "GPU 5 on n1 is" in verdict.text
    assert "reseat" in verdict.suspects[0].action


def test_a_link_below_its_best_is_named_also_where_nothing_tells_what_is_usual() -> None:
    alone = Machines().copies(0, gpus=1, gen=3, width=8, to_device=6.5e9, to_host=6.5e9)
    verdict = judge_copies([alone])
    assert accused(verdict) == [("n1", 0)] and "copies over PCIe gen 3 x8" in verdict.text
    healthy = judge_copies([Machines().copies(0, gpus=1)])
    assert healthy.suspects == [] and healthy.text.startswith("GPU 0 on n1: 51")
    assert "nothing to compare it with" in healthy.text


def test_a_link_below_its_best_on_all_gpus_is_how_the_machine_is_built() -> None:
    verdict = judge_copies(Machines().node(gen=4, to_device=26e9, to_host=26e9))
    assert verdict.suspects == []
    assert any("all alike" in line and "gen 4 x16 instead of gen 5 x16" in line for line in verdict.details)


def test_a_link_whose_best_is_unknown_is_compared_with_the_others() -> None:
    machines = Machines()
    results = [
        machines.copies(
            gpu, pcie_gen_max=None, pcie_width_max=None, **({"gen": 4, "to_device": 26e9} if gpu == 2 else {})
        )
        for gpu in range(8)
    ]
    verdict = judge_copies(results)
    assert accused(verdict) == [("n1", 2)]
    assert "PCIe gen 4 x16 (others gen 5 x16)" in verdict.suspects[0].reason


def test_the_pcie_link_of_grace_explains_nothing() -> None:
    results = [replace(one, name="NVIDIA GB200", pci_device="", peers=[]) for one in with_one(3, gen=1, width=1)]
    assert judge_copies(results).suspects == []


@pytest.mark.parametrize(("way", "words"), [("to_device", "to the GPU only"), ("to_host", "to the host only")])
def test_one_slow_direction_is_named(way: str, words: str) -> None:
    verdict = judge_copies(with_one(5, **{way: 20e9}))
    assert accused(verdict) == [("n1", 5)]
    assert words in verdict.suspects[0].reason and "its link is at its best" in verdict.suspects[0].reason


def test_two_directions_of_a_lonely_gpu_are_compared_with_each_other() -> None:
    verdict = judge_copies([Machines().copies(0, gpus=1, to_host=20e9)])
    assert verdict.suspects == []
    assert any("to the host only 3" in line for line in verdict.details)
    healthy = judge_copies([Machines().copies(0, gpus=1)])
    assert not any("only" in line for line in healthy.details)


def test_slow_only_while_all_copy_points_at_what_is_shared() -> None:
    verdict = judge_copies(with_one(5, to_device_together=20e9, to_host_together=20e9))
    assert accused(verdict) == [("n1", 5)]
    assert "only while all GPUs copy" in verdict.suspects[0].reason
    assert "shares with other GPUs is slow (NUMA node 1)" in verdict.suspects[0].reason


def test_rates_while_all_copy_are_compared_among_nodes_with_as_many_gpus() -> None:
    machines = Machines()
    two = [result for node in range(6) for result in machines.node(f"s{node}", 2, to_device_together=51e9)]
    eight = machines.node(to_device_together=30e9)
    assert judge_copies([*two, *eight]).suspects == []


def test_memory_of_another_socket_is_compared_with_its_like_and_told() -> None:
    machines = Machines()
    far = {"near": False, "to_device": 33e9, "to_host": 30e9, "to_device_together": 20e9, "to_host_together": 20e9}
    results = [machines.copies(gpu, **(far if gpu >= 6 else {})) for gpu in range(8)]
    verdict = judge_copies(results)
    assert verdict.suspects == []
    assert any("GPUs 6-7 on n1" in line and "another NUMA node" in line for line in verdict.details)


def test_its_own_history_comes_first() -> None:
    result = Machines().copies(0, gpus=1, to_device=47e9)
    past = earlier(result.uuid, result.key("to_device"), 51.5e9)
    verdict = judge_copies([result], past)
    assert accused(verdict) == [("n1", 0)] and "its own last 5 results" in verdict.suspects[0].reason
    assert judge_copies([result], earlier(result.uuid, result.key("to_device"), 47e9)).suspects == []


def test_damaged_copies_are_named_first() -> None:
    verdict = judge_copies(with_one(5, intact=False))
    assert accused(verdict) == [("n1", 5)]
    assert verdict.text.startswith("GPU 5 on n1 damages what is copied to it and back")


def test_the_table_informs_and_never_accuses() -> None:
    verdict = judge_copies(Machines().node(to_device=35e9))
    assert verdict.suspects == []
    assert any("of 51.0 GB/s (measured on PCIe gen 5 x16); the CPU" in line for line in verdict.details)
    healthy = judge_copies(Machines().node())
    assert not any("difference" in line for line in healthy.details)


def test_all_slow_ways_of_one_gpu_are_that_gpu() -> None:
    for gpus in (4, 8):
        results = Machines().node(gpus=gpus)
        for copy in ways_of(results, 3):
            copy.bytes_per_s = 190e9
        verdict = judge_copies(results)
        assert accused(verdict) == [("n1", 3)], gpus
        assert "copies with other GPUs: 49 % slower" in verdict.suspects[0].reason


def test_a_gpu_that_only_sends_slowly() -> None:
    results = Machines().node()
    for copy in results[3].peers:
        copy.bytes_per_s = 100e9
    verdict = judge_copies(results)
    assert accused(verdict) == [("n1", 3)]
    assert "copies to 7 of 7 other GPUs" in verdict.suspects[0].reason


def test_one_slow_link_is_that_link() -> None:
    results = Machines().node()
    for copy in ways_of(results, 1, 4):
        copy.bytes_per_s = 100e9
    verdict = judge_copies(results)
    assert accused(verdict) == [("n1", None)]
    assert verdict.suspects[0].reason.startswith("between GPU 1 and GPU 4: 73 % slower")


def test_one_direction_of_a_link() -> None:
    results = Machines().node()
    results[1].peers[3].bytes_per_s = 100e9  # to GPU 4
    verdict = judge_copies(results)
    assert verdict.suspects[0].reason.startswith("GPU 1 to GPU 4: ")


def test_a_link_that_goes_through_host_memory() -> None:
    results = Machines().node()
    for copy in ways_of(results, 1, 4):
        copy.direct, copy.bytes_per_s = False, 39e9
    verdict = judge_copies(results)
    assert accused(verdict) == [("n1", None)]
    assert "through host memory (39.0 GB/s), others are direct" in verdict.text
    for copy in ways_of(results):
        copy.direct = False
    all_indirect = judge_copies(results)
    assert all_indirect.suspects == []
    assert any("no GPU reaches another one's memory directly" in line for line in all_indirect.details)


def slow_sockets(node: str) -> list[CopiesResult]:
    """A machine without NVLink: GPUs of the other socket are reached more slowly."""
    results = [replace(one, name=L40S, pci_device="26b9") for one in Machines().node(node, peer=26e9)]
    for result in results:
        for copy in result.peers:
            if (result.gpu or 0) // 4 != copy.to_gpu // 4:
                copy.bytes_per_s = 12e9
    return results


def test_ways_that_are_built_differently_are_no_fault() -> None:
    verdict = judge_copies(slow_sockets("n1"))
    assert verdict.suspects == []
    single = slow_sockets("n1")
    for copy in ways_of(single, 1, 2):
        copy.bytes_per_s = 6e9
    alone = judge_copies(single)
    assert alone.suspects == [] and any("may be built so" in line for line in alone.details)


def test_the_same_way_on_like_nodes_tells_which_is_slow() -> None:
    results = [result for node in range(5) for result in slow_sockets(f"n{node}")]
    assert judge_copies(results).suspects == []
    for copy in ways_of([result for result in results if result.node == "n2"], 1, 2):
        copy.bytes_per_s = 6e9
    verdict = judge_copies(results)
    assert accused(verdict) == [("n2", None)]
    assert "between GPU 1 and GPU 2" in verdict.text and "the same way on like nodes" in verdict.text


def test_what_did_not_end_or_arrived_damaged() -> None:
    results = Machines().node()
    results[1].peers[3] = PeerCopy(4, why="a copy did not end within 15 s")
    verdict = judge_copies(results)
    assert accused(verdict) == [("n1", None)] and "GPU 1 to GPU 4: a copy did not end within 15 s" in verdict.text
    results = Machines().node()
    results[2].peers[0].intact = False
    assert "GPU 2 to GPU 0: what arrives is damaged" in judge_copies(results).text


def test_two_faults_of_a_node_are_both_named() -> None:
    results = with_one(6, gen=4, width=8, to_device=13e9, to_host=13e9)
    for copy in ways_of(results, 0, 1):
        copy.bytes_per_s = 90e9
    assert accused(judge_copies(results)) == [("n1", 6), ("n1", None)]


def test_nothing_measured() -> None:
    assert judge_copies([]).text == "nothing was measured"
    empty = CopiesResult("n1", 0, uuid="GPU-x")
    assert judge_copies([empty]).suspects == []


def test_one_gpu_among_a_thousand() -> None:
    machines = Machines()
    results = [result for node in range(128) for result in machines.node(f"n{node:03}")]
    for copy in ways_of([one for one in results if one.node == "n077"], 2):
        copy.bytes_per_s = 100e9
    assert accused(judge_copies(results)) == [("n077", 2)]
