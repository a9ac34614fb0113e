"""The hub against real child processes that behave well and badly."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from tests.waiting import wait_until

GOOD = """
import sys, threading, json, time, os
sys.path[:0] = {path!r}
from mltop.probes.agent.protocol import *
from mltop.probes.model import *
def say(m): sys.stdout.buffer.write(encode(m)); sys.stdout.buffer.flush()
def beat():
    while True:
        say(Message("sample", node="n1", sample=Sample("n1", time.time())))
        time.sleep(0.05)
{extra}
threading.Thread(target=beat, daemon=True).start()
for line in sys.stdin.buffer:
    request = decode_request(line.rstrip(b"\\n"))
    if request.kind == "request" and request.op == "stacks":
        say(Message("part", id=request.id, expected=1))
        say(Message("part", id=request.id, stacks=RankStacks(1, 0, digests=[StackDigest(0, 1)])))
        say(Message("done", id=request.id))
    elif request.kind == "request" and request.op == "doctor":
        pass
    elif request.kind == "request":
        say(Message("error", id=request.id, error="unknown"))
"""


def agent(extra: str = "", node: str = "n1") -> Channel:
    code = GOOD.format(path=[entry for entry in sys.path if entry], extra=extra)
    return Channel((sys.executable, "-c", code), (node,))


def open_hub(*channels: Channel) -> Hub:
    hub = Hub(channels, 0.1)
    hub.start()
    return hub


def state(hub: Hub, node: str = "n1") -> str:
    return hub.node(node).state.state


def test_noise_between_frames_does_not_matter() -> None:
    hub = open_hub(
        agent("print('Welcome!'); sys.stdout.write('x' * 100000); sys.stdout.flush(); os.write(1, bytes(range(256)))")
    )
    try:
        wait_until(lambda: state(hub) == "live", 10, "a live node")
    finally:
        hub.close()


def test_requests_are_answered_and_the_node_is_written_on_them() -> None:
    hub = open_hub(agent(node="renamed"))
    try:
        wait_until(lambda: state(hub, "renamed") == "live", 10, "a live node")
        pending = hub.request("stacks")
        answers = list(pending.answers(5.0))
        assert [answer.message.kind for answer in answers] == ["part", "part", "done"]
        stacks = answers[1].message.stacks
        assert stacks is not None
        assert (stacks.node, stacks.digests[0].node) == ("renamed", "renamed")
        assert pending.not_answered() == []
        refused = hub.request("dance")
        assert [answer.message.error for answer in refused.answers(5.0)] == ["unknown"]
    finally:
        hub.close()


def test_a_node_that_does_not_answer_is_named_at_the_deadline() -> None:
    hub = open_hub(agent())
    try:
        wait_until(lambda: state(hub) == "live", 10, "a live node")
        pending = hub.request("doctor")
        assert list(pending.answers(0.1)) == []
        assert [missing.node for missing in pending.not_answered()] == ["n1"]
    finally:
        hub.close()


def test_an_agent_that_dies_is_lost_with_its_last_words_and_comes_back(tmp_path: Path) -> None:
    once = tmp_path / "once"
    dying = (
        f"import pathlib; p = pathlib.Path({str(once)!r})\n"
        "if not p.exists(): p.touch(); print('libfoo: version mismatch', file=sys.stderr); sys.exit(3)"
    )
    hub = open_hub(agent(dying))
    try:
        lost = wait_until(lambda: state(hub) == "lost" and hub.node("n1").state.reason, 10, "a lost node")
        assert lost == "the agent ended (exit code 3): libfoo: version mismatch"
        wait_until(lambda: state(hub) == "live", 10, "the restart")
    finally:
        hub.close()


def test_a_request_to_an_agent_that_dies_ends_with_its_reason() -> None:
    hub = open_hub(agent())
    try:
        wait_until(lambda: state(hub) == "live", 10, "a live node")
        pending = hub.request("doctor")
        pid = next(iter(hub._streams.values())).process.pid
        os.kill(pid, signal.SIGKILL)
        assert [answer.message.error for answer in pending.answers(5.0)] == ["the agent ended (killed by signal 9)"]
    finally:
        hub.close()


def test_a_silent_agent_becomes_stale() -> None:
    hub = open_hub(agent("beat = lambda: say(Message('sample', node='n1', sample=Sample('n1', 1.0)))"))
    try:
        wait_until(lambda: state(hub) == "live", 10, "a live node")
        wait_until(lambda: state(hub) == "stale", 10, "a stale node")
        assert "no sample for" in hub.node("n1").state.reason
        assert hub.node("n1").sample is not None
    finally:
        hub.close()


def test_a_program_that_cannot_start_is_said() -> None:
    hub = open_hub(Channel(("/nowhere/agent",), ("n1",)))
    try:
        reason = wait_until(lambda: state(hub) == "lost" and hub.node("n1").state.reason, 10, "a lost node")
        assert reason == "cannot start /nowhere/agent: No such file or directory"
    finally:
        hub.close()


def test_frames_of_another_version_are_named() -> None:
    hub = open_hub(
        agent("say(Message('sample', node='n1')); os.write(1, b'\\x00MLT1 12 {\"kind\": 12}\\n'); time.sleep(9)")
    )
    try:
        wait_until(lambda: "another version" in hub.node("n1").state.reason, 10, "a reason")
    finally:
        hub.close()


def test_close_ends_every_agent_also_one_that_ignores_its_stdin() -> None:
    stubborn = Channel((sys.executable, "-c", "import time\nwhile True: time.sleep(1)"), ("n2",))
    hub = open_hub(agent(), stubborn)
    wait_until(lambda: state(hub) == "live", 10, "a live node")
    pids = [stream.process.pid for stream in hub._streams.values()]
    started = time.monotonic()
    hub.close()
    assert time.monotonic() - started < 3.0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
