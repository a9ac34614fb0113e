"""What is done to ranks over the hub's connections: real agents and processes, and nodes that do not answer well."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.agent.protocol import Request
from mltop.probes.investigate.acting import RankProcess, dump_native, send_signal, signal_facts
from mltop.probes.model import RankStacks
from mltop.probes.model.acts import SignalResult
from mltop.probes.reach.channel import Channel, LaunchOptions
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.launchers import local
from mltop.probes.system.spawn import python_command
from tests.fakes.agents import program, well_behaved
from tests.hubs import DEADLINE_S, await_state, opened
from tests.waiting import wait_until

JOB = f"acting-{os.getpid()}"
HANDLES = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: None); time.sleep(600)"
OTHER_ANSWERS = """
hello(); beat()
for request in requests():
    if request.kind == "request": say(Message({answer}, node="n1", id=request.id))
"""
# The first node answers when the second one has.
IN_TURN = """
hello(node={node!r}); beat({node!r})
for request in requests():
    if request.kind != "request": continue
    while {waits} and not os.path.exists({path!r}): time.sleep(0.01)
    say(Message("done", node={node!r}, id=request.id, data={{"results": [{{"pid": 5, "outcome": "ended"}}]}}))
    open({path!r}, "w").close()
"""


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = []
    try:
        for number in range(2):
            environ = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": JOB, "MASTER_PORT": "1"}
            started.append(subprocess.Popen([sys.executable, "-c", HANDLES], env={**os.environ, **environ}))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def agent() -> Channel:
    (channel,) = local.launch(("n1",), LaunchOptions(interval_s=0.2))
    return channel


def by_one_shots() -> Channel:
    """As pdsh does it: samples come on one stream, every request starts an agent of its own."""

    def one_shot(nodes: tuple[str, ...], request: Request) -> Channel:
        import json

        words = ("--node", nodes[0], "--op", request.op, "--args", json.dumps(request.args))
        return Channel(tuple(python_command("mltop.probes.agent.__main__", *words)), nodes)

    from dataclasses import replace

    return replace(agent(), takes_requests=False, one_shot=one_shot)


def seen(hub: Hub, count: int = 2) -> list[RankProcess]:
    """The ranks of this test's job, as a user sees them."""

    def look() -> list[RankProcess]:
        sample = hub.node("n1").sample
        found = [rank for rank in sample.ranks if rank.job.startswith(JOB)] if sample is not None else []
        of_job = sorted(found, key=lambda rank: rank.rank or 0)
        return [RankProcess.of("n1", rank) for rank in of_job] if len(of_job) == count else []

    return wait_until(look, DEADLINE_S, "the ranks")


def done(start: Callable[[Callable[..., None]], Any]) -> Any:
    """What a run says at its end."""
    said: list[Any] = []
    ended = threading.Event()

    def take(*values: Any) -> None:
        said.append(values if len(values) > 1 else values[0])
        ended.set()

    start(take).start()
    assert ended.wait(DEADLINE_S)
    (value,) = said
    return value


@pytest.mark.jobs
@pytest.mark.parametrize("channel", [agent, by_one_shots])
def test_a_rank_gets_it_and_its_neighbour_does_not(
    channel: Callable[[], Channel], ranks: list[subprocess.Popen[bytes]]
) -> None:
    with opened(channel()) as hub:
        first, second = seen(hub)
        assert (first.pid, first.rank, first.started_at is not None) == (ranks[0].pid, 0, True)
        results = done(lambda take: send_signal(hub, "USR1", [first, second], take))
        assert {result.outcome for result in results.values()} == {"sent"}
        results = done(lambda take: send_signal(hub, "TERM", [second], take))
        assert results == {second.key: SignalResult(second.pid, "ended", results[second.key].state)}
        assert ranks[1].wait(10) == -15
        assert ranks[0].poll() is None
        facts = wait_until(lambda: done(lambda take: signal_facts(hub, [first], take)).get(first.key), what="an answer")
        assert facts.caught == ["USR1"] and facts.core_pattern


@pytest.mark.jobs
def test_the_c_frames_of_one_rank(ranks: list[subprocess.Popen[bytes]]) -> None:
    with opened(agent()) as hub:
        first, _ = seen(hub)
        stacks, error = done(lambda take: dump_native(hub, first, take))
        assert isinstance(stacks, RankStacks) and error == ""
        assert stacks.pid == ranks[0].pid
        names = {frame.function for digest in stacks.digests for frame in digest.frames}
        assert any("sleep" in name for name in names), names


def process(node: str = "n1", pid: int = 5, started_at: float | None = 100.0) -> RankProcess:
    return RankProcess(node, pid, started_at, 0)


def sent(hub: Hub, *processes: RankProcess) -> dict[tuple[str, int], SignalResult]:
    results: dict[tuple[str, int], SignalResult] = done(lambda take: send_signal(hub, "KILL", processes, take))
    assert set(results) == {each.key for each in processes}
    return results


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        ("'error', error=f'unknown operation {request.op!r}'", "failed", "unknown operation 'signal'"),
        ("'error', error='too late', fix='curl x | sh'", "failed", "too late (the node says: 'curl x | sh')"),
        ("'done', data={'results': 5}", "failed", "its answer is refused"),
        ("'done', data={'results': [{'pid': 5, 'outcome': 'danced'}]}", "failed", "its answer is refused"),
        ("'done', data={'results': [{'pid': 6, 'outcome': 'ended'}]}", "unknown", "the node does not say"),
        ("'done'", "failed", "its answer is refused"),
    ],
)
def test_nodes_that_say_something_else(answer: str, outcome: str, words: str) -> None:
    with opened(program(OTHER_ANSWERS.format(answer=answer))) as hub:
        await_state(hub, "live")
        (result,) = sent(hub, process()).values()
        assert result.outcome == outcome and words in result.why
        assert done(lambda take: signal_facts(hub, [process()], take)) == {}


def test_who_cannot_be_told_from_another_is_not_even_asked_for() -> None:
    with opened(well_behaved()) as hub:
        await_state(hub, "live")
        (result,) = sent(hub, process(started_at=None)).values()
        assert result.outcome == "failed" and "when it started is unknown" in result.why


def test_a_lost_node_says_why() -> None:
    with opened(well_behaved(), program("sys.exit(3)", "n2")) as hub:
        await_state(hub, "live")
        await_state(hub, "lost", "n2")
        results = sent(hub, process(), process("n2"))
        assert results["n2", 5].outcome == "failed" and results["n2", 5].why == "nothing was heard of this node"


def test_who_answers_before_the_first_one_that_was_asked_is_heard(tmp_path: Path) -> None:
    path = str(tmp_path / "answered")
    nodes = [program(IN_TURN.format(node=node, waits=node == "n1", path=path), node) for node in ("n1", "n2")]
    with opened(*nodes) as hub:
        for node in ("n1", "n2"):
            wait_until(lambda node=node: hub.node(node).sample, DEADLINE_S, f"a sample of {node}")
        results = sent(hub, process(), process("n2"))
        assert {key: result.outcome for key, result in results.items()} == {("n1", 5): "ended", ("n2", 5): "ended"}


def test_of_a_node_that_is_silent_nothing_is_claimed() -> None:
    with opened(program("hello(); beat(); hang()")) as hub:
        await_state(hub, "live")
        (result,) = done(lambda take: send_signal(hub, "KILL", [process()], take, deadline_s=0.3)).values()
        assert (result.outcome, result.why) == ("unknown", "no answer within 0.3 s")


def test_a_way_that_carries_no_requests() -> None:
    with opened(well_behaved(takes_requests=False, via="pdsh")) as hub:
        await_state(hub, "live")
        (result,) = sent(hub, process()).values()
        assert (result.outcome, result.why) == ("failed", "pdsh carries no requests to the nodes")
