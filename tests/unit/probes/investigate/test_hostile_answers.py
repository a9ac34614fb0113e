"""What a node answers when it is asked (doctor, kernel, a probe): anything, and it costs that node only."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from mltop.probes.agent.protocol import Message
from mltop.probes.investigate.probing.board import MOST_OF_A_NODE, Board, event_of
from mltop.probes.investigate.probing.member import Member, cannot_of, place_of, readiness_of
from mltop.probes.investigate.probing.report import Measured, judged, torchrun_command
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.judge.kernel_lines import MOST_LINES, merge
from mltop.probes.model.probe import ProbeEvent, ProbeReport
from mltop.probes.model.vocabulary import ProbeKind
from mltop.tui.commands.doctor import Check, answer_of
from mltop.tui.report.check import print_kernel
from mltop.tui.report.probe import print_probe
from tests.builders.matmul_results import gpu

GOOD = {"name": "nvml", "state": "ok", "why": "answers", "fix": ""}
WILD: list[Any] = [None, 0, -1, 1e308, 10**400, "", "x" * 100_000, [], {}, [[]], {"a": {}}, True]


def checks_of(data: dict[str, Any]) -> list[Check] | str:
    return answer_of(Message("done", data=data))


def test_a_doctors_answer_is_read_or_it_is_said_that_it_cannot_be() -> None:
    assert checks_of({"checks": [GOOD]}) == [GOOD]
    assert checks_of({"checks": [{**GOOD, "more": 5}]}) == [GOOD]
    for wild in WILD:
        for data in ({"checks": wild}, {"checks": [wild]}, {"checks": [{**GOOD, "why": wild}]}, {"other": wild}):
            found = checks_of(data)
            assert found in ("its answer cannot be read", []) or isinstance(found, list)
    assert checks_of({"checks": [GOOD] * 10_000}) == "its answer cannot be read"
    assert checks_of({"checks": [{**GOOD, "fix": None}]}) == "its answer cannot be read"


@pytest.mark.parametrize("name", ["pattern", "level", "count", "first_at", "last_at", "example"])
@pytest.mark.parametrize("wild", WILD)
def test_kernel_lines_of_any_shape_are_merged_and_printed(name: str, wild: Any) -> None:
    line = {"pattern": "a #", "level": 3, "count": 1, "first_at": 5.0, "last_at": 6.0, "example": "a 1"}
    lines = merge({"evil": [{**line, name: wild}], "well": [line]})
    assert "well" in [node for found in lines for node in found.nodes]
    print_kernel(lines, lines, Console(file=StringIO(), width=80), most=10, nodes=2, now=1e9)


def test_kernel_lines_of_one_node_are_bounded() -> None:
    lines = merge({"evil": [{"pattern": f"line {number}"} for number in range(MOST_LINES + 10)]})
    assert len(lines) == MOST_LINES


FIELDS = ["event", "device", "rank", "stage", "fraction", "deadline_s", "text", "why", "fix", "data"]
EVENTS = ["devices", "stage", "result", "failed", "refused", "note", "times", "ready", "round", "listening", "?"]


@pytest.mark.parametrize("kind", EVENTS)
def test_events_of_any_shape_are_taken_or_left(kind: str) -> None:
    board = Board()
    for name in FIELDS:
        for wild in WILD:
            event = event_of({"event": kind, "device": "GPU-1", "data": {"devices": wild, "device": wild}, name: wild})
            if event is not None:
                board.take("evil", event)
    assert all(device.fraction is None or 0.0 <= device.fraction <= 1.0 for device in board.devices())
    assert all(device.rank is None or device.rank >= 0 for device in board.devices())
    _ = board.kinds("evil"), board.simulated


def test_a_node_fills_no_memory_with_devices_results_and_failures() -> None:
    board = Board()
    for number in range(5000):
        for kind in ("result", "failed", "refused"):
            board.take("evil", ProbeEvent(kind, device=f"GPU-{number}", why="x"))
        board.take("evil", ProbeEvent("note", text=f"remark {number}", data={"remark": True}))
    board.take("well", ProbeEvent("result", device="GPU-0", data={"a": 1}))
    assert len(board.devices()) == MOST_OF_A_NODE + 1
    assert [result.node for result in board.results].count("evil") == MOST_OF_A_NODE
    assert len(board.failures) == MOST_OF_A_NODE
    assert len(board.remarks) == MOST_OF_A_NODE
    assert board.results[-1].node == "well"


def test_a_device_with_a_number_that_none_has_is_left_out_and_its_failure_is_the_nodes() -> None:
    board = Board("memory")
    for device in ({"uuid": "GPU-1", "index": -5}, {"uuid": "GPU-2", "index": 1}):
        board.take("evil", ProbeEvent("refused", device=device["uuid"], why="in use", data={"device": device}))
    assert [device.gpu for device in board.devices()] == [None, 1]
    report = judged(ProbeWanted("memory"), Measured(board, None, [], [], ["evil"]))
    console = Console(file=StringIO(), width=80)
    print_probe(report, [], console)
    assert "nothing was measured: evil: in use" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "why"), [("memory", "no device was found"), ("all-reduce", "fewer than two ranks took part")]
)
def test_why_nothing_was_measured_where_nobody_says_it(kind: ProbeKind, why: str) -> None:
    report = judged(ProbeWanted(kind), Measured(Board(kind), None, [], [], ["n1"]))
    assert report.verdict.text == f"nothing was measured: {why}"


def measured(*results: tuple[str, dict[str, Any]]) -> ProbeReport:
    board = Board()
    for node, data in results:
        board.take(node, ProbeEvent("result", device=str(data.get("uuid", "")), data=data))
    return judged(ProbeWanted("matmul"), Measured(board, None, [], [], ["evil", "well"]))


def as_json(result: Any) -> dict[str, Any]:
    import json

    from mltop.probes.model import to_json

    made: dict[str, Any] = json.loads(to_json(result))
    return made


@pytest.mark.parametrize("name", sorted(as_json(gpu(0))))
def test_a_result_with_any_figure_costs_its_own_node(name: str) -> None:
    good = as_json(gpu(0, "well"))
    for wild in [*WILD, [10**30], {"a": 10**30}, [-(10**9)], [{"name": "x", "seconds": 1e308}]]:
        report = measured(("evil", {**as_json(gpu(1, "evil")), name: wild}), ("well", good))
        assert "well" in [result.node for result in report.results]
        print_probe(report, [], Console(file=StringIO(), width=80), verbose=True)


def test_what_is_refused_of_a_result_is_said() -> None:
    report = measured(("evil", {**as_json(gpu(1, "evil")), "burst_tflops": 1e308}), ("well", as_json(gpu(0, "well"))))
    (failure,) = report.failures
    assert failure.node == "evil"
    assert "burst_tflops is 1e+308" in failure.why


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"address": address} for address in ("h01; reboot", "10.0.0.1 -x", None, 5, "10.0.0.256")],
        *[{"port": port} for port in (0, -1, 70_000, "22", None, 10**30)],
        *[{"ranks": ranks} for ranks in (0, -1, 10**9, "8", None)],
    ],
)
def test_where_a_launcher_listens_is_an_address_a_port_and_ranks(wrong: dict[str, Any]) -> None:
    good = {"address": "10.0.0.1", "port": 5, "ranks": 8}
    assert vars(place_of(good)) == good
    with pytest.raises((ValueError, TypeError)):
        place_of({**good, **wrong})


def test_whom_a_node_reaches_is_read_or_refused() -> None:
    assert cannot_of({"cannot": {"h02": "\x1b[31mtimed out"}})["h02"].isprintable()
    for wild in (None, [], "all", 5):
        with pytest.raises(ValueError, match="whom it reaches"):
            cannot_of({"cannot": wild})


def test_what_goes_into_a_command_is_what_it_may_be() -> None:
    """The user is shown a torchrun command, and may run it."""
    for said in (
        {"address": "$(reboot)"},
        {"address": "fe80::1%$(reboot)"},
        {"backend": "gloo; reboot"},
        {"ranks": -1},
        {"ranks": 10**9},
        {"ranks": "8"},
    ):
        with pytest.raises(ValueError, match=r".+"):
            readiness_of({"ranks": 8, **said})
    member = Member("h01", ready=readiness_of({"ranks": 8, "backend": "nccl", "address": "fe80::1%eth0"}))
    line = torchrun_command(ProbeWanted("all-reduce"), {"h01": member, "h02": member}, [])
    assert "--rdzv-endpoint=fe80::1%eth0:29400" in line


def test_a_result_that_cannot_be_read_is_a_failure_at_once() -> None:
    board = Board("matmul")
    board.take("evil", ProbeEvent("result", device="GPU-0", data={"gpu": "many"}))
    (device,), (failure,) = board.devices(), board.failures
    assert device.result is None and device.problem == failure.why
    assert failure.why.startswith("its result cannot be read: Expected `int | null`")
