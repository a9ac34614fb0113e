"""`mltop snapshot` over 16 hosts on which nothing is installed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import fixtures
from tests.hosts.cluster import Hosts
from tests.hosts.host import Host
from tests.hosts.watcher import Watcher

pytestmark = pytest.mark.hosts
hosts = fixtures.hosts
nothing_left = fixtures.nothing_left

BUNDLE_BYTES = 100_000  # the agent with what it needs is larger than this, a connection with a cached one smaller


def snapshot(hosts: Hosts, nodes: str = "", *options: str) -> dict[str, Any]:
    done = hosts.mltop("snapshot", "-w", nodes or hosts.pattern, "--json", "--timeout", "60", *options)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def states(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {node["node"]: (node["state"], node["reason"]) for node in report["nodes"]}


def cached(host: Host) -> dict[str, tuple[int, int]]:
    """Every file below the home directory but ssh's own: its inode and size."""
    return {
        str(path.relative_to(host.home)): (path.lstat().st_ino, path.lstat().st_size)
        for path in host.home.rglob("*")
        if ".ssh" not in path.parts and path.is_file()
    }


def received_bytes(host: Host) -> int:
    return int(host.inside("/sys/class/net/eth0/statistics/rx_bytes").read_text())


def assert_all_live(report: dict[str, Any], names: list[str]) -> None:
    assert states(report) == dict.fromkeys(names, ("live", ""))
    samples = {sample["node"]: sample for sample in report["samples"]}
    assert sorted(samples) == names
    assert all(sample["host"]["memory_total_bytes"] > 0 for sample in samples.values())


def test_sixteen_live_nodes_with_nothing_installed_and_the_second_run_sends_nothing_again(hosts: Hosts) -> None:
    assert all(cached(host) == {} for host in hosts)
    before = [received_bytes(host) for host in hosts]
    assert_all_live(snapshot(hosts), hosts.names)
    first = [received_bytes(host) for host in hosts]
    hosts.wait_clean()
    files = [cached(host) for host in hosts]
    assert all(files)
    assert not any("py-spy" in name for kept in files for name in kept)  # sent when stacks are asked for
    assert all(os.stat(root).st_mode & 0o077 == 0 for host in hosts for root in cache_roots(host))

    again = [received_bytes(host) for host in hosts]
    assert_all_live(snapshot(hosts), hosts.names)
    second = [received_bytes(host) for host in hosts]
    assert all(kept.items() <= cached(host).items() for kept, host in zip(files, hosts, strict=True))
    assert all(end - start > BUNDLE_BYTES for start, end in zip(before, first, strict=True))
    assert all(end - start < BUNDLE_BYTES for start, end in zip(again, second, strict=True))


def cache_roots(host: Host) -> list[Path]:
    return [path for path in (host.home / ".cache").iterdir() if "mltop" in path.name]


def test_any_login_shell_and_a_start_up_file_that_talks(hosts: Hosts) -> None:
    for name, shell in {"h01": "zsh", "h02": "tcsh", "h03": "fish", "h04": "dash"}.items():
        hosts[name].use_shell(f"/usr/bin/{shell}")
    hosts["h05"].write_rc(
        "echo 'Welcome to h05!'; printf 'no newline'; printf '\\001\\377\\000MLT1 12 {'; echo oops >&2"
    )
    assert_all_live(snapshot(hosts, "h[01-06]"), hosts.names[:6])


def test_a_damaged_cache_is_repaired(hosts: Hosts) -> None:
    host = hosts["h07"]
    assert_all_live(snapshot(hosts, host.name), [host.name])
    sizes = {name: size for name, (_, size) in cached(host).items()}
    for name, size in sizes.items():
        if size:
            (host.home / name).chmod(0o600)
            (host.home / name).write_bytes(b"!" * size)
    assert_all_live(snapshot(hosts, host.name), [host.name])
    again = {name: size for name, (_, size) in cached(host).items()}
    assert sizes.items() <= again.items()
    assert not any((host.home / name).read_bytes() == b"!" * size for name, size in sizes.items() if size)


def test_hosts_that_share_one_home_share_one_copy() -> None:
    with Hosts(5, shared_home=True) as cluster:
        assert_all_live(snapshot(cluster), cluster.names)
        alone = cached(cluster["h01"])
        assert alone
        assert_all_live(snapshot(cluster), cluster.names)
        assert alone.items() <= cached(cluster["h05"]).items()
        assert not [name for name in alone if "tmp" in Path(name).name]
        assert len({Path(name).parts[:3] for name in alone}) == 1
        cluster.wait_clean()


def test_nothing_is_left_anywhere_when_mltop_is_killed(hosts: Hosts) -> None:
    with Watcher(hosts) as watcher:
        watcher.wait_all_live()
        assert all(host.strangers() for host in hosts)
        watcher.kill()
        hosts.wait_clean(10)


def test_nodes_that_cannot_be_reached_are_named_and_hold_nobody(hosts: Hosts) -> None:
    """All at once, from the start; each alone and over time: test_fleet_failures."""
    hosts["h08"].stop_sshd()
    hosts["h09"].drop_connects()
    hosts["h10"].hang_login()
    hosts.know_keys(but=("h11",))
    hosts["h12"].remove_key()
    hosts["h13"].hide_python()
    bad = {
        "h08": "connection refused",
        "h09": "timed out",
        "h10": "",
        "h11": "host key",
        "h12": "login refused",
        "h13": "python",
    }
    done = hosts.mltop("snapshot", "-w", hosts.pattern, "--json", "--timeout", "20", check=False)
    assert done.returncode == 3
    report = json.loads(done.stdout)
    told = states(report)
    for name in hosts.names:
        state, reason = told[name]
        if name not in bad:
            assert (name, state) == (name, "live")
        else:
            assert state in ("lost", "refused", "connecting"), (name, state)
            assert reason
            assert bad[name] in reason.lower()
    assert "Traceback" not in done.stderr
    assert told["h11"][0] == told["h12"][0] == "refused"
    assert [sample["node"] for sample in report["samples"]] == [name for name in hosts.names if name not in bad]
