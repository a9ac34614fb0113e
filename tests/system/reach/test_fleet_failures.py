"""One bad host among 16: the other 15 are live all the time, the bad one says why, and comes back when it can.

One session watches all hosts throughout; each failure happens on a host of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.hosts import fixtures
from tests.hosts.cluster import Hosts
from tests.hosts.host import Host, Process
from tests.hosts.watcher import Watcher
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts
hosts = fixtures.hosts

# Samples every 2 s, so that a node is stale after 6: a slow machine is not taken for a bad host.
OPTIONS = ("--interval", "2", "--retry-most", "4", "--hello", "10")
GONE_S = 20.0  # an agent ends within this time after its link died
NOISE = r"""
head -c 10000000 /dev/zero | tr '\0' x
head -c 200000 /dev/urandom
printf '\n\000MLT1 99999999 {"kind"\n\000MLT1 5 {"a"}\n@MLT1+ x 0 9 3 abc\n'
"""


@pytest.fixture(scope="module")
def watcher(hosts: Hosts) -> Iterator[Watcher]:
    with Watcher(hosts, *OPTIONS) as running:
        running.wait_all_live()
        yield running
    hosts.wait_clean()


@pytest.fixture(autouse=True)
def one_agent_each(hosts: Hosts, watcher: Watcher) -> Iterator[None]:
    """After every test all hosts are whole and live, with the one agent that the session has there."""
    yield
    for host in hosts:
        host.heal()
    hosts.know_keys()
    for host in hosts:
        now = watcher.now(host.name)
        if now is not None and now.state == "refused":  # of a test that failed
            watcher.retry(host.name)
        wait_until(lambda host=host: has_one_agent(host), 60, f"one agent on {host.name}")


def has_one_agent(host: Host) -> bool:
    """One login whose shell became the agent; what else runs there is that agent's child."""
    return len(roots(logins(host))) == 1 and len(roots(agents(host))) == 1


def roots(processes: list[Process]) -> list[Process]:
    """Those whose parent is none of them: an orphan is one, too."""
    pids = {process.pid for process in processes}
    return [process for process in processes if process.parent not in pids]


def logins(host: Host) -> list[Process]:
    return [process for process in host.strangers() if process.command.startswith("sshd: ")]


def agents(host: Host) -> list[Process]:
    """What runs there because of us: the agent and its children, or what is still on the way to one."""
    return [process for process in host.strangers() if not process.command.startswith("sshd: ")]


def log_out(host: Host) -> None:
    """End the session's connection: the next login meets what has been broken."""
    host.signal("KILL", *(process.pid for process in (*logins(host), *agents(host))))


class Others:
    """All hosts but one, which must not notice."""

    def __init__(self, watcher: Watcher, hosts: Hosts, but: str) -> None:
        self._watcher = watcher
        self._names = [name for name in hosts.names if name != but]
        self.since = time.monotonic()
        for name in self._names:
            watcher.wait(name, "live")

    def assert_untouched(self) -> None:
        for name in self._names:
            assert self._watcher.history(name, self.since) == []
            change = self._watcher.now(name)
            assert change is not None
            assert change.state == "live"


UNREACHABLE: dict[str, tuple[str, Callable[[Hosts, Host], None], str]] = {
    "sshd_stopped": ("h01", lambda _, host: host.stop_sshd(), "connection refused"),
    "syn_dropped": ("h02", lambda _, host: host.drop_connects(), "timed out"),
    "sshd_frozen": ("h03", lambda _, host: host.freeze_sshd(), "timed out"),
    "shell_hangs_after_login": ("h04", lambda _, host: host.hang_login(), "shell"),
    "no_python": ("h05", lambda _, host: host.hide_python(), "python"),
}
REFUSED: dict[str, tuple[str, Callable[[Hosts, Host], None], str]] = {
    "unknown_host_key": ("h06", lambda hosts, host: hosts.know_keys(but=(host.name,)), "host key"),
    "changed_host_key": ("h07", lambda _, host: host.new_host_key(), "host key"),
    "wrong_key": ("h08", lambda _, host: host.remove_key(), "login refused"),
}
NO_OBSTACLE: dict[str, tuple[str, Callable[[Hosts, Host], None]]] = {
    "rc_prints_garbage": ("h09", lambda _, host: host.write_rc("echo Welcome; printf 'no newline'; echo oops >&2")),
    "long_line_and_binary_noise": ("h10", lambda _, host: host.write_rc(NOISE)),
    "read_only_home": ("h11", lambda _, host: host.read_only_home()),
    "noexec_home": ("h12", lambda _, host: host.noexec_home()),
    "nothing_writable": ("h13", lambda _, host: (host.read_only_home(), host.read_only_scratch())),
}


@pytest.mark.parametrize("failure", UNREACHABLE)
def test_an_unreachable_host_says_why_and_comes_back_by_itself(hosts: Hosts, watcher: Watcher, failure: str) -> None:
    name, break_it, words = UNREACHABLE[failure]
    others = Others(watcher, hosts, name)
    break_it(hosts, hosts[name])
    log_out(hosts[name])
    lost = watcher.wait_passing(name, others.since, "lost", words=words)
    hosts[name].heal()
    watcher.wait_passing(name, lost.at, "live")
    others.assert_untouched()


@pytest.mark.parametrize("failure", REFUSED)
def test_a_host_that_refuses_us_is_not_asked_again(hosts: Hosts, watcher: Watcher, failure: str) -> None:
    name, break_it, words = REFUSED[failure]
    host = hosts[name]
    others = Others(watcher, hosts, name)
    break_it(hosts, host)
    log_out(host)
    watcher.wait(name, "refused", words=words)
    asked = host.sshd_log().count("Connection from")
    # Nothing can be awaited for what must not happen: several times the longest pause between two tries.
    time.sleep(5)
    assert host.sshd_log().count("Connection from") == asked
    now = watcher.now(name)
    assert now is not None
    assert now.state == "refused"
    host.heal()
    hosts.know_keys()
    watcher.retry(name)
    watcher.wait(name, "live")
    others.assert_untouched()


@pytest.mark.parametrize("obstacle", NO_OBSTACLE)
def test_what_is_no_obstacle(hosts: Hosts, watcher: Watcher, obstacle: str) -> None:
    name, break_it = NO_OBSTACLE[obstacle]
    others = Others(watcher, hosts, name)
    break_it(hosts, hosts[name])
    log_out(hosts[name])
    lost = watcher.wait_passing(name, others.since, "lost")
    watcher.wait_passing(name, lost.at, "live")
    others.assert_untouched()


def test_an_agent_that_is_killed_is_started_again(hosts: Hosts, watcher: Watcher) -> None:
    host = hosts["h14"]
    others = Others(watcher, hosts, host.name)
    host.signal("KILL", *(process.pid for process in agents(host)))
    lost = watcher.wait_passing(host.name, others.since, "lost")
    assert lost.reason
    watcher.wait_passing(host.name, lost.at, "live")
    others.assert_untouched()


def test_a_link_that_is_cut_in_silence(hosts: Hosts, watcher: Watcher) -> None:
    """Stale, then lost, and the agent behind the dead link ends; live again when the link is back."""
    host = hosts["h15"]
    others = Others(watcher, hosts, host.name)
    cut_at = time.monotonic()
    host.cut_link()
    stale = watcher.wait_passing(host.name, others.since, "stale")
    lost = watcher.wait_passing(host.name, stale.at, "lost")
    assert lost.reason
    wait_until(lambda: agents(host) == [], what="no agent behind the dead link")
    assert time.monotonic() - cut_at < 1.5 * GONE_S + 20
    # Of the old connection only sshd's own process may be left: it will hear of the end when it sends again.
    old = [process.pid for process in logins(host)]
    host.heal()
    watcher.wait_passing(host.name, lost.at, "live")
    host.signal("KILL", *old)
    others.assert_untouched()
