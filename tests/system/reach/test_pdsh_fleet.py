"""`--via pdsh` with the real pdsh over real sshds: samples, requests, failures, and what is left behind."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mltop.probes.agent.protocol import encode
from mltop.probes.reach.bundle import file_for, opening
from mltop.probes.reach.launchers.remote_command import remote_command
from tests.hosts.cluster import REPOSITORY, Hosts
from tests.hosts.host import Host
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts

# A hub that answers one line with one line: states of all nodes, or what they answer to a request.
PROGRAM = """
import json, sys
from mltop.probes.reach.channel import LaunchOptions
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.launchers import pdsh

nodes = tuple(sys.argv[1].split(","))
hub = Hub(pdsh.launch(nodes, LaunchOptions(interval_s=0.5)), 0.5)
hub.start()
for line in sys.stdin:
    words = line.split(None, 2)
    if words[0] == "states":
        said = {view.node: [view.state.state, view.state.reason] for view in hub.view().nodes}
    else:
        pending = hub.request(words[1], json.loads(words[2]))
        parts = [answer for answer in pending.answers(30.0)]
        said = {
            "stacks": {
                a.node: [(d.rank, d.frames[0].function) for d in a.message.stacks.digests if not d.error]
                for a in parts if a.message.stacks
            },
            "done": {a.node: a.message.data for a in parts if a.message.kind == "done"},
            "failed": {a.node: a.message.error for a in parts if a.message.kind == "error"},
        }
    print(json.dumps(said), flush=True)
hub.close()
"""
RANK = "import time\ndef train():\n    while True: time.sleep(0.01)\ntrain()"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """h01 to h04 have the agent in their caches, as a snapshot by ssh leaves it; h05 has nothing."""
    with Hosts(5) as cluster:
        for name in cluster.names[:4]:
            install(cluster[name])
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left(hosts: Hosts) -> Iterator[None]:
    yield
    for host in hosts:
        host.heal()
    try:
        hosts.wait_clean()
    finally:
        for host in (hosts.login, *hosts):
            host.kill_strangers()


def install(host: Host) -> None:
    """By the bootstrap itself, whose agent ends with its stdin; py-spy as an agent keeps it."""
    machine = platform.machine()
    subprocess.run(
        host.command(["sh", "-c", remote_command(["--interval", "9"])]),
        env=host.environment(),
        input=opening() + encode(file_for("bundle", machine)),
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    args = file_for("py-spy", machine).args
    py_spy = host.home / ".cache/mltop" / f"py-spy-{args['sha256']}"
    py_spy.write_bytes(gzip.decompress(base64.b64decode(args["data"])))
    py_spy.chmod(0o700)


class Session:
    """The program on the login node."""

    def __init__(self, hosts: Hosts, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._hosts = hosts

    def ask(self, line: str) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        assert said, "the program ended"
        return json.loads(said)

    def states(self) -> dict[str, str]:
        return {node: state for node, (state, _) in self.ask("states").items()}

    def reason(self, node: str) -> str:
        return str(self.ask("states")[node][1])

    def wait_states(self, wanted: dict[str, str], timeout_s: float = 60.0) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self.states() == wanted, timeout_s)
        assert self.states() == wanted, self.ask("states")

    def wait_live(self, node: str) -> None:
        wait_until(lambda: self.states()[node] == "live", 60, node)

    def kill(self) -> None:
        """SIGKILL, to the program alone."""
        own = [process for process in self._hosts.login.processes() if PROGRAM[:40] in process.command]
        self._hosts.login.signal("KILL", *(process.pid for process in own))
        self.process.wait(10)


@contextlib.contextmanager
def session(hosts: Hosts, *names: str, **env: str) -> Iterator[Session]:
    process = hosts.login.start(
        [sys.executable, "-c", PROGRAM, ",".join(names)],
        env={**hosts.mltop_environment(), **env},
        cwd=str(REPOSITORY),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Session(hosts, process)
    finally:
        assert process.stdin and process.stdout
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait(30)
        process.stdout.close()


@contextlib.contextmanager
def rank(host: Host, number: int) -> Iterator[None]:
    """A training process as a launcher would start it."""
    environment = {"RANK": str(number), "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "h01", "MASTER_PORT": "1"}
    process = host.start(host.as_login([sys.executable, "-c", RANK]), env=environment, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        host.signal("KILL", *(found.pid for found in host.processes() if RANK[:20] in found.command))
        process.wait(10)


def test_one_pdsh_carries_the_samples_of_several_nodes(hosts: Hosts) -> None:
    with session(hosts, "h01", "h02", "h03") as running:
        running.wait_states(dict.fromkeys(("h01", "h02", "h03"), "live"))
        programs = [process for process in hosts.login.processes() if process.command.startswith("pdsh")]
        assert len(programs) == 1


def test_requests_go_by_a_pdsh_of_their_own(hosts: Hosts) -> None:
    with session(hosts, "h01", "h02", "h03") as running, rank(hosts["h01"], 0), rank(hosts["h02"], 1):
        running.wait_states(dict.fromkeys(("h01", "h02", "h03"), "live"))
        said = running.ask('request stacks {"job": ""}')
        assert said["failed"] == {}
        assert said["stacks"] == {"h01": [[0, "train"]], "h02": [[1, "train"]]}
        assert sorted(said["done"]) == ["h01", "h02", "h03"]
        other = running.ask('request stacks {"job": "it\'s \\"another\\" job! 100% \\\\ $HOME `id`"}')
        assert (other["failed"], other["stacks"]) == ({}, {})
        checks = running.ask("request doctor {}")["done"]["h03"]["checks"]
        assert "python" in [check["name"] for check in checks]
        assert running.ask("request dance {}")["failed"]["h01"] == "unknown operation 'dance'"
        running.wait_states(dict.fromkeys(("h01", "h02", "h03"), "live"))


def test_a_node_without_the_agent_says_so_and_how_it_gets_there(hosts: Hosts) -> None:
    with session(hosts, "h01", "h05") as running:
        running.wait_states({"h01": "live", "h05": "lost"})
        assert running.reason("h05").startswith("the agent is not on this node (once: mltop snapshot -w h05 ")
        assert "agent" in running.ask("request doctor {}")["failed"]["h05"]
    assert not (hosts["h05"].home / ".cache").exists()


def test_nodes_that_cannot_be_reached_hold_nobody(hosts: Hosts) -> None:
    hosts["h02"].stop_sshd()
    hosts["h03"].drop_connects()
    hosts["h04"].hang_login()
    for last_try in (False, False, True):  # 8 s, a connection's deadline, are short on a machine that is busy
        with session(hosts, "h01", "h02", "h03", "h04") as running:
            running.wait_live("h01")
            given_up = "timed out" in running.reason("h03")
        if not given_up:
            break
        assert not last_try, "the good node waited for one that cannot be reached"
    with session(hosts, "h01", "h02", "h03", "h04") as running:
        running.wait_live("h01")
        assert "live" not in (running.states()[name] for name in ("h02", "h03", "h04"))
        reasons = {"h02": "connection refused", "h03": "timed out", "h04": "no hello"}
        for name, words in reasons.items():
            wait_until(lambda name=name, words=words: words in running.reason(name), 60, f"{name}: {words}")
        running.wait_live("h01")


def test_a_node_that_goes_away_says_why_and_comes_back_while_the_others_go_on(hosts: Hosts) -> None:
    with session(hosts, "h01", "h02") as running:
        running.wait_states({"h01": "live", "h02": "live"})
        other = agents(hosts["h01"])[0]  # the channel's; those after it are its children, and some of them end soon
        hosts["h02"].stop_sshd()
        wait_until(lambda: running.reason("h02") == "connection refused: no sshd is listening", 60, "the reason")
        running.wait_states({"h01": "live", "h02": "lost"})
        hosts["h02"].heal()
        running.wait_states({"h01": "live", "h02": "live"}, 120)
        hosts["h02"].remove_key()
        hosts["h02"].signal("KILL", *agents(hosts["h02"]))
        wait_until(lambda: running.states()["h02"] == "refused", 60, "the refusal")
        assert running.reason("h02").startswith("login refused")
        running.wait_live("h01")
        assert agents(hosts["h01"])[0] == other


def test_agents_end_soon_after_their_link_is_cut_and_the_node_comes_back_with_it(hosts: Hosts) -> None:
    with session(hosts, "h01", "h02") as running:
        running.wait_states({"h01": "live", "h02": "live"})
        hosts["h02"].cut_link()
        wait_until(lambda: agents(hosts["h02"]) == [], 60, "the agent's end")  # the kernel alone would take 15 minutes
        wait_until(lambda: running.states()["h02"] == "lost", 60, "a node that is missed")
        running.wait_live("h01")
        hosts["h02"].heal()
        running.wait_states({"h01": "live", "h02": "live"}, 120)


def test_the_commands_work_by_pdsh(hosts: Hosts) -> None:
    done = hosts.mltop("snapshot", "-w", hosts.pattern, "--via", "pdsh", "--json", "--timeout", "15", check=False)
    report = json.loads(done.stdout)
    assert [node["node"] for node in report["nodes"]] == hosts.names
    states = [node["state"] for node in report["nodes"]]
    assert {*states[:4]} <= {"live", "stale"}  # on a busy machine the newest sample may be some seconds old
    assert states[4] == "lost"
    assert [sample["node"] for sample in report["samples"]] == hosts.names[:4]
    assert "h05 lost: the agent is not on this node" in done.stderr
    with rank(hosts["h02"], 1):

        def dumped() -> bool:
            command = ("stacks", "-w", "h[01-03]", "--via", "pdsh", "--json", "--samples", "2")
            report = json.loads(hosts.mltop(*command, check=False).stdout)
            found = {(one["node"], one["rank"], one["frames"][0]["function"]) for one in digests_of(report)}
            return found == {("h02", 1, "train")}

        wait_until(dumped, 120, "the stack")  # on a busy machine a node may answer later than a dump waits


def digests_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [digest for job in report["jobs"] for digest in job["digests"]]


@pytest.mark.parametrize("shell", ["zsh", "tcsh", "fish", "dash"])
def test_every_login_shell_starts_the_agent(hosts: Hosts, shell: str) -> None:
    hosts["h04"].use_shell(f"/usr/bin/{shell}")
    with session(hosts, "h04") as running:
        running.wait_states({"h04": "live"})
        assert running.ask('request stacks {"job": "it\'s! \\\\ \\"one\\""}')["failed"] == {}


def test_a_cache_that_others_can_write_to_is_not_run(hosts: Hosts) -> None:
    cache = hosts["h04"].home / ".cache" / "mltop"
    cache.chmod(0o770)
    try:
        with session(hosts, "h01", "h04") as running:
            running.wait_states({"h01": "live", "h04": "lost"})
            assert "is not on this node" in running.reason("h04")
    finally:
        cache.chmod(0o700)


def agents(host: Host) -> list[int]:
    return [process.pid for process in host.strangers() if "mltop.probes.agent" in process.command]


def test_killing_mltop_leaves_no_agent(hosts: Hosts) -> None:
    names = hosts.names[:4]
    with session(hosts, *names) as running:
        running.wait_states(dict.fromkeys(names, "live"))
        assert all(agents(hosts[name]) for name in names)
        running.kill()
        for host in (hosts.login, *hosts):
            host.wait_clean(10)
