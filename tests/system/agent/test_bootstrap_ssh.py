"""The ssh launcher over a real sshd: the agent installs itself, failures have their words, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mltop.probes.reach.channel import Channel, Ending, LaunchOptions
from mltop.probes.reach.launchers import ssh
from tests.bootstrapping import running
from tests.documents import ROOT
from tests.fakes.scripts import shell_script
from tests.hubs import DEADLINE_S, await_state, opened, patient, set_limits
from tests.ports import free_port
from tests.waiting import wait_until

# A caller that starts a channel as the hub does, and then does nothing until it is killed.
CALLER = """
import sys, time
from mltop.probes.reach.channel import LaunchOptions
from mltop.probes.reach.launchers import ssh
from tests.bootstrapping import Bootstrapped
(channel,) = ssh.launch((sys.argv[1],), LaunchOptions())
node = Bootstrapped(channel.argv)
node.boot()
print(node.process.pid, flush=True)
time.sleep(600)
"""


@dataclass
class Server:
    """A running sshd and the folder with its keys and the cache of those who log in."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def host(self, name: str, *settings: str, key: str = "user_key") -> None:
        """One more name for it in the user's configuration; the first value of a setting counts."""
        lines = [
            *settings,
            "HostName 127.0.0.1",
            f"Port {self.port}",
            f'IdentityFile "{self.folder}/{key}"',
            "IdentitiesOnly yes",
            f'UserKnownHostsFile "{self.folder}/known_hosts"',
            "GlobalKnownHostsFile /dev/null",
        ]
        with open(self.folder / "config", "a") as file:
            file.write(f"Host {name}\n" + "".join(f"  {line}\n" for line in lines))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An sshd of this user on a port of its own, known to an `ssh` that reads our configuration file."""
    for key in ("host_key", "user_key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    (tmp_path / "banner").write_text("Authorized users only\n")
    (tmp_path / "cache").mkdir()
    settings = [
        "ListenAddress 127.0.0.1",
        f'HostKey "{tmp_path}/host_key"',
        f'AuthorizedKeysFile "{tmp_path}/user_key.pub"',
        f'Banner "{tmp_path}/banner"',
        f'SetEnv "XDG_CACHE_HOME={tmp_path}/cache"',
        "StrictModes no",
        "UsePAM no",
        "PidFile none",
    ]
    (tmp_path / "sshd_config").write_text("\n".join(settings) + "\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    wrapper = shell_script(tmp_path / "bin/ssh", 'exec /usr/bin/ssh -F {config} "$@"', config=tmp_path / "config")
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    port, process = start_sshd(tmp_path)
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host_key.pub').read_text()}")
    try:
        yield Server(tmp_path, port, process)
    finally:
        process.terminate()
        process.wait(10)


def start_sshd(folder: Path) -> tuple[int, subprocess.Popen[bytes]]:
    """On a free port; another one when somebody takes it meanwhile."""
    while True:
        port = free_port()
        command = ["/usr/sbin/sshd", "-D", "-f", folder / "sshd_config", "-p", str(port), "-E", folder / "log"]
        process = subprocess.Popen(command)
        wait_until(lambda: process.poll() is not None or answers(port), what="sshd")  # noqa: B023 - waited for here
        if process.poll() is None:
            return port, process
        said = (folder / "log").read_text()
        assert "in use" in said, said


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture
def name() -> Iterator[str]:
    """A host name that nothing else on this machine mentions; at the end no process mentions it any more."""
    unique = f"node-{uuid.uuid4().hex[:12]}"
    yield unique
    wait_until(lambda: not mentioning(unique), what="the end of every process")


def mentioning(text: str) -> list[int]:
    """Pids of the processes with this in their command line: ssh, the remote shell, the agent."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def launched(name: str, **options: object) -> Channel:
    (channel,) = ssh.launch((name,), LaunchOptions(interval_s=0.2, **options))
    return channel


def ending(name: str, **options: object) -> Ending:
    """How a channel ends that cannot work, in the launcher's words."""
    channel = launched(name, **options)
    with running(channel.argv) as node:
        code = node.wait()
        return channel.ending(code, node.errors())


def test_the_agent_installs_itself(server: Server, name: str) -> None:
    server.host(name)
    channel = launched(name)
    for cached in (False, True):
        with running(channel.argv) as node:
            hello = node.boot()
            assert hello.node == name
            assert (node.booted.root, node.booted.cached) == (f"{server.folder}/cache/mltop", cached)
            assert node.later_sample().host.memory_total_bytes > 0
            node.close_stdin()
            assert node.wait() == 0
            assert node.errors() == "Authorized users only\n"  # the banner, and nothing else


def test_a_configuration_that_is_meant_for_people(server: Server, name: str) -> None:
    """It listens nowhere, and the session is the agent's."""
    port = free_port()
    forwards = (f"LocalForward {port} localhost:1", "ExitOnForwardFailure yes", "RemoteCommand exec cat")
    server.host(name, *forwards, "SessionType none", "StdinNull yes", "ForkAfterAuthentication yes")
    channel = launched(name)
    with running(channel.argv) as node:
        assert node.boot().node == name
        assert not answers(port)
        node.close_stdin()
        assert node.wait() == 0


def test_a_shared_connection_that_is_stuck_is_gone_round(server: Server, name: str) -> None:
    control = server.folder / "cm"
    server.host(name, f"ControlPath {control}")
    master = subprocess.Popen(["ssh", "-M", "-N", name], stdin=subprocess.DEVNULL)
    try:
        wait_until(control.exists, what="the shared connection")
        master.send_signal(signal.SIGSTOP)
        limits = patient(hello_s=1.0)
        with opened(launched(name), limits=limits) as hub:
            wait_until(lambda: "ControlMaster: ssh -O exit" in hub.node(name).state.reason, what="words")
            set_limits(limits, hello_s=DEADLINE_S)
            hub.retry()
            await_state(hub, "live", name)
    finally:
        master.kill()
        master.wait()


def test_an_account_without_a_login_shell(server: Server, name: str) -> None:
    with open(server.folder / "sshd_config", "a") as file:
        file.write("ForceCommand echo This account is currently not available.; exit 1\n")
    server.process.send_signal(signal.SIGHUP)  # it starts itself anew
    server.host(name)
    # A connection that comes before it has is one that works.
    wait_until(lambda: subprocess.run(["ssh", name, "true"], capture_output=True, check=False).returncode == 1)
    with opened(launched(name)) as hub:
        assert await_state(hub, "refused", name) == ("no logins: This account is currently not available.")


def test_a_caller_that_is_killed_leaves_nothing(server: Server, name: str) -> None:
    server.host(name)
    root = ROOT
    env = {**os.environ, "PYTHONPATH": f"{root}/.dev:{root}"}
    caller = subprocess.Popen([sys.executable, "-c", CALLER, name], env=env, stdout=subprocess.PIPE, text=True)
    ssh_pid = int(caller.stdout.readline())
    assert {ssh_pid, caller.pid} < set(mentioning(name))  # and the agent
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    wait_until(lambda: not mentioning(name), what="the end of ssh and the agent")


def test_an_ssh_that_is_killed_leaves_nothing(server: Server, name: str) -> None:
    server.host(name)
    with running(launched(name).argv) as node:
        node.boot()
        node.process.kill()
        wait_until(lambda: not mentioning(name), what="the end of the agent")


Prepare = Callable[[Server, str], None]


@pytest.mark.parametrize(
    ("prepare", "reason", "retry"),
    [
        pytest.param(
            lambda server, name: server.host(name, key="other_key"),
            "login refused (publickey",
            False,
            id="wrong key",
        ),
        pytest.param(
            lambda server, name: server.host(name, "UserKnownHostsFile /dev/null"),
            "its host key is not known here",
            False,
            id="unknown host key",
        ),
        pytest.param(
            lambda server, name: (
                server.host(name),
                (server.folder / "known_hosts").write_text(
                    f"[127.0.0.1]:{server.port} {(server.folder / 'other_key.pub').read_text()}"
                ),
            ),
            "its host key is not the known one",
            False,
            id="changed host key",
        ),
        pytest.param(
            lambda server, name: server.host(name, f"Port {free_port()}"),
            "connection refused: no sshd is listening",
            True,
            id="refused",
        ),
        pytest.param(
            lambda server, name: server.host(name, "HostName no-such-host.invalid"),
            "unknown host name",
            True,
            id="no such name",
        ),
        pytest.param(
            lambda server, name: (
                server.host("jump", "UserKnownHostsFile /dev/null"),
                server.host(name, "ProxyJump jump"),
            ),
            "its host key is not known here",
            False,
            id="unknown host key of the jump host",
        ),
        pytest.param(
            lambda server, name: server.host(name, "NoSuchOption yes"),
            "ssh: ",
            False,
            id="mistake in the configuration",
        ),
    ],
)
def test_failures_in_words(prepare: Prepare, reason: str, retry: bool, server: Server, name: str) -> None:
    prepare(server, name)
    found = ending(name)
    assert found.reason.startswith(reason), found
    assert found.retry is retry


def test_a_new_host_key_is_taken_when_asked(server: Server, name: str) -> None:
    known = server.folder / "new_known_hosts"
    server.host(name, f"UserKnownHostsFile {known}")
    assert ending(name).fix == f"ssh {name} once by hand, or --accept-new"
    assert not known.exists()
    with running(launched(name, accept_new=True).argv) as node:
        assert node.boot().kind == "hello"
    assert known.read_text().count("\n") == 1


def test_no_python(server: Server, name: str) -> None:
    server.host(name)
    found = ending(name, python="/nonexistent/python")
    assert found.reason == "/nonexistent/python is no Python 3.9 or newer on this node"
    assert found.retry


def test_through_a_jump_host(server: Server, name: str) -> None:
    server.host("jump")
    server.host(name, "ProxyJump jump")
    channel = launched(name)
    assert channel.gate == "jump"
    with running(channel.argv) as node:
        assert node.boot().kind == "hello"


def test_an_sshd_that_says_nothing(server: Server, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server.host(name, f"Port {silent.getsockname()[1]}")
        found = ending(name)
    assert found.reason == "no answer to a connection (timed out)"
    assert found.retry


def test_an_sshd_that_is_too_busy(server: Server, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        server.host(name, f"Port {busy.getsockname()[1]}")
        channel = launched(name)
        with running(channel.argv) as node:
            busy.accept()[0].close()  # as sshd does beyond MaxStartups
            found = channel.ending(node.wait(), node.errors())
    assert found.reason == "sshd closed the connection before the login (too many at once?)"
    assert found.retry
