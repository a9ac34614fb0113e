"""The all-reduce probe's launchers on this machine: rounds of real gloo ranks, and everything that can go wrong."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launchers import CPU, KEY, Event, Launcher, Launchers, fake_torch, group_of, wait_gone
from tests.waiting import wait_until

MIB = 1 << 20
BOTH = [["h01", "h02"]]
COLLECTIVES = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]
_rounds = itertools.count(1)
# The busy machine of a test run may stop a process for seconds; a deadline that is to pass is set in its own test.
DEADLINES_S = {"import torch": 120.0, "init": 60.0, "measure": 60.0}


@pytest.fixture(scope="module")
def pair() -> Iterator[Launchers]:
    """Two nodes of two ranks; they outlive every failed round."""
    with Launchers() as launchers:
        launchers.meet({"h01": 2, "h02": 2}, deadlines_s=DEADLINES_S, join_s=60)
        launchers.wait_ready()
        yield launchers


@pytest.fixture(scope="module")
def hurried() -> Iterator[Launchers]:
    """The same with deadlines that are waited for."""
    with Launchers() as launchers:
        launchers.meet({"h01": 2, "h02": 2}, deadlines_s={**DEADLINES_S, "init": 3.0, "measure": 3.0}, join_s=60)
        launchers.wait_ready()
        yield launchers


def test_a_node_says_where_it_listens_and_what_it_has(pair: Launchers) -> None:
    listening = pair["h01"].all("listening")
    assert len(listening) == 1 and listening[0]["data"]["port"] > 1023 and listening[0]["data"]["addresses"]
    assert not pair["h02"].all("listening")
    for number, launcher in enumerate(pair):
        data = launcher.wait("ready")["data"]
        assert data["joined"] == ["h01", "h02"] and data["first_rank"] == 2 * number and data["ranks"] == 2
        assert data["threads"] == 1, "ranks are forked from a process with more than one thread"
        assert data["interface"] and data["import_s"] > 0 and data["gloo"] and data["path"].startswith("gloo over TCP")
        assert data["added"] == {"GLOO_SOCKET_IFNAME": data["interface"]}
        stages = [event["stage"] for event in launcher.all("stage")]
        assert stages[0] == "listen" and {"import torch", "join"} <= set(stages)


def test_every_rank_tells_its_times_of_every_size_and_collective(pair: Launchers) -> None:
    number = next(_rounds)
    sizes = [32 << 10, MIB]
    pair.tell_round(number, BOTH, sizes, collectives=COLLECTIVES, work=True)
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
    number = next(_rounds)
    pair.tell_round(number, [["h02"], ["h01"]], [MIB])
    assert {name: data["group"] for name, data in pair.wait_round(number).items()} == {"h01": 1, "h02": 0}
    for launcher in pair:
        for event in launcher.all("times", round=number):
            assert event["data"]["ranks"] == 2 and event["data"]["rank"] == event["rank"] % 2
            assert event["data"]["work_s"] is None
    number = next(_rounds)
    pair.tell_round(number, [["h02"]], [MIB])
    assert pair.wait_round(number)["h01"] == {"round": number, "idle": True}


def test_a_round_is_told_once(pair: Launchers) -> None:
    number = next(_rounds)
    pair.tell_round(number, BOTH, [MIB])
    pair.wait_round(number)
    pair["h01"].tell({"tell": "round", "round": number, "groups": BOTH, "sizes_bytes": [MIB]})
    assert "told before" in pair["h01"].wait("failed", round=number)["why"]


def test_a_size_that_does_not_fit_into_memory_is_refused_with_a_sentence(pair: Launchers) -> None:
    number = next(_rounds)
    pair.tell_round(number, BOTH, [MIB, 1 << 45])
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
    number = next(_rounds)
    pair.tell_round(number, BOTH, [4 * MIB] * 50, budget_s=5)
    pair["h02"].wait("times", rank=3, round=number)
    os.kill(pair["h02"].ranks()[1], ends)
    rounds = pair.wait_round(number)
    failures = [event for launcher in pair for event in launcher.all("failed", round=number)]
    assert [(event["rank"], event["stage"], event["why"]) for event in failures] == [
        (3, "measure 4 MiB", f"died: {how}")
    ]
    assert ("out of memory" in failures[0].get("fix", "")) == (ends == signal.SIGKILL)
    for data in rounds.values():
        assert data["failed"] and [(cause["node"], cause["rank"]) for cause in data["causes"]] == [("h02", 3)]
    _goes_on(pair)


def test_a_rank_killed_while_others_wait_for_it_in_init_is_named(pair: Launchers) -> None:
    number = next(_rounds)
    stopped = pair["h02"].ranks()[0]
    os.kill(stopped, signal.SIGSTOP)
    pair.tell_round(number, BOTH, [MIB])
    pair["h01"].wait("stage", stage="init", round=number)
    os.kill(stopped, signal.SIGKILL)
    pair.wait_round(number)
    failures = [event for launcher in pair for event in launcher.all("failed", round=number)]
    assert [(event["rank"], event["stage"]) for event in failures] == [(2, "init")]
    assert failures[0]["why"] == "died: killed (SIGKILL)"
    _goes_on(pair)


def test_a_rank_that_dies_between_rounds_is_replaced(pair: Launchers) -> None:
    before = pair["h01"].ranks()
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: before[0] not in pair["h01"].ranks(), what="the end of the rank")
    _goes_on(pair)


def test_a_stopped_rank_is_named_when_the_deadline_of_measure_has_passed(hurried: Launchers) -> None:
    number = next(_rounds)
    hurried.tell_round(number, BOTH, [4 * MIB] * 50, budget_s=1)
    hurried["h01"].wait("times", rank=1, round=number)
    os.kill(hurried["h01"].ranks()[1], signal.SIGSTOP)
    hurried.wait_round(number)
    failures = [event for launcher in hurried for event in launcher.all("failed", round=number)]
    assert [(event["rank"], event["stage"]) for event in failures] == [(1, "measure 4 MiB")]
    assert failures[0]["why"] == "stopped (SIGSTOP, or a debugger)"
    _goes_on(hurried)


def test_a_rank_stopped_before_init_is_named(hurried: Launchers) -> None:
    number = next(_rounds)
    os.kill(hurried["h02"].ranks()[0], signal.SIGSTOP)
    hurried.tell_round(number, BOTH, [MIB])
    hurried.wait_round(number)
    failures = [event for launcher in hurried for event in launcher.all("failed", round=number)]
    assert [(event["rank"], event["stage"]) for event in failures] == [(2, "init")]
    assert "stopped (SIGSTOP" in failures[0]["why"]


def test_a_node_that_is_not_told_of_the_round_is_named(hurried: Launchers) -> None:
    number = next(_rounds)
    told = {"tell": "round", "round": number, "groups": BOTH, "sizes_bytes": [MIB], "budget_s": 0.2}
    hurried["h01"].tell(told)
    data = hurried["h01"].wait("round", round=number)["data"]
    assert {cause["node"] for cause in data["causes"]} == {"h02"}
    assert {cause["why"] for cause in data["causes"]} == {"its node has not begun the round"}
    hurried["h02"].tell(told)
    assert "gave round" in hurried["h02"].wait("failed", round=number)["why"]
    _goes_on(hurried)


def test_a_slow_rank_has_the_shortest_times_and_nothing_stays_after_the_end() -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 3}, env={"MLTOP_PROBE_DELAY": "1:0.03"}, deadlines_s=DEADLINES_S)
        launchers.wait_ready()
        launchers.tell_round(1, [["h01"]], [MIB], budget_s=0.5)
        launchers.wait_round(1)
        launcher = launchers["h01"]
        medians = {event["rank"]: statistics.median(event["data"]["times_s"]) for event in launcher.all("times")}
        assert min(medians, key=medians.__getitem__) == 1
        assert len(launcher.group()) == 6  # launcher, importer, store, three ranks
        assert launcher.end() == 0
        assert group_of(launcher.process.pid) == []  # at once


@pytest.mark.parametrize("how", ["stdin", "SIGKILL", "SIGTERM"])
def test_nothing_stays_however_it_ends(how: str) -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 2}, deadlines_s=DEADLINES_S)
        launchers.wait_ready()
        launcher = launchers["h01"]
        launchers.tell_round(1, [["h01"]], [4 * MIB] * 100, budget_s=5)
        launcher.wait("stage", stage="measure 4 MiB")
        if how == "stdin":
            launcher.close_stdin()
        else:
            launcher.process.send_signal(signal.Signals[how])
        assert launcher.wait_end() != 0
        wait_gone(launcher.process.pid)


def test_a_killed_launcher_is_named_and_without_the_leader_nobody_goes_on() -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 1, "h02": 1, "h03": 1}, deadlines_s=DEADLINES_S, join_s=60)
        launchers.wait_ready()
        launchers.tell_round(1, [["h01", "h02", "h03"]], [4 * MIB] * 50, budget_s=1)
        launchers["h01"].wait("stage", stage="measure 4 MiB")
        os.kill(launchers["h02"].process.pid, signal.SIGKILL)
        wait_gone(launchers["h02"].process.pid)
        launchers["h03"].wait("round", round=1)
        launchers["h01"].wait("round", round=1)
        failures = [event for name in ("h01", "h03") for event in launchers[name].all("failed")]
        assert [event["why"] for event in failures] == ["h02 is gone: its launcher has ended"]
        assert failures[0]["data"]["node"] == "h02"

        told = {"tell": "round", "round": 2, "groups": [["h01", "h03"]], "sizes_bytes": [MIB]}
        for name in ("h01", "h03"):
            launchers[name].tell(told)
        assert launchers["h03"].wait("round", round=2)["data"] == {"round": 2, "group": 0}
        launchers["h01"].tell({**told, "round": 3, "groups": [["h01", "h02"]]})
        assert "h02 did not join, or has ended" in launchers["h01"].wait("failed", stage="init")["why"]

        os.kill(launchers["h01"].process.pid, signal.SIGKILL)
        assert launchers["h03"].wait("failed")["why"] == "h01, the leader, is gone: its connection closed"
        assert launchers["h03"].wait_end() == 1
        for launcher in launchers:
            wait_gone(launcher.process.pid)


def test_who_does_not_come_is_named_and_the_others_go_on() -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 1, "h02": 1}, absent=["h03", "h04"], deadlines_s=DEADLINES_S, join_s=3)
        why = launchers["h01"].wait("failed", stage="join")
        assert why["why"] == "2 of 4 nodes joined within 3 s; waiting for h03, h04"
        launchers.wait_ready()
        assert launchers["h02"].wait("ready")["data"]["joined"] == ["h01", "h02"]
        launchers.tell_round(1, BOTH, [MIB])
        assert not any(data.get("failed") for data in launchers.wait_round(1).values())
        launchers.tell_round(2, [["h01", "h02", "h03"]], [MIB])
        assert "h03 did not join" in launchers["h01"].wait("failed", stage="init")["why"]


def test_who_comes_too_late_or_to_the_wrong_place_is_told_why(tmp_path: Path) -> None:
    hangs = {"PYTHONPATH": fake_torch(tmp_path, "import signal; signal.pause()")}
    with Launchers() as launchers:
        launchers.meet({"h01": 1}, absent=["h02"], env=hangs, deadlines_s=DEADLINES_S, join_s=0.2)
        launchers["h01"].wait("failed", stage="join")
        told = launchers["h01"].wait("listening")["data"]
        assert "began without it" in _joins("h02", told, hangs)
        assert "h09 is not one of the nodes" in _joins("h09", told, hangs)
        assert "something else answers there" in _joins("h02", told, hangs, key="of another probe")
    (place,) = told["addresses"]
    refused = _joins("h02", told, hangs)
    assert f"cannot connect to h01 ({place['address']}) port {told['port']}: refused" in refused


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12: cannot open"),
        (
            "import os, sys; print('illegal instruction', file=sys.stderr); os._exit(3)",
            "died: exit code 3, illegal instruction",
        ),
    ],
)
def test_a_torch_that_does_not_import_is_a_sentence(tmp_path: Path, source: str, words: str) -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 2}, env={"PYTHONPATH": fake_torch(tmp_path, source)})
        failure = launchers["h01"].wait("failed")
        assert failure["stage"] == "import torch" and words in failure["why"] and failure["fix"]
        assert launchers["h01"].wait_end() == 1
        assert group_of(launchers["h01"].process.pid) == []


def test_an_import_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    hangs = {"PYTHONPATH": fake_torch(tmp_path, "import signal; signal.pause()")}
    with Launchers() as launchers:
        launchers.meet({"h01": 2}, env=hangs, deadlines_s={"import torch": 1.0})
        failure = launchers["h01"].wait("failed")
        assert failure["why"] == "torch was not imported within 1 s" and failure["stage"] == "import torch"
        assert launchers["h01"].wait_end() == 1
        assert group_of(launchers["h01"].process.pid) == []


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
        ({"nodes": ["h02"]}, "must be different and contain 'h01'"),
    ],
)
def test_an_order_that_cannot_be_is_refused(options: Event, words: str) -> None:
    launcher = Launcher({"kind": "all_reduce", "node": "h01", "devices": [CPU], "options": options})
    assert words in launcher.wait("refused")["why"]
    assert launcher.wait_end() == 2


def _goes_on(launchers: Launchers) -> None:
    number = next(_rounds)
    launchers.tell_round(number, BOTH, [MIB])
    assert launchers.wait_round(number) == {name: {"round": number, "group": 0} for name in ("h01", "h02")}
    times = [event["rank"] for launcher in launchers for event in launcher.all("times", round=number)]
    assert sorted(times) == [0, 1, 2, 3]


def _joins(name: str, told: Event, env: dict[str, str], key: str = KEY) -> str:
    """What a launcher says that comes to where h01 said that it listens, and cannot stay."""
    options: Event = {"nodes": ["h01", name], "leader": False, "leader_node": "h01", "port": told["port"], "key": key}
    options["addresses"] = [one["address"] for one in told["addresses"]]
    order: Event = {"kind": "all_reduce", "node": name, "devices": [CPU]}
    launcher = Launcher({**order, "options": options}, env)
    why = str(launcher.wait("failed", stage="join")["why"])
    assert launcher.wait_end() == 1
    return why
