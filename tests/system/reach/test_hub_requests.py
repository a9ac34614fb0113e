"""Requests: to the node that is meant, through channels of their own, cancelled."""

from __future__ import annotations

from pathlib import Path

from mltop.probes.agent.protocol import Request
from mltop.probes.reach.channel import Channel
from tests.fakes.agents import program
from tests.hubs import DEADLINE_S, await_state, child_pids, opened
from tests.waiting import wait_until

SAMPLES_ONLY = "hello('n1'); hello('n2'); beat('n1', 'n2'); hang()"


def apart(code: str) -> Channel:
    """Two nodes on a stream that takes no requests; ``code`` answers one, with ``op``, ``args`` and ``asked``."""

    def one_shot(nodes: tuple[str, ...], request: Request) -> Channel:
        known = f"op, args, asked = {request.op!r}, {request.args!r}, {nodes!r}\n"
        return program(known + code, *nodes, takes_requests=False)

    return program(SAMPLES_ONLY, "n1", "n2", takes_requests=False, one_shot=one_shot)


def test_one_request_apart_asks_all_its_nodes_at_once() -> None:
    code = """
for node in asked: say(Message("part", node=node, expected=1))
for node in asked: say(Message("part", node=node, stacks=RankStacks(1, 0, digests=[StackDigest(0, 1)])))
for node in asked: say(Message("done", node=node, data={"op": op, **args}))
hang()
"""
    with opened(apart(code)) as hub:
        await_state(hub, "live", "n2")
        before = child_pids()
        pending = hub.request("stacks", {"raw": True})
        answers = list(pending.answers(DEADLINE_S))
        assert [(answer.node, answer.message.kind) for answer in answers] == [
            (node, kind) for kind in ("part", "part", "done") for node in ("n1", "n2")
        ]
        assert [answer.message.stacks.node for answer in answers if answer.message.stacks] == ["n1", "n2"]
        assert answers[-1].message.data == {"op": "stacks", "raw": True}
        wait_until(lambda: child_pids() == before, DEADLINE_S, "the end of the one-shot")


def test_a_one_shot_that_dies_says_why_for_those_that_did_not_answer() -> None:
    code = 'say(Message("done", node="n1")); print("n2: no route to host", file=sys.stderr); sys.exit(1)'
    with opened(apart(code)) as hub:
        await_state(hub, "live", "n2")
        pending = hub.request("doctor")
        errors = {answer.node: answer.message.error for answer in pending.answers(DEADLINE_S)}
        assert errors == {"n1": "", "n2": "the agent ended (exit code 1): n2: no route to host"}
        assert pending.open_nodes == ()


def test_one_node_of_several_can_be_asked() -> None:
    with opened(apart('say(Message("done", data={"asked": list(asked)}))')) as hub:
        await_state(hub, "live", "n2")
        (answer,) = hub.request("doctor", nodes=["n2"]).answers(DEADLINE_S)
        assert (answer.node, answer.message.data) == ("n2", {"asked": ["n2"]})


def test_cancelling_ends_a_one_shot() -> None:
    with opened(apart("hang()")) as hub:
        await_state(hub, "live", "n2")
        before = child_pids()
        pending = hub.request("stacks")
        wait_until(lambda: child_pids() != before, DEADLINE_S, "the one-shot")
        pending.cancel()
        assert {answer.message.error for answer in pending.answers(DEADLINE_S)} == {"cancelled"}
        wait_until(lambda: child_pids() == before, DEADLINE_S, "its end")


def test_a_one_shot_that_cannot_start_is_an_answer() -> None:
    channel = program(
        "hello(); beat(); hang()",
        takes_requests=False,
        one_shot=lambda nodes, _: Channel(("/nowhere/pdsh",), nodes),
    )
    with opened(channel) as hub:
        await_state(hub, "live")
        (answer,) = hub.request("stacks").answers(DEADLINE_S)
        assert answer.message.error == "cannot start /nowhere/pdsh: No such file or directory"


def test_a_carrier_without_any_way_for_requests_says_so() -> None:
    with opened(program("hello(); beat(); hang()", takes_requests=False, via="pdsh")) as hub:
        await_state(hub, "live")
        (answer,) = hub.request("stacks").answers(DEADLINE_S)
        assert answer.message.error == "pdsh carries no requests to the nodes"


def test_cancel_reaches_the_agent_and_names_its_node(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    code = f"""
hello(); beat()
for request in requests():
    if request.kind not in ("ping", "watch"):
        with open({str(seen)!r}, "a") as file: file.write(f"{{request.kind}} {{request.node}} {{request.id}}" + chr(10))
    if request.kind == "cancel": say(Message("done", id=request.id, data={{"cancelled": True}}))
"""
    with opened(program(code)) as hub:
        await_state(hub, "live")
        pending = hub.request("stacks")
        wait_until(seen.exists, DEADLINE_S, "the request")
        pending.cancel()
        assert [answer.message.data for answer in pending.answers(DEADLINE_S)] == [{"cancelled": True}]
        assert seen.read_text().splitlines() == ["request n1 1", "cancel n1 1"]


def test_requests_from_many_threads_are_all_answered() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from tests.fakes.agents import well_behaved

    with opened(well_behaved()) as hub, ThreadPoolExecutor(8) as pool:
        await_state(hub, "live")
        asked = list(pool.map(lambda number: list(hub.request("echo", {"n": number}).answers(DEADLINE_S)), range(100)))
        assert [answers[0].message.data["n"] for answers in asked] == list(range(100))
