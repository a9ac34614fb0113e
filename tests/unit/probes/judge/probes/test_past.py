"""What of a report is kept for later comparisons, and that it is found again."""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.judge.probes.compare import against_past, collective_key, group_subject, past_of
from mltop.probes.model.probe import CollectiveResult, CopiesResult, MemoryResult, PairResult, ProbeReport
from tests.builders.matmul_results import BURST, RATE, VERSIONS, cpus, gpu


def kept(*results: Any, **more: Any) -> dict[tuple[str, str], float]:
    return {
        (one.uuid, one.key): one.value for one in past_of(ProbeReport("any", 1700.0, results=list(results), **more))
    }


def test_of_a_gemm_both_rates_are_kept() -> None:
    assert kept(gpu(0)) == {
        ("GPU-n03-0", "matmul bf16 sustained 8192x8192x8192"): RATE,
        ("GPU-n03-0", "matmul bf16 burst"): BURST,
    }
    found = past_of(ProbeReport("matmul", 1700.0, results=[gpu(0)]))
    assert all(one.at == 1700.0 and one.versions == VERSIONS for one in found)


def test_processors_are_those_of_their_node() -> None:
    assert kept(cpus("h01"), cpus("h02")) == {
        ("cpu of h01", "matmul fp32 burst 2 threads"): 0.215,
        ("cpu of h02", "matmul fp32 burst 2 threads"): 0.215,
    }


def test_copies_and_memory() -> None:
    memory = MemoryResult(uuid="GPU-1", size_bytes=1 << 30, copy_bytes_per_s=3e12)
    copies = CopiesResult(
        uuid="GPU-1", size_bytes=1 << 28, to_device_bytes_per_s=5e10, to_host_together_bytes_per_s=4e10
    )
    assert kept(memory, copies) == {
        ("GPU-1", "memory copy 1073741824"): 3e12,
        ("GPU-1", "copies to_device 268435456"): 5e10,
        ("GPU-1", "copies to_host_together 268435456"): 4e10,
    }


def test_of_a_collective_the_nodes_are_the_subject() -> None:
    result = CollectiveResult("all-reduce", "gloo", 1 << 20, 4, ["h02", "h01"], busbw_bytes_per_s=1e9)
    assert kept(result) == {("nodes h[01-02]", "all-reduce gloo 1048576 ranks 4"): 1e9}
    assert group_subject(result) == "nodes h[01-02]"


@pytest.mark.parametrize(
    "result",
    [
        gpu(0, corrupt_iterations=1),
        gpu(0, upload_intact=False),
        gpu(0, burst_tflops=None, sustained_tflops=None),
        MemoryResult(uuid="GPU-1", copy_bytes_per_s=3e12, intact=False),
        CollectiveResult("all-reduce", "gloo", 1, 2, ["a"], busbw_bytes_per_s=1e9, wrong=1),
        CollectiveResult("all-reduce", "gloo", 1, 2, ["a"]),
        PairResult(1, ["a", "b"], 1, 1e9),
    ],
)
def test_what_is_wrong_or_unknown_is_not_kept(result: Any) -> None:
    assert kept(result) == {}


def test_nothing_of_a_simulation_is_kept() -> None:
    assert kept(gpu(0), simulated=True) == {}


def test_what_was_kept_is_found_again() -> None:
    now = gpu(0)
    past = [one for at in range(3) for one in past_of(ProbeReport("matmul", float(at), results=[now]))]
    found = against_past(now.subject, now.key("sustained"), RATE * 0.9, now.versions, past)
    assert (found.slow, found.count) == (True, 3)
    result = CollectiveResult("all-reduce", "nccl", 1 << 30, 8, ["h01"], busbw_bytes_per_s=4e11)
    past = [one for at in range(2) for one in past_of(ProbeReport("all-reduce", float(at), results=[result]))]
    assert against_past(group_subject(result), collective_key(result), 3e11, {}, past).slow is True
