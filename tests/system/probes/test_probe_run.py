"""A probe over many nodes, through a real hub: agents that answer, fail, hang or talk nonsense."""

from __future__ import annotations

import time

import pytest

from mltop.probes.investigate.probing.run import ProbeRun
from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
from mltop.probes.model.probe import PastResult, ProbeReport
from mltop.probes.reach.hub import Hub
from tests.fakes.probing_agents import probing
from tests.hubs import await_state, opened
from tests.waiting import wait_until

NODES = tuple(f"n{number}" for number in range(1, 9))
PATIENT_S = 60.0


class Memory:
    """Of results, for one test."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.kept: list[PastResult] = []

    def past(self) -> list[PastResult]:
        return list(self.kept)

    def keep(self, results: object) -> None:
        self.kept.extend(results)  # type: ignore[call-overload]


def run(hub: Hub, wanted: ProbeWanted, memory: Memory | None = None) -> tuple[ProbeReport, list[ProbeProgress]]:
    told: list[ProbeProgress] = []
    running = ProbeRun(hub, wanted, told.append, memory).start()
    assert running.wait(PATIENT_S), told[-1:]
    assert running.report is not None, running.error
    assert told[-1].finished
    return running.report, told


def failures(report: ProbeReport) -> dict[str, str]:
    return {failure.node: failure.why for failure in report.failures}


def test_matmul_on_all_nodes_names_the_slow_one_and_is_remembered() -> None:
    memory = Memory()
    with opened(probing(*NODES, rates={"n5": 0.7})) as hub:
        report, told = run(hub, ProbeWanted("matmul", dtype="fp32"), memory)
    assert [result.node for result in report.results] == list(NODES)
    assert [suspect.node for suspect in report.verdict.suspects] == ["n5"]
    assert report.failures == []
    assert {device.node for device in told[-1].devices} == set(NODES)
    assert len({past.uuid for past in memory.kept}) == len(NODES)
    assert all(past.at == report.started_at > 0 for past in memory.kept)


def test_what_a_node_says_wrong_is_its_own_failure() -> None:
    behave = {"n2": "garbage", "n3": "no torch"}
    with opened(probing(*NODES, behave=behave)) as hub:
        report, _ = run(hub, ProbeWanted("matmul", dtype="fp32"))
    assert [result.node for result in report.results] == [node for node in NODES if node not in behave]
    why = failures(report)
    assert set(why) == set(behave)
    assert "cannot be read" in why["n2"]
    assert why["n3"] == "no Python with torch"


def test_the_deadline_names_who_was_silent() -> None:
    with opened(probing("n1", "n2", behave={"n2": "silent"})) as hub:
        report, _ = run(hub, ProbeWanted("matmul", dtype="fp32", deadline_s=2.0))
    assert [result.node for result in report.results] == ["n1"]
    assert failures(report) == {"n2": "not done within 2 s: had not begun (not reached yet?)"}


def test_all_reduce_over_all_nodes() -> None:
    with opened(probing(*NODES)) as hub:
        report, _ = run(hub, ProbeWanted("all-reduce", sizes_bytes=(1 << 16, 1 << 20)))
    assert [(result.ranks, result.size_bytes, result.nodes) for result in report.results] == [
        (8, 1 << 16, list(NODES)),
        (8, 1 << 20, list(NODES)),
    ]
    assert report.results[1].busbw_bytes_per_s == pytest.approx(1e9 * 2 * 7 / 8, rel=0.01)
    assert report.verdict.suspects == []
    assert report.command.startswith("torchrun --nnodes=8 --nproc-per-node=1 --rdzv-backend=c10d")


def test_a_first_node_that_cannot_listen_is_passed_over() -> None:
    with opened(probing(*NODES, behave={"n1": "no torch", "n4": "no torch"})) as hub:
        report, _ = run(hub, ProbeWanted("all-reduce", sizes_bytes=(1 << 16,)))
    assert report.results[0].nodes == [node for node in NODES if node not in ("n1", "n4")]
    assert set(failures(report)) == {"n1", "n4"}


def test_a_node_that_dies_or_hangs_in_the_round_is_named() -> None:
    behave = {"n2": "leaves", "n3": "hangs in a round"}
    with opened(probing("n1", "n2", "n3", behave=behave)) as hub:
        report, _ = run(hub, ProbeWanted("all-reduce", sizes_bytes=(1 << 16,), deadline_s=4.0))
    why = failures(report)
    assert why["n2"] == "died: killed (SIGKILL)"
    assert why["n3"] == "n3 does not answer: its launcher or its network is stuck"


def test_the_late_rank_of_a_failed_round_is_named_with_its_last_words() -> None:
    with opened(probing("n1", "n2", "n3", behave={"n2": "late"})) as hub:
        report, told = run(hub, ProbeWanted("all-reduce", sizes_bytes=(1 << 16,)))
    (failure,) = report.failures
    assert (failure.node, failure.rank, failure.stage) == ("n2", 1, "measure 64 KiB")
    assert failure.why.startswith("did not come to the 2nd collective of measure 64 KiB, in which 2 others wait for it")
    assert told[-1].notes == ("the last words",)


def test_states_that_cannot_be_read_are_their_nodes_own_failure() -> None:
    with opened(probing("n1", "n2", behave={"n2": "garbage"})) as hub:
        report, _ = run(hub, ProbeWanted("all-reduce", sizes_bytes=(1 << 16,)))
    assert set(failures(report)) == {"n2"}
    assert failures(report)["n2"].startswith("what it says of its probe cannot be read: ")


def test_nobody_can_take_part() -> None:
    with opened(probing("n1", "n2", behave={"n1": "no torch", "n2": "no torch"})) as hub:
        report, _ = run(hub, ProbeWanted("all-reduce"))
    assert report.results == []
    assert report.verdict.text == "nothing was measured: n[1-2]: no Python with torch"


def test_the_search_by_pairs_finds_the_bad_nodes() -> None:
    nodes = tuple(f"n{number}" for number in range(1, 25))
    with opened(probing(*nodes, rates={"n3": 0.5, "n6": 0.4})) as hub:
        report, _ = run(hub, ProbeWanted("pairs", sizes_bytes=(1 << 20,)))
    assert sorted(suspect.node for suspect in report.verdict.suspects) == ["n3", "n6"]
    assert report.failures == []
    assert len(report.results) < 2 * len(nodes)  # of 276 pairs that there are


def test_round_robin_measures_every_pair_once() -> None:
    with opened(probing(*NODES)) as hub:
        report, _ = run(hub, ProbeWanted("pairs", sizes_bytes=(1 << 20,), round_robin=True))
    assert len({frozenset(result.nodes) for result in report.results}) == len(report.results) == 8 * 7 // 2


def test_a_cancelled_run_ends_soon_and_says_so() -> None:
    told: list[ProbeProgress] = []
    with opened(probing("n1", behave={"n1": "silent"})) as hub:
        await_state(hub, "live")
        running = ProbeRun(hub, ProbeWanted("matmul"), told.append).start()
        wait_until(lambda: told, PATIENT_S, "progress")
        began = time.monotonic()
        running.cancel()
        assert running.wait(PATIENT_S)
        assert time.monotonic() - began < PATIENT_S / 2
    assert told[-1].phase == "cancelled"
    assert running.report is not None
    assert running.report.verdict.text == "cancelled: nothing was measured"


def test_a_node_that_is_not_reached_is_a_failure_of_its_own() -> None:
    from tests.fakes.agents import program

    gone = program("print('No route to host', file=sys.stderr); sys.exit(255)", "n9")
    with opened(probing("n1", "n2"), gone) as hub:
        await_state(hub, "lost", "n9")
        report, _ = run(hub, ProbeWanted("all-reduce", sizes_bytes=(1 << 16,)))
    assert report.results[0].nodes == ["n1", "n2"]
    assert "No route to host" in failures(report)["n9"]
