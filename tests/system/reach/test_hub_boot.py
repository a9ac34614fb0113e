"""The bootstrap seen from the hub: which file goes where, once, and what the node's state says meanwhile."""

from __future__ import annotations

import threading
from typing import Any

from mltop.probes.agent.protocol import Request
from mltop.probes.reach.pacing import Limits
from tests.fakes.agents import ANSWERS, program
from tests.hubs import DEADLINE_S, await_reason, await_state, opened, patient, set_limits, state

# Stage 1: wait for the file, then be the agent that tells in its answers what it got.
INSTALL = """
got = next(request for request in requests() if request.kind == "file")
hello()
beat()
for request in requests():
    if request.kind == "file": got = request
    elif request.op == "what":
        size = len(got.args.get("data", ""))
        say(Message("done", id=request.id, data={"op": got.op, **got.args, "data": "", "size": size}))
    elif request.op == "ask":
        say(Message("need", id=request.id, data={"file": "py-spy", "machine": "m1"}))
        say(Message("done", id=request.id))
    elif request.kind == "request": say(Message("done", id=request.id, data=request.args))
"""


class Shelf:
    """Stands for the bundle: remembers what was asked for."""

    def __init__(self, data: str = "payload", fail: bool = False) -> None:
        self.asked: list[tuple[str, str]] = []
        self._data, self._fail = data, fail
        self.go = threading.Event()
        self.go.set()

    def file_for(self, name: str, machine: str) -> Request:
        self.asked.append((name, machine))
        assert self.go.wait(DEADLINE_S)
        if self._fail:
            raise OSError("no space left")
        return Request("file", op=name, args={"sha256": "55", "data": self._data})

    def opened(self, *channels: Any, limits: Limits | None = None) -> Any:
        return opened(*channels, limits=limits, file_for=self.file_for, py_spy_for=lambda machine: f"spy-{machine}")


def test_a_node_without_the_bundle_gets_it_and_one_with_it_does_not() -> None:
    shelf = Shelf(data="x" * 3_000_000)  # more than a pipe takes at once
    cached = f"boot(cached=True)\nhello()\nbeat()\n{ANSWERS}"
    with shelf.opened(program(f"boot()\n{INSTALL}"), program(cached, "n2")) as hub:
        await_state(hub, "live")
        await_state(hub, "live", "n2")
        (answer,) = hub.request("what", nodes=["n1"]).answers(DEADLINE_S)
        assert answer.message.data["op"] == "bundle" and answer.message.data["size"] == 3_000_000
        boot = hub.node("n1").connection.boot
        assert boot is not None and (boot.machine, boot.cached) == ("m1", False)
    assert shelf.asked == [("bundle", "m1")]


def test_the_state_says_what_is_going_on() -> None:
    shelf = Shelf()
    shelf.go.clear()
    waiting = "time.sleep(1.0)\nboot()\nnext(requests())\nhang()"
    with shelf.opened(program(waiting, via="ssh"), program("boot(True); hang()", "n2")) as hub:
        assert await_reason(hub, "starting ssh") == "connecting"
        assert await_reason(hub, "starting the agent", "n2") == "connecting"
        assert await_reason(hub, "installing the agent") == "connecting"
        shelf.go.set()
        assert await_reason(hub, "installing the agent (") == "connecting"
        assert state(hub, "n2") == "connecting"


def test_a_bundle_that_cannot_be_made_is_told_to_the_node() -> None:
    with Shelf(fail=True).opened(program(f"boot()\n{INSTALL}")) as hub:
        await_state(hub, "live")
        (answer,) = hub.request("what").answers(DEADLINE_S)
        assert answer.message.data["error"] == "cannot make bundle for m1: OSError: no space left"


def test_stacks_name_the_py_spy_that_can_be_sent_and_it_is_sent_once() -> None:
    shelf = Shelf()
    with shelf.opened(program(f"boot()\n{INSTALL}")) as hub:
        await_state(hub, "live")
        (answer,) = hub.request("stacks", {"native": True}).answers(DEADLINE_S)
        assert answer.message.data == {"native": True, "py_spy": "spy-m1"}
        for _ in range(2):
            assert len(list(hub.request("ask").answers(DEADLINE_S))) == 1
        (answer,) = hub.request("echo", {"plain": 1}).answers(DEADLINE_S)
        assert answer.message.data == {"plain": 1}
    assert shelf.asked == [("bundle", "m1"), ("py-spy", "m1")]


def test_several_nodes_of_one_stream_share_a_file() -> None:
    shelf = Shelf()
    code = """
boot(node="n1"); boot(node="n2")
next(requests())
hello("n1"); hello("n2")
beat("n1", "n2")
hang()
"""
    with shelf.opened(program(code, "n1", "n2")) as hub:
        await_state(hub, "live")
        await_state(hub, "live", "n2")
    assert shelf.asked == [("bundle", "m1")]


def test_an_error_of_the_node_itself_is_its_reason() -> None:
    code = 'say(Message("error", error="no Python 3.9 or newer", fix="--python PATH")); sys.exit(97)'
    with opened(program(code)) as hub:
        assert await_state(hub, "lost") == "no Python 3.9 or newer (--python PATH)"
        # Still so when it was tried again, which it is.
        hub.retry()
        assert await_state(hub, "lost") == "no Python 3.9 or newer (--python PATH)"


def test_an_error_of_one_node_leaves_the_others_of_its_stream() -> None:
    code = 'hello("n1"); say(Message("error", node="n2", error="no Python")); beat("n1"); hang()'
    with opened(program(code, "n1", "n2")) as hub:
        assert await_state(hub, "lost", "n2") == "no Python"
        await_state(hub, "live")


def test_a_node_that_never_gets_beyond_its_boot_is_lost() -> None:
    limits = patient()
    with Shelf().opened(program("print('Killed', file=sys.stderr, flush=True)\nboot()\nhang()"), limits=limits) as hub:
        await_reason(hub, "installing the agent (")
        set_limits(limits, hello_s=0.5)
        assert await_state(hub, "lost") == "no hello from its agent within 0.5 s: Killed"
