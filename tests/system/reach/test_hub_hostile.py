"""A node that sends what no agent would costs itself, not the others."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.agent.protocol import Boot, Request
from mltop.probes.reach.pacing import Limits
from mltop.probes.reach.uploads import MOST_KEPT, Files
from tests.fakes.agents import program, well_behaved
from tests.hubs import DEADLINE_S, await_reason, await_state, opened, state
from tests.spoiled import NASTY
from tests.waiting import wait_until


def raw(payload: str) -> str:
    """Code that sends the bytes of this expression as a frame."""
    return f"data = {payload}; sys.stdout.buffer.write(MARK + b'%d ' % len(data) + data + b'\\n'); sys.stdout.flush()\n"


DEEP_CODE = """b'{"kind":"pong","x":' + b'[' * 100_000 + b']' * 100_000 + b'}'"""
DEEP_SAMPLE_CODE = """b'{"kind":"sample","sample":{"sampled_at":1,"x":' + b'[' * 100_000 + b']' * 100_000 + b'}}'"""
NO_TEXT_CODE = """b'{"kind":"done","error":"\\xff\\xfe"}'"""
NO_TEXT_NAME_CODE = """b'{"kind":"\\xff"}'"""


@pytest.mark.parametrize("payload", [DEEP_CODE, DEEP_SAMPLE_CODE, NO_TEXT_CODE, NO_TEXT_NAME_CODE])
def test_a_frame_that_cannot_be_read_costs_nobody_anything(payload: str) -> None:
    evil = program(f"hello('evil')\n{raw(payload)}\nhang()", "evil")
    recovers = program(f"hello()\n{raw(payload)}\nbeat()\nhang()", "n1")
    with opened(evil, recovers, well_behaved(node="n2")) as hub:
        assert await_reason(hub, "another version", "evil") == "connecting"
        await_state(hub, "live")
        await_state(hub, "live", "n2")
        answers = list(hub.request("echo", {"a": 1}, ["n2"]).answers(DEADLINE_S))
        assert [answer.message.kind for answer in answers] == ["done"]


def test_a_first_sample_that_is_too_large_is_said() -> None:
    many = """b'{"kind":"sample","sample":{"sampled_at":1,"gpus":[' + b'{"index":1},' * 400_000 + b'{"index":1}]}}'"""
    with opened(program(f"hello()\n{raw(many)}\nhang()")) as hub:
        assert await_reason(hub, "refused: its sample has 4.58 MiB of JSON (at most 4 MiB)") == "connecting"


def test_a_bug_costs_its_own_link_only(tmp_path: Path) -> None:
    """What is asked of a node that connects is encoded at its hello; here that fails."""
    late = well_behaved(f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)", "late")
    with opened(late, well_behaved(), limits=replace(Limits(), retry_first_s=600.0, ping_s=0.1)) as hub:
        await_state(hub, "live")
        asked = hub.request("echo", {"not JSON": object()}, ["late"])
        (tmp_path / "go").touch()
        go = hub.request("echo", {}, ["n1"])
        assert [answer.message.kind for answer in go.answers(DEADLINE_S)] == ["done"]
        reason = await_state(hub, "lost", "late")
        assert reason.startswith("mltop failed on its frame: TypeError")
        assert [answer.message.kind for answer in asked.answers(DEADLINE_S)] == ["error"]
        assert state(hub) == "live"


def test_words_of_a_node_do_not_reach_the_terminal_raw() -> None:
    code = r'say(Message("error", error="\x1b]0;x\x07\x1b[2Jno\nspace" + "A" * 5_000_000, fix="\x1b[1mfree some"))'
    with opened(program(f"{code}\nhang()")) as hub:
        reason = await_state(hub, "lost")
        assert reason.startswith("no spaceAAA") and reason.endswith("… (free some)")
        assert len(reason) < 800


def test_a_word_of_no_vocabulary_that_is_quoted_is_plain_and_short() -> None:
    code = raw(f"json.dumps({{'kind': {NASTY[:-1]!a} + 'A' * 100_000}}).encode()")
    with opened(program(f"hello()\n{code}\nhang()")) as hub:
        await_reason(hub, "another version")
        reason = hub.node("n1").state.reason
        assert "forged" in reason and reason.isprintable() and len(reason) < 400


@pytest.mark.parametrize(
    "flood",
    [
        'say(Message("boot", boot=Boot("m%d" % n, "3")))',
        'say(Message("need", id=1, data={"file": "bundle", "machine": "m%d" % n}))',
    ],
)
def test_a_node_that_asks_for_files_again_and_again_is_ended(flood: str) -> None:
    asked: list[tuple[str, str]] = []
    together: list[bool] = []
    making = threading.Lock()

    def file_for(name: str, machine: str) -> Request:
        asked.append((name, machine))
        alone = making.acquire(blocking=False)
        together.append(not alone)
        time.sleep(0.02)  # so that a second one would meet it
        if alone:
            making.release()
        return Request("file", op=name, args={"data": "x"})

    code = f"boot()\nfor n in range(5000): {flood}\nhang()"
    limits = replace(Limits(), retry_first_s=600.0)
    with opened(program(code), well_behaved(node="n2"), file_for=file_for, limits=limits) as hub:
        assert await_state(hub, "lost") == "it asked for more than 8 files within a minute"
        await_state(hub, "live", "n2")
    assert 1 <= len(asked) <= 8 and not any(together)
    if "need" in flood:
        assert set(asked) == {("bundle", "m1")}  # for what its boot frame said that it is


def test_files_that_nobody_has_are_not_looked_for() -> None:
    asked: list[str] = []

    def file_for(name: str, machine: str) -> Request:
        asked.append(name)
        return Request("file", op=name)

    code = 'boot(True)\nfor n in range(100): say(Message("need", data={"file": "f%d" % n}))\nhello(); beat(); hang()'
    with opened(program(code), file_for=file_for) as hub:
        await_state(hub, "live")
    assert not asked


def test_only_so_many_files_are_kept() -> None:
    made: list[str] = []
    came: list[bytes] = []

    def make(_name: str, machine: str) -> Request:
        made.append(machine)
        return Request("file", op=machine)

    files = Files(lambda call: call(), make)
    machines = [f"m{number}" for number in range(MOST_KEPT + 5)]
    for number, machine in enumerate((*machines, machines[-1], machines[0]), 1):
        files.frame("bundle", machine, came.append)
        wait_until(lambda number=number: len(came) == number, DEADLINE_S, "the file")
    assert made == [*machines, machines[0]]  # the newest are known, the first is made again


def test_boots_are_made_plain() -> None:
    boots = r'say(Message("boot", boot=Boot("m1", "3\x1b[2J", "/c", True)))'
    with opened(program(f"{boots}\nhello(); beat(); hang()")) as hub:
        await_state(hub, "live")
        assert hub.node("n1").connection.boot == Boot("m1", "3", "/c", True)
