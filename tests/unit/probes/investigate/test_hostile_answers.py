"""What a node answers when it is asked (doctor, kernel, a probe): anything, and it costs that node only."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from mltop.probes.investigate.probing.board import MOST_OF_A_NODE, Board, event_of
from mltop.probes.investigate.probing.member import Member, endpoint_of, readiness_of
from mltop.probes.investigate.probing.report import Measured, judged, torchrun_command
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.judge.kernel_lines import MOST_LINES, merge
from mltop.probes.model.probe import ProbeEvent, ProbeReport
from mltop.tui.commands.doctor import checks_of
from mltop.tui.report.check import print_kernel
from mltop.tui.report.probe import print_probe
from tests.builders.matmul_results import gpu

GOOD = {"name": "nvml", "state": "ok", "why": "answers", "fix": ""}
WILD: list[Any] = [None, 0, -1, 1e308, 10**400, "", "x" * 100_000, [], {}, [[]], {"a": {}}, True]


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
    assert len([node for node, _ in board.results if node == "evil"]) == MOST_OF_A_NODE
    assert len(board.failures) == MOST_OF_A_NODE
    assert len(board.remarks) == MOST_OF_A_NODE
    assert ("well", {"a": 1}) in board.results


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
    "said",
    [
        {},
        {"addresses": "10.0.0.1", "port": 1},
        {"addresses": [], "port": 1},
        {"addresses": [{"address": "evil; rm -rf ~"}], "port": 1},
        {"addresses": [{"address": "10.0.0.1"}] * 1000, "port": 1},
        {"addresses": [{"address": "10.0.0.1"}], "port": 70_000},
        {"addresses": [{"address": "10.0.0.1"}], "port": "1; true"},
        {"addresses": [None], "port": 1},
        {"addresses": [{}], "port": 1},
    ],
)
def test_where_a_leader_listens_is_an_address_or_nothing(said: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        endpoint_of(said, alone=False)


def test_a_node_alone_opens_nothing_for_others() -> None:
    said = {"addresses": [], "port": 0}
    assert endpoint_of(said, alone=True) == said
    with pytest.raises(ValueError, match="where it listens"):
        endpoint_of(said)


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
    assert endpoint_of({"addresses": [], "port": 0}, alone=True) == {"addresses": [], "port": 0}
    assert endpoint_of({"addresses": [{"address": "10.0.0.1", "interface": "eth0"}], "port": 5}, alone=False) == {
        "addresses": ["10.0.0.1"],
        "port": 5,
    }
