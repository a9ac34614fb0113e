"""The hosts that the fleet's tests stand on: they are what they claim to be, and they leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import fixtures
from tests.hosts.cluster import REPOSITORY, Hosts
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts
hosts = fixtures.hosts
nothing_left = fixtures.nothing_left

INTERRUPTED = """
import sys
from tests.hosts.cluster import Hosts
with Hosts(2) as hosts:
    print(hosts.directory, hosts["h01"].pid, flush=True)
    sys.stdin.read()
"""
SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2"]


def test_pdsh_reaches_every_host_and_each_is_a_machine_of_its_own(hosts: Hosts) -> None:
    done = hosts.login.run(["pdsh", "-R", "ssh", "-w", hosts.pattern, "hostname; ls /proc | grep -c '^[0-9]'; pwd"])
    lines: dict[str, list[str]] = {name: [] for name in hosts.names}
    for line in done.stdout.splitlines():
        name, _, words = line.partition(": ")
        lines[name].append(words)
    for name, (hostname, processes, home) in lines.items():
        assert hostname == name
        assert int(processes) < 10  # its own only: this machine has more
        assert home == "/run/host/home"


def test_hosts_reach_each_other_by_name_and_share_only_what_is_shared(hosts: Hosts) -> None:
    (hosts.shared / "note").write_text("seen by all")
    hosts["h01"].run(["touch", "/tmp/own", "/run/host/home/own"])
    assert hosts["h16"].run(["cat", "/run/shared/note"]).stdout == "seen by all"
    seen = hosts["h16"].run(["ls", "/tmp", "/run/host/home"]).stdout.split()
    # A copy of the repository below /tmp is mounted there.
    assert [name for name in seen if name not in REPOSITORY.parts] == ["/run/host/home:", "/tmp:"]
    assert hosts["h16"].run(["getent", "hosts", "h01"]).stdout.split()[0] == hosts.address("h01")
    hosts["h01"].run(["rm", "/run/host/home/own"])


def test_a_host_can_be_broken_and_healed(hosts: Hosts) -> None:
    host = hosts["h02"]
    steps = (
        (host.stop_sshd, "Connection refused"),
        (host.drop_connects, "timed out"),
        (host.cut_link, "timed out"),
        (host.freeze_sshd, "timed out"),
        (host.new_host_key, "Host key verification failed"),
        (host.remove_key, "Permission denied"),
        (host.hide_python, "python"),
        (lambda: host.write_rc("echo garbage; exit 3"), ""),
        (host.read_only_home, "Read-only file system"),
        (host.noexec_home, "Permission denied"),
    )
    command = "cp /bin/true x && ./x && rm x && python3 -c 'print(42)'"
    for break_it, words in steps:
        break_it()
        broken = hosts.login.run([*SSH, host.name, command], check=False)
        assert broken.returncode != 0
        assert words in broken.stderr
        host.heal()
        assert hosts.login.run([*SSH, host.name, command]).stdout == "42\n"


def test_processes_of_a_test_are_seen_and_can_be_killed(hosts: Hosts) -> None:
    host = hosts["h03"]
    assert host.strangers() == []
    hosts.login.run([*SSH, host.name, "sleep 1000 >/dev/null 2>&1 &"])
    wait_until(lambda: [process.command for process in host.strangers()] == ["sleep 1000"], what="only the sleep")
    with pytest.raises(AssertionError, match="sleep 1000"):
        host.wait_clean(0.1)
    host.kill_strangers()
    host.wait_clean()


def test_an_interrupted_run_leaves_no_process_and_no_directory() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY / '.dev'}:{REPOSITORY}"},
    )  # fmt: skip
    assert run.stdout is not None
    directory, pid = run.stdout.readline().split()
    assert Path(directory).is_dir()
    assert Path(f"/proc/{pid}").is_dir()
    run.send_signal(signal.SIGKILL)
    run.communicate()
    wait_until(lambda: not Path(directory).exists() and not Path(f"/proc/{pid}").exists(), what="nothing left")
