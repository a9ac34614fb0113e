"""The hub against real child processes that behave well and badly."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from tests.fakes.agents import once_then, program, well_behaved
from tests.hubs import DEADLINE_S, await_state, child_pids, opened, patient, state
from tests.waiting import wait_until


def test_requests_are_answered_and_the_node_is_written_on_them() -> None:
    with opened(well_behaved(node="renamed")) as hub:
        await_state(hub, "live", "renamed")
        pending = hub.request("stacks")
        answers = list(pending.answers(DEADLINE_S))
        assert [answer.message.kind for answer in answers] == ["part", "part", "done"]
        stacks = answers[1].message.stacks
        assert stacks is not None
        assert (stacks.node, stacks.digests[0].node) == ("renamed", "renamed")
        assert pending.open_nodes == ()
        refused = hub.request("dance")
        assert [answer.message.error for answer in refused.answers(DEADLINE_S)] == ["unknown"]


def test_a_node_that_does_not_answer_is_named_at_the_deadline() -> None:
    with opened(well_behaved()) as hub:
        await_state(hub, "live")
        pending = hub.request("silence")
        assert list(pending.answers(0.1)) == []
        assert pending.open_nodes == ("n1",)


def test_a_request_to_a_node_that_connects_is_answered_when_it_is_there() -> None:
    with opened(well_behaved("time.sleep(0.5)")) as hub:
        assert state(hub) == "connecting"
        answers = list(hub.request("echo", {"word": 7}).answers(DEADLINE_S))
        assert [answer.message.data for answer in answers] == [{"word": 7}]


def test_a_request_to_a_lost_node_fails_at_once_with_its_reason() -> None:
    with opened(Channel(("/nowhere/agent",), ("n1",))) as hub:
        reason = await_state(hub, "lost")
        pending = hub.request("echo")
        assert [answer.message.error for answer in pending.answers(DEADLINE_S)] == [reason]
        assert pending.open_nodes == ()


def test_a_request_that_nobody_can_answer_any_more_ends() -> None:
    hub = Hub([well_behaved()], 0.1)
    hub.start()
    await_state(hub, "live")
    pending = hub.request("silence")
    hub.close()
    assert [answer.message.error for answer in pending.answers(DEADLINE_S)] == ["mltop is ending"]


def test_an_agent_that_dies_is_lost_with_its_last_words_and_comes_back(tmp_path: Path) -> None:
    dying = once_then(tmp_path, "print('libfoo: version mismatch', file=sys.stderr); sys.exit(3)")
    with opened(well_behaved(dying), limits=patient(retry_first_s=5.0)) as hub:
        assert await_state(hub, "lost") == "the agent ended (exit code 3): libfoo: version mismatch"
        await_state(hub, "live")
        connection = hub.node("n1").connection
        assert (connection.via, connection.restarts) == ("local", 1)


def test_a_request_to_an_agent_that_dies_ends_with_its_reason() -> None:
    before = child_pids()
    with opened(well_behaved()) as hub:
        await_state(hub, "live")
        pending = hub.request("silence")
        (pid,) = child_pids() - before
        os.kill(pid, signal.SIGKILL)
        errors = [answer.message.error for answer in pending.answers(DEADLINE_S)]
        assert errors == ["the agent ended (killed by signal 9)"]


def test_a_silent_agent_becomes_stale() -> None:
    with opened(program("hello(); sample(); hang()")) as hub:
        await_state(hub, "live")
        assert "no sample for" in await_state(hub, "stale")
        assert hub.node("n1").sample is not None


def test_a_program_that_cannot_start_is_said() -> None:
    with opened(Channel(("/nowhere/agent",), ("n1",))) as hub:
        assert await_state(hub, "lost") == "cannot start /nowhere/agent: No such file or directory"


def test_frames_of_another_version_are_named() -> None:
    strange = 'os.write(1, b"\\x00MLT1 12 {\\"kind\\": 12}\\n"); hang()'
    with opened(program(f"hello(); {strange}"), program(strange, "n2")) as hub:
        wait_until(lambda: "another version" in hub.node("n1").state.reason, DEADLINE_S, "a reason")
        wait_until(lambda: "another version" in hub.node("n2").state.reason, DEADLINE_S, "a reason before any hello")


def test_a_sample_of_another_version_is_not_a_live_node() -> None:
    strange = 'print(json.dumps({"kind": "sample", "sample": {"sampled_at": 1.0, "gpus": "two"}}))'
    code = f"""
import io
line = io.StringIO()
sys.stdout, kept = line, sys.stdout
{strange}
sys.stdout = kept
payload = line.getvalue().strip().encode()
os.write(1, MARK + b"%d %s\\n" % (len(payload), payload))
hang()
"""
    with opened(program(code)) as hub:
        wait_until(lambda: "another version" in hub.node("n1").state.reason, DEADLINE_S, "a reason")
        assert state(hub) == "connecting"


def test_what_is_known_of_a_connection() -> None:
    with opened(well_behaved()) as hub:
        await_state(hub, "live")
        connection = hub.node("n1").connection
        assert connection.hello is not None and connection.hello.machine == "m1"
        assert connection.connect_s is not None and 0.0 < connection.connect_s < DEADLINE_S
        assert connection.clock_skew_s is not None and -DEADLINE_S < connection.clock_skew_s <= 0.001
        assert connection.boot is None and connection.restarts == 0


def test_close_ends_every_agent_also_one_that_ignores_its_stdin() -> None:
    before = child_pids()
    stubborn = Channel((sys.executable, "-c", "import time\nwhile True: time.sleep(1)"), ("n2",))
    hub = Hub([well_behaved(), stubborn], 0.1)
    hub.start()
    await_state(hub, "live")
    pids = child_pids() - before
    assert len(pids) == 2
    started = time.monotonic()
    hub.close()
    assert time.monotonic() - started < DEADLINE_S
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
