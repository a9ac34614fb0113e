"""The all-reduce probe's launchers on this machine: rounds of real gloo ranks, and everything that can go wrong."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.investigate.probing.collective import READY_S
from tests.launchers import CPU, Event, Launcher, Launchers, fake_torch, group_of, wait_gone
from tests.waiting import wait_until

MIB = 1 << 20
BOTH = [["h01", "h02"]]
COLLECTIVES = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]
# The busy machine of a test run may stop a process for seconds; a deadline that is to pass is set in its own test.
DEADLINES_S = {"import torch": 120.0, "init": 60.0, "measure": 60.0}


@pytest.fixture(scope="module")
def pair() -> Iterator[Launchers]:
    """Two nodes of two ranks; they outlive every failed round."""
    with Launchers() as launchers:
        launchers.meet({"h01": 2, "h02": 2}, deadlines_s=DEADLINES_S)
        launchers.wait_ready()
        yield launchers


@pytest.fixture(scope="module")
def hurried() -> Iterator[Launchers]:
    """The same with deadlines that are waited for."""
    with Launchers() as launchers:
        launchers.meet({"h01": 2, "h02": 2}, deadlines_s={**DEADLINES_S, "init": 3.0, "measure": 3.0})
        launchers.wait_ready()
        yield launchers


def test_a_node_says_where_it_listens_and_what_it_has(pair: Launchers) -> None:
    assert pair.wait_ready() == ("h01", "h02")
    for number, launcher in enumerate(pair):
        (listening,) = launcher.all("listening")
        data = launcher.wait("ready")["data"]
        assert listening["data"]["port"] > 1023 and listening["data"]["address"] == data["address"]
        assert data["first_rank"] == 2 * number and data["ranks"] == 2
        assert data["threads"] == 1, "ranks are forked from a process with more than one thread"
        assert data["interface"] and data["import_s"] > 0 and data["gloo"] and data["path"].startswith("gloo over TCP")
        assert data["added"] == {"GLOO_SOCKET_IFNAME": data["interface"]}
        stages = [event["stage"] for event in launcher.all("stage")]
        assert stages[0] == "listen" and {"import torch", "join"} <= set(stages)


def test_every_rank_tells_its_times_of_every_size_and_collective(pair: Launchers) -> None:
    sizes = [32 << 10, MIB]
    number = pair.begin_round(BOTH, sizes, collectives=COLLECTIVES, work=True)
    assert pair.wait_round(number) == {name: {"round": number, "group": 0} for name in ("h01", "h02")}
    times = [event for launcher in pair for event in launcher.all("times", round=number)]
    told = {(event["rank"], event["data"]["collective"], event["data"]["size_bytes"]) for event in times}
    assert told == set(itertools.product(range(4), COLLECTIVES, sizes))
    for event in times:
        data = event["data"]
        assert data["rank"] == event["rank"] and data["ranks"] == 4 and data["uuid"] == "cpu"
        assert data["node"] == ("h01" if event["rank"] < 2 else "h02")
        assert data["wrong"] == 0 and data["work_s"] > 0 and min(data["times_s"]) > 0
        assert 5 <= len(data["times_s"]) <= 20
    by_size = {(e["data"]["collective"], e["data"]["size_bytes"], len(e["data"]["times_s"])) for e in times}
    assert len(by_size) == len(COLLECTIVES) * len(sizes), "the ranks did not agree on the number of iterations"


def test_groups_are_apart_and_who_is_in_none_idles(pair: Launchers) -> None:
    number = pair.begin_round([["h02"], ["h01"]], [MIB])
    assert {name: data["group"] for name, data in pair.wait_round(number).items()} == {"h01": 1, "h02": 0}
    for launcher in pair:
        for event in launcher.all("times", round=number):
            assert event["data"]["ranks"] == 2 and event["data"]["rank"] == event["rank"] % 2
            assert event["data"]["work_s"] is None
    number = pair.begin_round([["h02"]], [MIB])
    assert pair.wait_round(number)["h01"] == {"round": number, "idle": True}


def test_a_size_that_does_not_fit_into_memory_is_refused_with_a_sentence(pair: Launchers) -> None:
    number = pair.begin_round(BOTH, [MIB, 1 << 45])
    rounds = pair.wait_round(number)
    assert not any(data.get("failed") for data in rounds.values())
    for launcher in pair:
        refused = launcher.all("refused", round=number)
        assert [event["stage"] for event in refused] == ["measure 32 TiB"]
        assert "32 TiB for each of 2 ranks" in refused[0]["why"] and "available memory" in refused[0]["why"]
        assert {event["data"]["size_bytes"] for event in launcher.all("times", round=number)} == {MIB}


@pytest.mark.parametrize(("ends", "how"), [(signal.SIGKILL, "killed (SIGKILL)"), (signal.SIGABRT, "aborted (SIGABRT)")])
def test_a_dead_rank_is_named_and_the_next_round_goes_on_with_all(
    pair: Launchers, ends: signal.Signals, how: str
) -> None:
    number = pair.begin_round(BOTH, [4 * MIB] * 50, budget_s=5)
    pair["h02"].wait("times", rank=3, round=number)
    os.kill(pair["h02"].ranks()[1], ends)
    rounds = pair.wait_round(number)
    assert all(data["failed"] for data in rounds.values())
    assert pair.result(number).failures == {"h02": f"rank 3: died: {how}"}
    failure = pair.failures()[-1]
    assert (failure.node, failure.rank, failure.stage, failure.why) == ("h02", 3, "measure 4 MiB", f"died: {how}")
    assert ("out of memory" in failure.fix) == (ends == signal.SIGKILL)
    _goes_on(pair)


def test_a_rank_killed_while_others_wait_for_it_in_init_is_named(pair: Launchers) -> None:
    stopped = pair["h02"].ranks()[0]
    os.kill(stopped, signal.SIGSTOP)
    number = pair.begin_round(BOTH, [MIB])
    pair["h01"].wait("stage", stage="init", round=number)
    os.kill(stopped, signal.SIGKILL)
    assert pair.result(number).failures == {"h02": "rank 2: died: killed (SIGKILL)"}
    assert pair.failures()[-1].stage == "init"
    _goes_on(pair)


def test_a_rank_that_dies_between_rounds_is_replaced(pair: Launchers) -> None:
    before = pair["h01"].ranks()
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: before[0] not in pair["h01"].ranks(), what="the end of the rank")
    _goes_on(pair)


def test_a_stopped_rank_is_named_when_the_deadline_of_measure_has_passed(hurried: Launchers) -> None:
    number = hurried.begin_round(BOTH, [4 * MIB] * 50, budget_s=1)
    hurried["h01"].wait("times", rank=1, round=number)
    os.kill(hurried["h01"].ranks()[1], signal.SIGSTOP)
    assert hurried.result(number).failures == {"h01": "rank 1: stopped (SIGSTOP, or a debugger)"}
    assert hurried.failures()[-1].stage == "measure 4 MiB"
    _goes_on(hurried)


def test_a_rank_stopped_before_init_is_named(hurried: Launchers) -> None:
    os.kill(hurried["h02"].ranks()[0], signal.SIGSTOP)
    number = hurried.begin_round(BOTH, [MIB])
    assert hurried.result(number).failures == {"h02": "rank 2: stopped (SIGSTOP, or a debugger)"}
    assert hurried.failures()[-1].stage == "init"
    _goes_on(hurried)


def test_what_a_failed_rank_printed_last_is_a_note(pair: Launchers) -> None:
    number = pair.begin_round(BOTH, [4 * MIB] * 50, budget_s=5)
    pair["h02"].wait("times", rank=3, round=number)
    os.kill(pair["h02"].ranks()[1], signal.SIGSEGV)
    assert pair.result(number).failures == {"h02": "rank 3: died: ended (SIGSEGV)"}


def test_a_launcher_that_stands_still_is_named(hurried: Launchers) -> None:
    number = hurried.begin_round(BOTH, [4 * MIB] * 50, budget_s=1)
    hurried["h01"].wait("times", rank=1, round=number)
    launcher = hurried["h02"].process
    launcher.send_signal(signal.SIGSTOP)
    os.kill(hurried["h02"].ranks()[0], signal.SIGSTOP)
    try:
        wait_until(lambda: hurried.failures(node="h02", rank=None), what="the failure of the node")
    finally:
        launcher.send_signal(signal.SIGCONT)
    why = hurried.result(number).failures["h02"]
    assert why == "h02 does not answer: its launcher or its network is stuck"
    _goes_on(hurried)


def test_a_slow_rank_has_the_shortest_times_and_nothing_stays_after_the_end() -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 3}, env={"MLTOP_PROBE_DELAY": "1:0.03"}, deadlines_s=DEADLINES_S)
        launchers.wait_ready()
        launchers.wait_round(launchers.begin_round([["h01"]], [MIB], budget_s=0.5))
        launcher = launchers["h01"]
        medians = {event["rank"]: statistics.median(event["data"]["times_s"]) for event in launcher.all("times")}
        assert min(medians, key=medians.__getitem__) == 1
        assert len(launcher.group()) == 5  # launcher, store, three ranks
        assert launcher.end() == 0
        assert group_of(launcher.process.pid) == []  # at once


@pytest.mark.parametrize("how", ["stdin", "SIGKILL", "SIGTERM"])
def test_nothing_stays_however_it_ends(how: str) -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 2}, deadlines_s=DEADLINES_S)
        launchers.wait_ready()
        launcher = launchers["h01"]
        launchers.begin_round([["h01"]], [4 * MIB] * 100, budget_s=5)
        launcher.wait("stage", stage="measure 4 MiB")
        if how == "stdin":
            launcher.close_stdin()
        else:
            launcher.process.send_signal(signal.Signals[how])
        assert launcher.wait_end() != 0
        wait_gone(launcher.process.pid)


def test_a_killed_launcher_is_named_and_without_the_store_nobody_goes_on() -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 1, "h02": 1, "h03": 1}, deadlines_s=DEADLINES_S)
        launchers.wait_ready()
        number = launchers.begin_round([["h01", "h02", "h03"]], [4 * MIB] * 50, budget_s=1)
        launchers["h01"].wait("stage", stage="measure 4 MiB")
        os.kill(launchers["h02"].process.pid, signal.SIGKILL)
        wait_gone(launchers["h02"].process.pid)
        assert launchers.result(number).failures == {"h02": "its probe ended"}
        assert [(one.node, one.why) for one in launchers.failures()] == []  # the supervisor says how it ended

        others = launchers.begin_round([["h01", "h03"]], [MIB])
        assert launchers.wait_round(others)["h03"] == {"round": others, "group": 0}
        assert launchers.result(others).failures == {}
        again = launchers.begin_round([["h01", "h02"]], [MIB])
        assert launchers.result(again).failures["h02"] == "its probe ended"

        os.kill(launchers["h01"].process.pid, signal.SIGKILL)
        assert launchers["h01"].wait_end() != 0
        launchers.result(launchers.begin_round([["h03"]], [MIB]))
        assert "h01, which has the store, is gone: its probe ended" in [
            one.why for one in launchers.failures(node="h03")
        ]


def test_who_does_not_come_is_named_and_the_others_go_on() -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 1, "h02": 1}, absent=["h03", "h04"], deadlines_s=DEADLINES_S)
        assert launchers.wait_ready() == ("h01", "h02")
        assert {(one.node, one.why) for one in launchers.failures()} == {
            ("h03", "No route to host"),
            ("h04", "No route to host"),
        }
        number = launchers.begin_round(BOTH, [MIB])
        assert not any(data.get("failed") for data in launchers.wait_round(number).values())


def test_a_first_node_that_fails_leaves_the_store_to_the_next() -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 1, "h02": 1, "h03": 1}, deadlines_s=DEADLINES_S)
        first = launchers["h01"]
        first.wait("listening")
        first.process.kill()
        assert launchers.wait_ready() == ("h02", "h03")
        number = launchers.begin_round([["h02", "h03"]], [MIB])
        assert launchers.wait_round(number)["h03"] == {"round": number, "group": 0}


def test_a_torch_that_does_not_import_is_a_sentence(tmp_path: Path) -> None:
    source = "raise ImportError('libcudart.so.12: cannot open shared object file')"
    launcher = Launcher(
        {"kind": "all_reduce", "node": "h01", "devices": [CPU]}, {"PYTHONPATH": fake_torch(tmp_path, source)}
    )
    failure = launcher.wait("failed")
    assert failure["stage"] == "import torch" and "libcudart.so.12: cannot open" in failure["why"] and failure["fix"]
    assert launcher.wait_end() == 1


# What it does is done by the real torch, after a while.
SLOW_TORCH = """
import sys, time
time.sleep({seconds})
del sys.modules["torch"]
sys.path.remove({folder!r})
import torch
"""


def test_a_torch_that_is_slow_on_every_node_is_waited_for(tmp_path: Path) -> None:
    """As from a cold file system that all of them share."""
    folder = fake_torch(tmp_path, SLOW_TORCH.format(seconds=READY_S + 2.0, folder=str(tmp_path)))
    with Launchers() as launchers:
        launchers.meet({"h01": 1, "h02": 1}, deadlines_s=DEADLINES_S, env={"PYTHONPATH": folder})
        assert launchers.wait_ready() == ("h01", "h02")


def test_a_torch_without_nccl_is_a_sentence() -> None:
    gpu = {"uuid": "GPU-0", "index": 0, "kind": "gpu"}
    order: Event = {"kind": "all_reduce", "node": "h01", "devices": [gpu], "options": {"backend": "nccl"}}
    launcher = Launcher({**order, "deadlines_s": DEADLINES_S})
    failure = launcher.wait("failed")
    assert "was built without nccl" in failure["why"] and failure["stage"] == "import torch"
    assert launcher.wait_end() == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "mpi"}, "mpi is no backend"),
        ({"backend": "nccl", "ranks": 2}, "nccl needs GPUs"),
    ],
)
def test_an_order_that_cannot_be_is_refused(options: Event, words: str) -> None:
    launcher = Launcher({"kind": "all_reduce", "node": "h01", "devices": [CPU], "options": options})
    assert words in launcher.wait("refused")["why"]
    assert launcher.wait_end() == 2


def _goes_on(launchers: Launchers) -> None:
    number = launchers.begin_round(BOTH, [MIB])
    assert launchers.wait_round(number) == {name: {"round": number, "group": 0} for name in ("h01", "h02")}
    times = [event["rank"] for launcher in launchers for event in launcher.all("times", round=number)]
    assert sorted(times) == [0, 1, 2, 3]
