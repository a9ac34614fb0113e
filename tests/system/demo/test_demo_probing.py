"""Probes of a demo, asked through a real hub: simulated nodes answer as an agent with GPUs would."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mltop.probes.agent.protocol import Message
from mltop.probes.demo.fleet import node_names
from mltop.probes.model.probe import CopiesResult, MatmulResult, MemoryResult, RankTimes
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.requests import Pending
from mltop.probes.system.spawn import python_command
from tests.hubs import DEADLINE_S, await_state, opened

NODES, SPARES, SPEED = 15, 4, "40"
NAMES = node_names(NODES, 2)
IDLE = NAMES[-SPARES:]
SLOW_GPU_NODE, SLOW_NIC_NODE, HEALTHY, LOST_GPU_NODE = IDLE
BUSY, BRAKED, FAULTY = NAMES[0], "sim005", "sim009"
HERE = "here"
MIB = 1 << 20
COMMON = ("--interval", "0.2", "--spares", str(SPARES), "--probe-speed")


def fleet(speed: str = SPEED) -> Channel:
    command = python_command("mltop.probes.demo.fleet", "--nodes", str(NODES), "--first", "2", *COMMON, speed)
    return Channel(tuple(command), NAMES)


def demo_node() -> Channel:
    options = ("--node", HERE, "--torch", "no", "--fleet", str(NODES), *COMMON, SPEED)
    return Channel(tuple(python_command("mltop.probes.demo.node", *options)), (HERE,))


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with opened(fleet()) as hub:
        await_state(hub, "live", NAMES[-1])
        yield hub


def start(hub: Hub, kind: str, *nodes: str, key: str = "k1", **more: Any) -> Pending:
    args = {"key": key, "kind": kind, "gpus": [], "force": False, "python": "", "options": {}, "total_s": 60.0, **more}
    return hub.request("probe", args, nodes)


def rest(pending: Pending) -> list[Message]:
    """All that still comes, to the end."""
    messages = [answer.message for answer in pending.answers(DEADLINE_S)]
    assert not pending.open_nodes
    return messages


def until(pending: Pending, event: str, count: int = 1) -> list[dict[str, Any]]:
    """All events up to the one that is the ``count``-th of its kind."""
    events: list[dict[str, Any]] = []
    for answer in pending.answers(DEADLINE_S):
        assert answer.message.kind == "part", answer.message
        events.append(answer.message.data)
        if sum(one["event"] == event for one in events) == count:
            return events
    raise AssertionError(f"{count} {event} did not come: {events}")


def events_of(messages: list[Message], event: str) -> list[dict[str, Any]]:
    return [message.data for message in messages if message.data.get("event") == event]


def results(messages: list[Message], kind: type) -> dict[int, Any]:
    made = [msgspec.convert(event["data"], kind) for event in events_of(messages, "result")]
    return {result.gpu: result for result in made}


def test_matmul_tells_its_stages_and_results_like_an_agent(hub: Hub) -> None:
    messages = rest(start(hub, "matmul", HEALTHY, options={"dtype": "bf16"}))
    first = messages[0].data
    assert first["event"] == "devices" and first["data"]["simulated"] is True
    assert [(one["index"], one["kind"]) for one in first["data"]["devices"]] == [(gpu, "gpu") for gpu in range(8)]
    assert (messages[-1].kind, messages[-1].data) == ("done", {"cancelled": False})
    uuid = first["data"]["devices"][2]["uuid"]
    of_one = [m.data for m in messages if m.data.get("device") == uuid]
    stages = list(dict.fromkeys(event["stage"] for event in of_one if event["event"] == "stage"))
    assert stages == ["start python", "import torch", "device", "warm", "scan", "burst", "sustained", "check"]
    assert all(event["deadline_s"] > 0 for event in of_one if event.get("fraction") == 0.0)
    assert of_one[-1]["event"] == "result"
    found = results(messages, MatmulResult)
    assert sorted(found) == list(range(8)) and {result.node for result in found.values()} == {HEALTHY}
    for result in found.values():
        assert 760 < result.burst_tflops < 820 and 640 < result.sustained_tflops < 700
        burst, sustained = result.phases
        assert 690 < sustained.power_w <= 700 and burst.sm_clock_mhz > sustained.sm_clock_mhz
        assert result.uuid == hub.node(HEALTHY).sample.gpus[result.gpu].uuid
    spread = statistics.stdev(result.sustained_tflops for result in found.values())
    assert 1 < spread < 20
    again = results(rest(start(hub, "matmul", HEALTHY, key="k2")), MatmulResult)
    assert all(0 < abs(again[gpu].sustained_tflops / found[gpu].sustained_tflops - 1) < 0.03 for gpu in found)


def test_gpus_in_use_and_lost_ones_are_refused(hub: Hub) -> None:
    messages = rest(start(hub, "matmul", BUSY))
    refused = events_of(messages, "refused")
    assert len(refused) == 8 and not events_of(messages, "result")
    ranks = hub.node(BUSY).sample.ranks
    assert all(f"(pid {ranks[gpu].pid}, job llama-70b)" in event["why"] for gpu, event in enumerate(refused))
    messages = rest(start(hub, "memory", LOST_GPU_NODE))
    (lost,) = events_of(messages, "refused")
    assert lost["data"]["device"]["index"] == 3
    assert "lost" in lost["why"] and lost["device"] == hub.node(LOST_GPU_NODE).sample.gpus[3].uuid
    assert sorted(results(messages, MemoryResult)) == [0, 1, 2, 4, 5, 6, 7]


def test_what_the_fleet_simulates_is_what_is_measured(hub: Hub) -> None:
    braked = results(rest(start(hub, "matmul", BRAKED, force=True)), MatmulResult)
    assert len(braked) == 8
    assert all(result.sustained_tflops < 250 for result in braked.values())
    assert all(result.phases[1].throttle_share["power_brake"] == 1.0 for result in braked.values())
    slow = results(rest(start(hub, "matmul", SLOW_GPU_NODE)), MatmulResult)
    assert [gpu for gpu, result in slow.items() if result.burst_tflops < 700] == [5]
    assert slow[5].phases[1].sm_clock_mhz > 1500 and slow[5].phases[1].throttle_share == {}


def test_chosen_gpus_and_the_other_kinds(hub: Hub) -> None:
    uuid = hub.node(HEALTHY).sample.gpus[6].uuid
    copies = results(rest(start(hub, "copies", HEALTHY, gpus=["1", uuid, "1"])), CopiesResult)
    assert sorted(copies) == [1, 6]
    assert [peer.to_gpu for peer in copies[6].peers] == [1] and copies[6].peers[0].direct is True
    assert copies[1].to_device_bytes_per_s > copies[1].to_device_together_bytes_per_s > 40e9
    memory = results(rest(start(hub, "memory", HEALTHY, gpus=["7"])), MemoryResult)
    assert list(memory) == [7] and 2.8e12 < memory[7].copy_bytes_per_s < 3.1e12
    fp8 = results(rest(start(hub, "matmul", HEALTHY, gpus=["0"], options={"dtype": "fp8"})), MatmulResult)
    assert fp8[0].dtype == "fp8" and 1500 < fp8[0].burst_tflops < 1700


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({"kind": "dance"}, "unknown probe 'dance'"),
        ({"kind": "matmul", "key": "two words"}, "a probe needs a key"),
        ({"kind": "all_reduce", "options": {"ranks": "many"}}, "invalid literal"),
    ],
)
def test_what_cannot_be_measured_is_an_error(hub: Hub, args: dict[str, Any], error: str) -> None:
    (message,) = rest(start(hub, args.pop("kind"), HEALTHY, **args))
    assert message.kind == "error" and error in message.error


def test_gpus_and_types_that_there_are_not(hub: Hub) -> None:
    messages = rest(start(hub, "matmul", HEALTHY, gpus=["8", "2"]))
    assert [event["why"] for event in events_of(messages, "refused")] == ["no GPU 8 on this node (there are 0-7)"]
    assert list(results(messages, MatmulResult)) == [2]
    messages = rest(start(hub, "matmul", HEALTHY, options={"dtype": "int3"}))
    assert [event["why"] for event in events_of(messages, "failed")] == ["no such data type: int3"] * 8


def test_a_cancelled_probe_says_so_and_nothing_more() -> None:
    with opened(fleet(speed="0.1")) as hub:
        await_state(hub, "live", HEALTHY)
        pending = start(hub, "matmul", HEALTHY, SLOW_GPU_NODE)
        until(pending, "devices", 2)
        (second, _) = rest(start(hub, "memory", HEALTHY, key="k2"))
        assert second.data["event"] == "refused" and "a matmul probe of mltop" in second.data["why"]
        pending.cancel()
        messages = rest(pending)
        ended = [message for message in messages if message.kind == "done"]
        assert [message.data for message in ended] == [{"cancelled": True}] * 2
        assert not events_of(messages, "result")
        (told,) = hub.request("probe_tell", {"key": "k1", "line": {"tell": "end"}}, [HEALTHY]).answers(DEADLINE_S)
        assert told.message.kind == "error" and "k1" in told.message.error


# Collectives.


class Together:
    """Launchers on some nodes, joined; ``round`` gives what all of their ranks measured."""

    def __init__(self, hub: Hub, *nodes: str, key: str, **more: Any) -> None:
        self.hub, self.nodes, self.key = hub, nodes, key
        self.pending = {node: start(hub, "all_reduce", node, key=key, **more) for node in nodes}
        first = 0
        for node, pending in self.pending.items():
            place = until(pending, "listening")[-1]["data"]
            go = {"tell": "go", "store": [place["address"], place["port"]], "first_rank": first}
            self._tell(go, [node])
            first += place["ranks"]
        self.ready = {node: until(pending, "ready")[-1]["data"] for node, pending in self.pending.items()}

    def round(self, number: int, groups: list[list[str]], sizes: list[int], work: bool) -> list[RankTimes]:
        line = {
            "tell": "round",
            "round": number,
            "groups": groups,
            "ranks": {node: ready["ranks"] for node, ready in self.ready.items()},
            "collectives": ["all-reduce"],
            "sizes_bytes": sizes,
            "budget_s": 0.4,
            "work": work,
        }
        self._tell(line)
        events = [event for node in self.nodes for event in until(self.pending[node], "round")]
        ended = [event["data"] for event in events if event["event"] == "round"]
        idle = len(self.nodes) - sum(map(len, groups))
        assert {one["round"] for one in ended} == {number} and sum(one.get("idle", False) for one in ended) == idle
        return [msgspec.convert(event["data"], RankTimes) for event in events if event["event"] == "times"]

    def end(self) -> None:
        self._tell({"tell": "end"})
        for pending in self.pending.values():
            assert rest(pending)[-1].data == {"cancelled": False}

    def _tell(self, line: dict[str, Any], nodes: list[str] | None = None) -> None:
        told = self.hub.request("probe_tell", {"key": self.key, "line": line}, nodes or self.nodes)
        assert {answer.message.kind for answer in told.answers(DEADLINE_S)} == {"done"}


def busbw(times: list[RankTimes]) -> float:
    """Of the slowest rank of each iteration, as the judge has it."""
    slowest = statistics.median(map(max, zip(*(one.times_s for one in times), strict=True)))
    return times[0].size_bytes / slowest * 2 * (times[0].ranks - 1) / times[0].ranks


def test_an_all_reduce_has_one_slow_rank_which_waits_least(hub: Hub) -> None:
    together = Together(hub, SLOW_GPU_NODE, HEALTHY, key="a1")
    assert {node: ready["ranks"] for node, ready in together.ready.items()} == {SLOW_GPU_NODE: 8, HEALTHY: 8}
    times = together.round(1, [[SLOW_GPU_NODE, HEALTHY]], [MIB, 256 * MIB], work=True)
    assert len(times) == 32 and {one.ranks for one in times} == {16}
    for size in (MIB, 256 * MIB):
        of_size = {one.rank: one for one in times if one.size_bytes == size}
        median_s = {rank: statistics.median(one.times_s) for rank, one in of_size.items()}
        assert min(median_s, key=median_s.__getitem__) == 5
        assert sorted(median_s.values())[1] > median_s[5] + 1e-3
        assert max(of_size, key=lambda rank: of_size[rank].work_s) == 5
        assert (of_size[5].node, of_size[5].gpu) == (SLOW_GPU_NODE, 5)
    together.end()


def test_pairs_with_the_bad_nic_are_slow(hub: Hub) -> None:
    together = Together(hub, *IDLE[:3], key="p1")
    rates = {}
    for number, pair in enumerate([IDLE[:2], IDLE[1:3], (IDLE[0], IDLE[2])], start=1):
        times = together.round(number, [list(pair)], [256 * MIB], work=False)
        assert {one.group for one in times} == {0} and {one.work_s for one in times} == {None}
        rates[pair] = busbw(times) / 1e9
    assert SLOW_NIC_NODE in IDLE[:2] and SLOW_NIC_NODE in IDLE[1:3]
    assert 300 < rates[IDLE[0], IDLE[2]] < 400
    assert rates[IDLE[:2]] < 200 and rates[IDLE[1:3]] < 200
    together.end()


def test_launchers_that_cannot_join_say_why(hub: Hub) -> None:
    (failed,) = events_of(rest(start(hub, "all_reduce", HEALTHY, options={"ranks": 9})), "failed")
    assert "9 ranks" in failed["why"]
    refused = events_of(rest(start(hub, "all_reduce", LOST_GPU_NODE)), "refused")
    assert len(refused) == 8 and sum("GPU 3 of this node is refused" in event["why"] for event in refused) == 7


def test_the_demos_own_node_and_its_fleet_measure_together() -> None:
    with opened(demo_node(), fleet()) as hub:
        await_state(hub, "live", HERE)
        await_state(hub, "live", NAMES[-1])
        messages = rest(start(hub, "matmul", HERE))
        assert ["the demo's job" in event["why"] for event in events_of(messages, "refused")] == [True] * 4
        assert sorted(results(messages, MatmulResult)) == [4, 5, 6, 7]
        idle = ["4", "5", "6", "7"]
        together = Together(hub, HERE, SLOW_GPU_NODE, key="a2", gpus=idle)
        assert together.ready[HERE]["ranks"] == 4
        times = together.round(1, [[HERE, SLOW_GPU_NODE]], [256 * MIB], work=True)
        median_s = {one.rank: statistics.median(one.times_s) for one in times}
        assert sorted(median_s) == list(range(8)) and min(median_s, key=median_s.__getitem__) == 5
        others = [value for rank, value in median_s.items() if rank != 5]
        assert max(others) < min(others) * 1.05
        together.end()
        (checks,) = [
            answer.message.data["checks"] for answer in hub.request("doctor", nodes=[HERE]).answers(DEADLINE_S)
        ]
        assert checks and all(check["name"] != "simulation" for check in checks)
