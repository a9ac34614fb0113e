"""What probes listen on, seen at their sockets: all processes of a probe, all the time."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import psutil

from mltop.probes.active.all_reduce.listening import LOOPBACK, local_addresses
from tests.launchers import Launcher, Launchers
from tests.listening import Watch, listening
from tests.probing import MLTOP, environment, wait_gone
from tests.waiting import wait_until

MIB = 1 << 20
DEADLINES_S = {"import torch": 120.0, "init": 60.0, "measure": 60.0}
LOOPBACKS = {"127.0.0.1", "::1"}


def descendants(pid: int) -> list[int]:
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def group(launcher: Launcher) -> list[int]:
    return [member.pid for member in launcher.group()]


def another_interface() -> str:
    """One that others reach, where there is one."""
    return next((one.interface for one in local_addresses() if one.interface != LOOPBACK), LOOPBACK)


def test_the_watch_sees_what_is_open() -> None:
    with socket.create_server(("", 0)) as everywhere, socket.create_server(("127.0.0.1", 0)) as here:
        found = {(one.address, one.port) for one in listening([os.getpid()])}
        assert {("0.0.0.0", everywhere.getsockname()[1]), here.getsockname()} <= found
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as everywhere:
        assert ("::", everywhere.getsockname()[1]) in {(one.address, one.port) for one in listening([os.getpid()])}


def test_one_node_listens_on_loopback_whatever_was_set(tmp_path: Path) -> None:
    """From mltop down to the store."""
    command = [*MLTOP, "probe", "all-reduce", "--via", "local", "--ranks", "2", "--sizes", "64K,1M", "--force"]
    env = environment(tmp_path, GLOO_SOCKET_IFNAME=another_interface())
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        with Watch(lambda: descendants(running.pid)) as watch:
            out, _ = running.communicate(f"{os.uname().nodename}\n", timeout=180)
        assert running.returncode == 0, out
    assert watch.seen, "the ranks meet at a port"
    assert watch.addresses() <= LOOPBACKS, watch.seen
    wait_gone(str(tmp_path))


def test_the_ranks_of_one_node_listen_on_loopback() -> None:
    with Launchers() as launchers:
        launchers.meet({"h01": 2}, env={"GLOO_SOCKET_IFNAME": another_interface()}, deadlines_s=DEADLINES_S)
        launchers.wait_ready()
        with Watch(lambda: group(launchers["h01"])) as watch:
            launchers.begin_round([["h01"]], [4 * MIB] * 50, budget_s=5)
            ranks = set(launchers["h01"].ranks())
            wait_until(lambda: ranks <= {one.pid for one in watch.seen}, 60, "both ranks to listen")
        assert watch.addresses() <= LOOPBACKS, watch.seen


def test_several_nodes_listen_on_the_chosen_address_only() -> None:
    """Two launchers of this machine, as on two nodes."""
    with Launchers() as launchers:
        pids = lambda: [pid for launcher in list(launchers) for pid in group(launcher)]  # noqa: E731
        with Watch(pids) as watch:
            launchers.meet({"h01": 2, "h02": 2}, deadlines_s=DEADLINES_S)
            launchers.wait_ready()
            between = listening(pids())
            launchers.begin_round([["h01", "h02"]], [4 * MIB] * 50, budget_s=5)
            ranks = {pid for launcher in launchers for pid in launcher.ranks()}
            wait_until(lambda: ranks <= {one.pid for one in watch.seen}, 60, "all ranks to listen")
        told = [launcher.wait("listening")["data"] for launcher in launchers]
        assert watch.addresses() == {told[0]["address"]} == {told[1]["address"]}, watch.seen
        # Ready, and no round yet: one port of each node, which is the store's on the first.
        assert {one.port for one in between} == {one["port"] for one in told}
