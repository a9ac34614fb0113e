"""The figures of simulated probes: like those of real H100s, the same wherever they are computed."""

from __future__ import annotations

import statistics

import pytest

from mltop.probes.active.all_reduce.collectives import stage_of
from mltop.probes.active.supervisor.request import request_from
from mltop.probes.demo.fleet import build, machine_of
from mltop.probes.demo.probes.collectives import Launcher, Member, World, busbw, collective_times
from mltop.probes.demo.probes.replay import ProbeMachine, device_result

MIB, GIB = 1 << 20, 1 << 30


def members(nodes: int, gpus: int = 8, **wrong: object) -> tuple[Member, ...]:
    """``wrong``: what is wrong with the last node."""
    machines = [ProbeMachine(f"n{number}", number) for number in range(1, nodes)]
    machines.append(ProbeMachine(f"n{nodes}", nodes, **wrong))
    return tuple(Member.of(machine, gpu) for machine in machines for gpu in range(gpus))


@pytest.mark.parametrize(
    ("nodes", "size", "measured"),
    [(1, 64 * MIB, 362), (1, 256 * MIB, 423), (1, GIB, 466), (1, 16 * GIB, 480), (2, 8 * GIB, 440), (8, 8 * GIB, 387)],
)
def test_bus_bandwidths_are_like_measured_ones(nodes: int, size: int, measured: float) -> None:
    assert busbw(members(nodes), "all-reduce", size) / 1e9 == pytest.approx(measured, rel=0.1)


def test_other_collectives_gloo_and_few_ranks_are_slower() -> None:
    whole = busbw(members(1), "all-reduce", GIB)
    assert busbw(members(1), "all-gather", GIB) < 0.8 * whole
    assert busbw(members(1, gpus=4), "all-reduce", GIB) < 0.8 * whole
    assert busbw(members(1), "all-reduce", GIB, "gloo") < 2e9


def test_a_slow_nic_only_matters_between_nodes() -> None:
    assert busbw(members(2, slow_nic=True), "all-reduce", GIB) < 0.5 * busbw(members(2), "all-reduce", GIB)
    assert busbw(members(1, slow_nic=True), "all-reduce", GIB) == busbw(members(1), "all-reduce", GIB)


def test_a_slow_gpu_comes_late_when_ranks_work_and_only_then() -> None:
    group = members(2, slow_gpu=3)
    for works in (True, False):
        times = collective_times(group, "all-reduce", MIB, "nccl", works=works, run="k 1 0")
        medians = [statistics.median(one) for one in times]
        assert (medians[11] < 0.2 * statistics.median(medians)) is works
        assert all(value > 0 for one in times for value in one)


def test_figures_are_the_same_everywhere_but_not_in_every_run() -> None:
    machine = ProbeMachine("n1", 7)
    results = [device_result(one, 2, "matmul", "k1", dtype="bf16") for one in (machine, ProbeMachine("n1", 7))]
    assert results[0] == results[1]
    rates = {device_result(machine, 2, "matmul", f"k{number}", dtype="bf16")["sustained_tflops"] for number in range(5)}
    assert len(rates) > 1 and max(rates) / min(rates) < 1.03


def test_spares_have_what_only_probes_find() -> None:
    nodes = build(15, 2, 8, 1.0, 5.0, spares=4)
    assert [node.name for node in nodes if not node.ranks] == ["sim013", "sim014", "sim015", "sim016"]
    found = {node.name: machine_of(node) for node in nodes}
    assert [name for name, machine in found.items() if machine.slow_gpu is not None] == ["sim013"]
    assert [name for name, machine in found.items() if machine.lost] == ["sim016"]
    slow = [name for name, machine in found.items() if machine.slow_nic]
    assert slow == [node.name for node in nodes if node.faulty] + ["sim014"]
    assert len(found["sim002"].owners) == 8 and found["sim013"].owners == {}
    assert sum(not node.ranks for node in build(4, 1, 8, 1.0, 5.0, spares=9)) == 1, "the job stays the larger part"
    assert sum(not node.ranks for node in build(15, 1, 8, 1.0, 5.0)) == 1


def test_a_launcher_without_an_end_is_ended_by_its_deadline() -> None:
    asked = request_from({"key": "k", "kind": "all_reduce", "total_s": 30.0})
    machine = ProbeMachine("n1", 1)
    launcher = Launcher(machine, asked, 100.0, 1.0, World(lambda name: machine))
    said = [event.event for event in launcher.due(105.0)]
    assert said[0] == "devices" and "listening" in said
    launcher.tell({"tell": "go", "first_rank": 0}, 105.0)
    assert [event.event for event in launcher.due(110.0)] == ["ready"]
    assert not launcher.ended and launcher.next_at == 130.0
    assert [event.why for event in launcher.due(130.0)] == ["not over within 30 s"] and launcher.ended


@pytest.mark.parametrize(
    ("collective", "size", "stage"),
    [
        ("all-reduce", 256 * MIB, "measure 256 MiB"),
        ("all-gather", 32 << 10, "measure all-gather 32 KiB"),
        ("all-reduce", 4 * GIB, "measure 4 GiB"),
    ],
)
def test_stages_are_named_as_the_launcher_names_them(collective: str, size: int, stage: str) -> None:
    assert stage_of(collective, size) == stage
