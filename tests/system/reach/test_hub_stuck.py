"""Logins that hang, shared connections that are stuck, links that are slow: seen with made-up channels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mltop.probes.agent.protocol import Request
from mltop.probes.reach import hub as hub_module
from mltop.probes.reach.channel import Channel, Ending
from tests.fakes.agents import program, well_behaved
from tests.hubs import DEADLINE_S, await_reason, await_state, opened, patient, set_limits, state
from tests.waiting import wait_until

ROOT = Path(hub_module.__file__).parents[3]
# An ssh whose remote shell hangs: it reads nothing, so the end of its stdin is not seen.
HANGING_LOGIN = """
import time
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
hub = Hub([Channel(("sleep", "600"), ("n1",), via="ssh", opening=lambda: b"x")], 0.2)
hub.start()
while hub.node("n1").state.reason != "starting ssh": time.sleep(0.05)
print("started", flush=True)
time.sleep(600)
"""


def logins(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if child.name() == "sleep"]


@pytest.mark.parametrize("tool", ["setpriv", "none"])
def test_a_login_that_hangs_ends_with_us(tmp_path: Path, tool: str) -> None:
    """Also where there is no setpriv(1)."""
    (tmp_path / "sleep").symlink_to("/bin/sleep")
    path = os.environ["PATH"] if tool == "setpriv" else str(tmp_path)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    process = subprocess.Popen([sys.executable, "-c", HANGING_LOGIN], env=environ, stdout=subprocess.PIPE)
    assert process.stdout
    try:
        assert process.stdout.readline() == b"started\n"
        below = wait_until(lambda: logins(process.pid), DEADLINE_S, "the login")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    _, alive = psutil.wait_procs(below, DEADLINE_S)
    for child in alive:
        child.kill()
    assert not alive, alive


def stuck(fallback: Channel) -> Channel:
    return program("hang()", fallback=fallback, fallback_fix="a stuck ControlMaster: ssh -O exit n1", via="ssh")


def test_after_a_start_that_nothing_was_heard_of_another_way_is_tried() -> None:
    limits = patient(hello_s=0.5)
    with opened(stuck(well_behaved()), limits=limits) as hub:
        assert await_state(hub, "lost") == (
            "no answer from its shell within 0.5 s "
            "(look at its home directory and start-up files, or give it more time: --timeout 60; "
            "a stuck ControlMaster: ssh -O exit n1)"
        )
        set_limits(limits, hello_s=DEADLINE_S)
        hub.retry()
        await_state(hub, "live")


def test_another_way_that_is_refused_is_not_the_end(tmp_path: Path) -> None:
    """Where a login needs a second factor only the shared connection gets in; meanwhile it works again."""
    runs = tmp_path / "runs"
    code = f"open({str(runs)!r}, 'a').write('x')\nif len(open({str(runs)!r}).read()) == 1: hang()\n"
    refused = program("sys.exit(255)", ending=lambda code, words: Ending("login refused", "ssh-add", retry=False))
    channel = well_behaved(code, fallback=refused, fallback_fix="a stuck ControlMaster: ssh -O exit n1", via="ssh")
    limits = patient()
    with opened(channel, limits=limits) as hub:
        wait_until(runs.exists, DEADLINE_S, "the first try")
        set_limits(limits, hello_s=0.5)
        await_reason(hub, "no answer from its shell")
        set_limits(limits, hello_s=DEADLINE_S)
        hub.retry()
        assert await_reason(hub, "without the shared connection: login refused (a stuck ControlMaster") == "lost"
        hub.retry()
        await_state(hub, "live")
    assert runs.read_text() == "xx"


def test_a_boot_frame_shows_that_the_way_in_is_fine(tmp_path: Path) -> None:
    used = tmp_path / "used"
    fallback = program(f"open({str(used)!r}, 'w'); hang()")
    channel = replace(stuck(fallback), argv=program("boot(True); hang()").argv)
    limits = patient()
    with opened(channel, limits=limits) as hub:
        await_reason(hub, "starting the agent")
        set_limits(limits, hello_s=0.5)
        assert await_state(hub, "lost") == "no hello from its agent within 0.5 s"
        assert not used.exists()


def test_an_end_before_any_frame_is_the_logins() -> None:
    def login(code: int | None, words: str, of_eof: bool) -> Ending:
        assert not of_eof
        return Ending(f"login {code}: {words.strip()}", retry=False)

    nobody = program("print('no such account'); sys.exit(1)", login_ending=login)
    later = program("boot(True); sys.exit('out of memory')", "n2", login_ending=login)
    with opened(nobody, later, limits=patient()) as hub:
        reason = await_state(hub, "refused")
        assert reason.startswith("login 1: no such account")
        assert await_state(hub, "lost", "n2") == "the agent ended (exit code 1): out of memory"


def test_a_node_that_tells_its_progress_is_waited_for() -> None:
    code = """
boot()
next(requests())
for _ in range(40):
    say(Message("progress")); time.sleep(0.1)
hello(); beat(); hang()
"""
    limits = patient()
    with opened(program(code), limits=limits, file_for=lambda name, machine: Request("file", op=name)) as hub:
        await_reason(hub, "installing the agent (")
        set_limits(limits, hello_s=2.0)  # half of what it takes
        await_state(hub, "live")
        assert hub.node("n1").connection.restarts == 0


def test_a_long_file_is_given_the_time_that_a_slow_link_takes() -> None:
    big = Request("file", op="bundle", args={"data": "x" * 50_000})  # 10 s at 5 kB/s
    code = "boot()\nnext(requests())\ntime.sleep(2.5)\nhello(); beat(); hang()"
    limits = patient()
    with opened(program(code), limits=limits, file_for=lambda name, machine: big) as hub:
        await_reason(hub, "installing the agent (48.9 KiB)")
        set_limits(limits, hello_s=0.5)
        await_state(hub, "live")
        assert hub.node("n1").connection.restarts == 0


def test_nodes_that_are_lost_together_come_back_together() -> None:
    def rejoined(nodes: tuple[str, ...]) -> Channel:
        hellos = "".join(f"hello({node!r})\n" for node in nodes)
        return program(f"{hellos}beat(*{nodes!r})\nhang()", *nodes, via=f"rejoin of {len(nodes)}")

    def ended(line: str) -> tuple[str, Ending] | None:
        node, _, words = line.partition(": ")
        return (node, Ending(words, retry="denied" not in words)) if words else None

    lines = "".join(f"n{number}: Connection closed\\n" for number in range(2, 6)) + "n6: denied"
    code = f"hello('n1'); beat('n1')\nprint('{lines}', file=sys.stderr, flush=True)\nhang()"
    nodes = [f"n{number}" for number in range(1, 7)]
    with opened(
        program(code, *nodes, node_endings=lambda: ended, rejoin=rejoined), limits=patient(retry_first_s=0.2)
    ) as hub:
        for node in nodes[1:5]:
            await_state(hub, "live", node)
            assert hub.node(node).connection.via == "rejoin of 4"
        assert (state(hub), state(hub, "n6")) == ("live", "refused")
