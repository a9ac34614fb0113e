"""Carriers of several nodes: whose a frame is says the carrier's label, never the frame itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from mltop.probes.reach.channel import Channel, Speakers
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.launchers import pdsh, srun
from tests.fakes.agents import program
from tests.waiting import wait_until

DEADLINE_S = 60.0
NODES = ("h01", "h02")
# `say_as(label, message)`: a line as pdsh and srun pass it on. `beat_as`: 20 samples a second of a node that is well.
LABELLED = """
from mltop.probes.agent.protocol import split
def put(data):
    with lock: sys.stdout.buffer.write(data); sys.stdout.buffer.flush()
def say_as(label, *messages): put(b"".join(label.encode() + b": " + encode(each, TEXT_MARK) for each in messages))
def told(node, boot_id): return both(Sample(node, time.time(), boot_id))
def hello_as(label, node):
    say_as(label, Message("hello", node=node, hello=Hello(__version__, 1, 1, "3", node, "m1")))
def beat_as(label, node):
    def run():
        while True:
            say_as(label, *told(node, "true"))
            time.sleep(0.05)
    threading.Thread(target=run, daemon=True).start()
"""


def carrier(code: str, speakers: Callable[[], Speakers], **fields: object) -> Channel:
    return program(LABELLED + code, *NODES, speakers=speakers, takes_requests=False, **fields)


@contextmanager
def watched(channel: Channel) -> Iterator[Hub]:
    hub = Hub([channel], 0.1)
    hub.start()
    try:
        yield hub
    finally:
        hub.close()


def state(hub: Hub, node: str) -> str:
    return hub.node(node).state.state


@pytest.mark.parametrize(
    ("labels", "speakers", "launching"),
    [
        (NODES, partial(pdsh.Speakers, NODES), ""),
        (
            ("1", "0"),
            partial(srun.Speakers, NODES),
            'print("srun: launching StepId=7.0 on host h02, 1 tasks: 0\\nsrun: launching StepId=7.0 on host h01, '
            '1 tasks: 1", file=sys.stderr, flush=True)',
        ),
        (("0", "1"), partial(srun.Speakers, NODES), ""),
    ],
    ids=["pdsh", "srun", "srun that does not tell"],
)
def test_a_node_that_speaks_for_another_is_refused_and_the_other_goes_on(
    labels: tuple[str, str], speakers: Callable[[], Speakers], launching: str
) -> None:
    good, bad = labels
    code = f"""
{launching}
hello_as({good!r}, "h01")
beat_as({good!r}, "h01")
hello_as({bad!r}, "h02")
say_as({bad!r}, *told("h02", "true"))
time.sleep(0.3)
while True:
    say_as({bad!r}, *told("h01", "forged"))
    time.sleep(0.02)
"""
    with watched(carrier(code, speakers, rejoin=lambda nodes: program("hang()", *nodes))) as hub:
        wait_until(lambda: state(hub, "h02") == "refused", DEADLINE_S, "the refusal")
        assert "in the name of h01" in hub.node("h02").state.reason
        for _ in range(20):
            view = hub.node("h01")
            assert view.state.state == "live"
            assert view.sample is not None
            assert view.sample.boot_id == "true"


def test_whoever_names_a_node_first_is_not_believed_when_another_names_it_too() -> None:
    code = """
hello_as("1", "h01")
for _ in range(5):
    say_as("1", *told("h01", "forged"))
hello_as("0", "h01")
beat_as("0", "h01")
while True:
    say_as("1", *told("h01", "late forgery"))
    hello_as("2", "h02")
    say_as("2", *told("h02", "true"))
    time.sleep(0.02)
"""
    with watched(carrier(code, partial(srun.Speakers, NODES))) as hub:
        wait_until(lambda: state(hub, "h02") == "live", DEADLINE_S, "the other node")
        before = hub.node("h01").sample
        assert before is None or before.boot_id == "forged"  # until the other one spoke
        for _ in range(20):
            time.sleep(0.02)
            sample = hub.node("h01").sample
            assert sample is None or sample.boot_id == "forged"
        wait_until(lambda: state(hub, "h01") != "live", DEADLINE_S, "h01 to be given up")


def test_pieces_of_two_nodes_with_one_key_are_not_mixed() -> None:
    """The key is what a node writes: one that learns another's must not be able to complete its frames."""
    code = """
hello_as("h01", "h01"); hello_as("h02", "h02")
def pieces(label, boot_id):
    payloads = [encode(message).split(b" ", 2)[2][:-1] for message in told(label, boot_id)]
    return [label.encode() + b": " + line for payload in payloads for line in split(payload, "key", 120)]
while True:
    ours, theirs = pieces("h01", "true"), pieces("h02", "forged")
    put(b"".join(line for pair in zip(ours, theirs) for line in pair) + b"".join(ours[len(theirs):]))
    time.sleep(0.05)
"""
    with watched(carrier(code, partial(pdsh.Speakers, NODES))) as hub:
        for node, boot_id in (("h01", "true"), ("h02", "forged")):
            wait_until(lambda: state(hub, node) == "live", DEADLINE_S, f"{node} live")  # noqa: B023
            sample = hub.node(node).sample
            assert sample is not None
            assert sample.boot_id == boot_id


def test_a_line_without_a_label_or_with_one_of_nobody_is_noise() -> None:
    code = """
put(encode(Message("hello", node="h01", hello=Hello(__version__, 1, 1, "3", "h01", "m1")), TEXT_MARK))
put(b"".join(encode(each, TEXT_MARK) for each in told("h01", "forged")))
say_as("h99", *told("h01", "forged")); say_as("", *told("h01", "forged"))
hello_as("h02", "h02")
beat_as("h02", "h02")
hang()
"""
    with watched(carrier(code, partial(pdsh.Speakers, NODES))) as hub:
        wait_until(lambda: state(hub, "h02") == "live", DEADLINE_S, "the other node")
        assert state(hub, "h01") == "connecting"
        assert hub.node("h01").sample is None


def test_an_answer_in_the_name_of_another_node_is_no_answer() -> None:
    answers = """
say_as("h01", Message("done", node="h01", data={"whose": "h01"}))
say_as("h02", Message("done", node="h01", data={"whose": "forged"}))
"""
    speakers = partial(pdsh.Speakers, NODES)
    code = 'hello_as("h01", "h01"); hello_as("h02", "h02"); beat_as("h01", "h01"); beat_as("h02", "h02"); hang()'
    for order in (answers, "\n".join(reversed(answers.strip().split("\n")))):
        one_shot = partial(_one_shot, order, speakers)
        with watched(carrier(code, speakers, one_shot=one_shot)) as hub:
            for node in NODES:
                wait_until(lambda: state(hub, node) == "live", DEADLINE_S, f"{node} live")  # noqa: B023
            pending = hub.request("doctor", {}, NODES)
            found = {answer.node: answer.message for answer in pending.answers(DEADLINE_S)}
            assert found["h01"].data == {"whose": "h01"}
            assert found["h02"].kind == "error"
            assert "in the name of h01" in found["h02"].error


def _one_shot(code: str, speakers: Callable[[], Speakers], nodes: tuple[str, ...], _: object) -> Channel:
    return program(LABELLED + code, *nodes, speakers=speakers, takes_requests=False)


@pytest.mark.parametrize(
    ("nodes", "label", "named", "node"),
    [
        (("h01", "h02"), "h01", "h02", "h01"),
        (("h01.x.org", "h02.x.org"), "h01", "", "h01.x.org"),
        (("h01.x.org", "h02.y.org"), "h01.x.org", "", "h01.x.org"),
        (("10.0.0.1", "10.0.0.2"), "10.0.0.1", "", "10.0.0.1"),
        (("a.x.org", "a.y.org"), "a", "a.y.org", "a.y.org"),
        (("a.x.org", "a.y.org"), "a", "b", None),
        (("h01",), "h02", "h01", None),
        (("h01",), "", "h01", None),
    ],
)
def test_whom_pdsh_means(nodes: tuple[str, ...], label: str, named: str, node: str | None) -> None:
    speakers = pdsh.Speakers(nodes)
    assert (speakers.node_of(label) or speakers.claim(label, named)) == node


def test_whom_srun_means() -> None:
    speakers = srun.Speakers(("gpu01", "gpu02", "gpu03"))
    assert speakers.node_of("0") is None
    assert speakers.claim("0", "gpu02") == "gpu02"
    assert speakers.claim("1", "gpu02") is None  # somebody else's
    assert speakers.claim("1", "gpu09") is None  # not one of ours
    assert speakers.claim("x", "gpu01") is None
    speakers.hear("1: srun: launching StepId=1.0 on host gpu03, 1 tasks: 1")  # a task wrote that
    assert speakers.node_of("1") is None
    speakers.hear("srun: launching StepId=1.0 on host gpu01, 1 tasks: 0")
    speakers.hear("srun: launching StepId=1.0 on host gpu03, 1 tasks: 12")
    assert (speakers.node_of("0"), speakers.node_of("12"), speakers.node_of("012")) == ("gpu01", "gpu03", "gpu03")
    assert speakers.claim("2", "gpu02") is None  # srun tells: what it has not told is nobody
