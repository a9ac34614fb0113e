"""Launchers of the all-reduce probe, driven as an agent drives them: an order and tells in, events out.

with Launchers() as launchers:
    launchers.meet({"h01": 2, "h02": 2})
    launchers.tell_round(1, [["h01", "h02"]], [1 << 20])
    launchers["h01"].wait("round", round=1)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltop.probes.active.supervisor.pythons import probe_command
from tests.hosts.host import Host
from tests.waiting import wait_until

Event = dict[str, Any]
KEY = "test"


@dataclass(frozen=True)
class Member:
    """A process of a launcher's group."""

    pid: int
    parent: int
    state: str
    threads: int


class Launcher:
    """One process on this machine, or on ``host``; all of its events so far in ``events``."""

    def __init__(self, order: Event, env: Mapping[str, str] | None = None, host: Host | None = None) -> None:
        self.node = str(order["node"])
        self.events: list[Event] = []
        self.closed = False
        self._came = threading.Condition()
        command = probe_command(sys.executable, "mltop.probes.active.all_reduce", "all_reduce", KEY)
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        if host is None:
            environ = {**os.environ, **(env or {})}
            self.process = subprocess.Popen(command, env=environ, cwd="/", start_new_session=True, **streams)
        else:
            # setsid: the session that the agent would give it; nsenter alone would leave it in ours.
            self.process = host.start(["setsid", *command], env=dict(env or {}), start_new_session=True, **streams)
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        self.errors = ""
        for reader in self._readers:
            reader.start()
        self.tell(order)

    def tell(self, line: Event) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def all(self, kind: str, **where: Any) -> list[Event]:
        """Events of this kind; ``where``: fields of the event or of its data."""
        with self._came:
            return [event for event in self.events if _fits(event, kind, where)]

    def wait(self, kind: str, timeout_s: float = 120.0, **where: Any) -> Event:
        """The first such event; AssertionError tells everything that was said instead."""
        deadline = time.monotonic() + timeout_s
        with self._came:
            while True:
                found = next((event for event in self.events if _fits(event, kind, where)), None)
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                assert left > 0 and not self.closed, f"{self.node}: no {kind} {where}: {self.events} {self.errors}"
                self._came.wait(left)

    def wait_end(self, timeout_s: float = 30.0) -> int:
        """Its exit code; everything that it started is gone as well."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def end(self) -> int:
        self.tell({"tell": "end"})
        return self.wait_end()

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def group(self) -> list[Member]:
        """What runs in its process group, itself too (on this machine only)."""
        return group_of(self.process.pid)

    def ranks(self) -> list[int]:
        """Pids of its ranks in their order: the importer's children, without the leader's store, which came first."""
        importer = next(one.pid for one in self.group() if one.parent == self.process.pid)
        children = sorted(one.pid for one in self.group() if one.parent == importer)
        is_leader = bool(self.all("listening"))
        return children[1:] if is_leader else children

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._came:
                self.events.append(json.loads(line))
                self._came.notify_all()
        with self._came:
            self.closed = True
            self._came.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read().decode(errors="replace")


class Launchers:
    """Those of one probe; at the end all are gone, with everything they started."""

    def __init__(self) -> None:
        self._by_name: dict[str, Launcher] = {}

    def __enter__(self) -> Launchers:
        return self

    def __exit__(self, *_: object) -> None:
        for launcher in self._by_name.values():
            launcher.close_stdin()
        for launcher in self._by_name.values():
            launcher.wait_end()
            assert launcher.process.stdin is not None and launcher.process.stdout is not None
            launcher.process.stdout.close()

    def __getitem__(self, name: str) -> Launcher:
        return self._by_name[name]

    def __iter__(self) -> Any:
        return iter(self._by_name.values())

    def meet(
        self,
        ranks: Mapping[str, int],
        absent: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        hosts: Mapping[str, Host] | None = None,
        deadlines_s: Mapping[str, float] | None = None,
        **options: Any,
    ) -> None:
        """Start them, the first as the leader, and wait until all are ready. ``absent``: nodes that never come."""
        nodes = [*ranks, *absent]
        leader = nodes[0]
        for name, count in ranks.items():
            own: Event = {"backend": "gloo", "ranks": count, "leader": name == leader, "leader_node": leader}
            own.update(nodes=nodes, key=KEY, **options)
            if name != leader:
                said = self[leader].wait("listening")["data"]
                own.update(port=said["port"], addresses=[one["address"] for one in said["addresses"]])
            order = {"kind": "all_reduce", "node": name, "devices": [CPU], "options": own}
            order["deadlines_s"] = dict(deadlines_s or {})
            self._by_name[name] = Launcher(order, env, hosts[name] if hosts else None)

    def wait_ready(self) -> None:
        for launcher in self:
            launcher.wait("ready")

    def tell_round(self, number: int, groups: list[list[str]], sizes_bytes: list[int], **more: Any) -> None:
        told: Event = {"tell": "round", "round": number, "groups": groups, "sizes_bytes": sizes_bytes, "budget_s": 0.2}
        for launcher in self:
            launcher.tell({**told, **more})

    def wait_round(self, number: int) -> dict[str, Event]:
        """The data of each launcher's round event."""
        return {launcher.node: launcher.wait("round", round=number)["data"] for launcher in self}


CPU = {"uuid": "cpu", "kind": "cpu"}


def fake_torch(directory: Path, source: str) -> str:
    """A directory for PYTHONPATH with a package torch that runs ``source`` when it is imported."""
    (directory / "torch").mkdir()
    (directory / "torch/__init__.py").write_text(source)
    return str(directory)


def group_of(leader: int) -> list[Member]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[2] == str(leader) and fields[0] not in "ZX":
            found.append(Member(int(name), int(fields[1]), fields[0], int(fields[17])))
    return found


def wait_gone(pid: int) -> None:
    """Nothing of a launcher's group runs any more."""
    wait_until(lambda: not group_of(pid), 10, f"the end of the group {pid}")


def _fits(event: Event, kind: str, where: Mapping[str, Any]) -> bool:
    data = event.get("data", {})
    return event["event"] == kind and all(event.get(name, data.get(name)) == value for name, value in where.items())
