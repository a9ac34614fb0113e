"""Channels that hang, are refused, fall silent or lose one of their nodes; and how many connect at once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from mltop.probes.reach.channel import Channel, Ending
from tests.fakes.agents import once_then, program, well_behaved
from tests.hubs import DEADLINE_S, await_reason, await_state, opened, patient, set_limits, state
from tests.waiting import wait_until


def test_a_shell_that_hangs_is_lost_and_tried_again(tmp_path: Path) -> None:
    limits = patient()
    hanging = once_then(tmp_path, "hang()")
    with opened(well_behaved(hanging), well_behaved(node="n2"), limits=limits) as hub:
        await_state(hub, "live", "n2")
        wait_until(lambda: list(tmp_path.iterdir()), DEADLINE_S, "the first try")
        set_limits(limits, hello_s=0.5)
        assert await_state(hub, "lost") == (
            "no answer from its shell within 0.5 s "
            "(look at its home directory and start-up files, or give it more time: --timeout 60)"
        )
        set_limits(limits, hello_s=DEADLINE_S)
        hub.retry()
        await_state(hub, "live")
        assert state(hub, "n2") == "live"


def test_a_shell_that_only_makes_noise_is_lost_with_what_it_asks(tmp_path: Path) -> None:
    limits = patient()
    chatter = f"""
for line in range(10**9):
    print('\\nWelcome\\nPassword expired. New one:', end='', flush=True); time.sleep(0.05)
    if line == 10: open({str(tmp_path / "said")!r}, "w")
"""
    with opened(program(chatter), limits=limits) as hub:
        wait_until((tmp_path / "said").exists, DEADLINE_S, "its words")
        set_limits(limits, hello_s=0.5)
        reason = await_state(hub, "lost")
        assert reason.startswith(
            "no answer from its shell within 0.5 s, it waits at: Password expired. New one: (look at"
        )


def test_who_is_refused_is_left_alone_until_the_user_asks(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    code = (
        f"open({str(runs)!r}, 'a').write('x'); print('Permission denied (publickey).', file=sys.stderr); sys.exit(255)"
    )

    def ending(code: int | None, words: str) -> Ending:
        return Ending(f"ssh: {words}", "ssh-add", retry=code != 255)

    with opened(program(code, ending=ending), limits=patient(retry_first_s=0.01)) as hub:
        assert await_state(hub, "refused") == "ssh: Permission denied (publickey). (ssh-add)"
        time.sleep(0.5)  # nothing must happen in it
        assert runs.read_text() == "x"
        hub.retry(["n1"])
        wait_until(lambda: runs.read_text() == "xx", DEADLINE_S, "a second try")
        await_state(hub, "refused")


def test_a_link_that_falls_silent_is_ended_and_made_again(tmp_path: Path) -> None:
    limits = patient()
    silent = once_then(tmp_path, "hello(); sample(); hang()")
    with opened(well_behaved(silent), limits=limits) as hub:
        await_state(hub, "live")
        set_limits(limits, silence_s=1.0)
        assert await_reason(hub, "nothing arrived for 1 s: the link or the node is dead") == "lost"
        set_limits(limits, silence_s=DEADLINE_S)
        hub.retry()
        await_state(hub, "live")


def test_an_agent_that_answers_pings_may_sample_rarely() -> None:
    code = """
hello(); sample()
for request in requests():
    if request.kind == "ping": say(Message("pong", node="n1"))
"""
    with opened(program(code), limits=patient(silence_s=3.0), interval_s=60.0) as hub:
        await_state(hub, "live")
        time.sleep(4.0)  # longer than the silence that would end it
        assert state(hub) == "live"
        assert hub.node("n1").connection.restarts == 0


def test_one_node_without_a_hello_is_lost_and_the_others_are_live() -> None:
    limits = patient()
    with opened(program("hello('n1'); hello('n2'); beat('n1', 'n2'); hang()", "n1", "n2", "n3"), limits=limits) as hub:
        await_state(hub, "live", "n2")
        set_limits(limits, hello_s=0.5)
        assert await_state(hub, "lost", "n3") == "no hello from this node within 0.5 s"
        assert (state(hub, "n1"), state(hub, "n2")) == ("live", "live")


def test_a_node_that_is_late_is_still_welcome(tmp_path: Path) -> None:
    limits, go = patient(), tmp_path / "go"
    late = f"while not os.path.exists({str(go)!r}): time.sleep(0.02)"
    code = f"hello('n1'); beat('n1')\n{late}\nhello('n2'); beat('n2'); hang()"
    with opened(program(code, "n1", "n2"), limits=limits) as hub:
        await_state(hub, "live", "n1")
        set_limits(limits, hello_s=0.5)
        await_state(hub, "lost", "n2")
        go.touch()
        await_state(hub, "live", "n2")


def test_a_node_of_several_that_falls_silent_gets_a_channel_of_its_own() -> None:
    limits = patient()
    alone = well_behaved(node="n2")
    code = "hello('n1'); hello('n2'); sample('n2'); beat('n1'); hang()"
    with opened(program(code, "n1", "n2", rejoin=lambda nodes: replace(alone, nodes=nodes)), limits=limits) as hub:
        await_state(hub, "live", "n1")
        await_state(hub, "live", "n2")
        set_limits(limits, silence_s=3.0)  # n1 speaks 60 times in it
        assert await_reason(hub, "nothing from this node for 3 s", "n2") == "lost"
        set_limits(limits, silence_s=DEADLINE_S)
        hub.retry(["n2"])
        await_state(hub, "live", "n2")
        assert state(hub, "n1") == "live" and hub.node("n1").connection.restarts == 0


def test_a_node_that_its_carrier_says_is_gone_is_lost_at_once_and_a_refused_one_is_left_alone() -> None:
    def ended(line: str) -> tuple[str, Ending] | None:
        node, _, words = line.partition(": ")
        return (node, Ending(words, retry="denied" not in words)) if words else None

    code = """
hello('n1'); beat('n1')
print("some words\\nn2: Permission denied\\nn3: Connection refused\\nn9: nobody asked", file=sys.stderr, flush=True)
hang()
"""
    channel = program(
        code,
        "n1",
        "n2",
        "n3",
        node_endings=lambda: ended,
        rejoin=lambda nodes: replace(well_behaved(node=nodes[0]), nodes=nodes),
    )
    with opened(channel, limits=patient(retry_first_s=0.5)) as hub:
        assert await_state(hub, "refused", "n2") == "Permission denied"
        await_state(hub, "live", "n3")
        assert (state(hub, "n1"), state(hub, "n2")) == ("live", "refused")
        hub.retry()
        await_state(hub, "live", "n2")
        assert hub.node("n1").connection.restarts == 0


def test_only_so_many_connect_at_once_and_a_slow_one_gives_its_place_back(tmp_path: Path) -> None:
    limits = patient(connecting=2, slot_s=1.0)
    channels = [program(f"open({str(tmp_path)!r} + '/n{n}', 'w'); hang()", f"n{n}") for n in range(5)]
    with opened(*channels, limits=limits) as hub:
        assert await_reason(hub, "starting local", "n0") == "connecting"
        assert await_reason(hub, "waiting for a slot", "n4") == "connecting"
        wait_until(lambda: len(list(tmp_path.iterdir())) == 5, DEADLINE_S, "all of them")
        assert await_reason(hub, "starting local", "n4") == "connecting"


def test_one_gate_lets_only_some_through_and_does_not_hold_the_others() -> None:
    limits = patient(per_gate=1, slot_s=DEADLINE_S)
    slow = [program("hang()", f"g{n}", gate="bastion") for n in range(3)]
    with opened(*slow, well_behaved(node="free"), limits=limits) as hub:
        await_state(hub, "live", "free")
        reasons = [hub.node(f"g{n}").state.reason for n in range(3)]
        assert reasons == ["starting local", "waiting for a slot", "waiting for a slot"]


def test_many_start_while_others_are_read() -> None:
    channels = [well_behaved(node="first"), *(Channel(("sleep", "60"), (f"n{n}",)) for n in range(100))]
    with opened(*channels, limits=patient(slot_s=0.05)) as hub:
        wait_until(lambda: hub.node("n99").state.reason == "starting local", DEADLINE_S, "the last one")
        await_state(hub, "live", "first")
