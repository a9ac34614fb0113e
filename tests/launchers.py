"""Launchers of the all-reduce probe, and the caller by which they meet; between them no agents, but pipes.

with Launchers() as launchers:
    launchers.meet({"h01": 2, "h02": 2})
    number = launchers.begin_round([["h01", "h02"]], [1 << 20])
    launchers.wait_round(number)
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mltop.probes.active.supervisor.pythons import probe_command
from mltop.probes.agent.protocol import Message
from mltop.probes.investigate.probing.collective import Collective, Round, RoundResult
from mltop.probes.investigate.probing.context import Context
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.investigate.progress import Stop
from mltop.probes.model import NodeState
from mltop.probes.reach.requests import Pending
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
    started: int  # ticks


class Launcher:
    """One process on this machine, or on ``host``; all of its events so far in ``events``."""

    def __init__(
        self,
        order: Event,
        env: Mapping[str, str] | None = None,
        host: Host | None = None,
        on_event: Callable[[Event | None], None] = lambda _: None,
    ) -> None:
        """``on_event``: is given each event, and None at the end."""
        self.node = str(order["node"])
        self._on_event = on_event
        self.events: list[Event] = []
        self.closed = False
        self.serves = False  # the store is one of its processes
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
        self.serves |= bool(line.get("serves"))
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), json.dumps(line).encode() + b"\n")

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
        """Pids of its ranks in their order: its children without the store, which came first."""
        members = (one for one in self.group() if one.parent == self.process.pid)
        children = [one.pid for one in sorted(members, key=lambda one: (one.started, one.pid))]  # numbers begin anew
        return children[1:] if self.serves else children

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            with self._came:
                self.events.append(event)
                self._came.notify_all()
            self._on_event(event)
        with self._came:
            self.closed = True
            self._came.notify_all()
        self._on_event(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read().decode(errors="replace")


class Launchers:
    """Those of one probe, and its caller; at the end all are gone, with everything they started."""

    def __init__(self) -> None:
        self._by_name: dict[str, Launcher] = {}
        self._turns = ThreadPoolExecutor(1)  # the caller's thread
        self._results: dict[int, Future[RoundResult]] = {}
        self.joined: Future[tuple[str, ...]]

    def __enter__(self) -> Launchers:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.stop.cancelled.set()
        self._turns.shutdown()
        for launcher in self._by_name.values():
            launcher.close_stdin()
        for launcher in self._by_name.values():
            launcher.wait_end()
            assert launcher.process.stdin is not None and launcher.process.stdout is not None
            launcher.process.stdout.close()

    def __getitem__(self, name: str) -> Launcher:
        wait_until(lambda: name in self._by_name, 60, f"the launcher of {name}")
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
    ) -> None:
        """Begin to start them. ``absent``: nodes that are not reached."""
        self._ranks, self._env, self._hosts, self._deadlines_s = ranks, env, hosts, dict(deadlines_s or {})
        wanted = ProbeWanted("all-reduce", backend="gloo")
        nodes = (*ranks, *absent)
        self.context = Context(self, wanted, nodes, Stop(600.0), KEY, lambda _: None)  # type: ignore[arg-type]
        self.collective = Collective(self.context)
        self.joined = self._turns.submit(self.collective.assemble)

    def wait_ready(self) -> tuple[str, ...]:
        joined = self.joined.result(300.0)
        assert joined, self.failures()
        return joined

    def failures(self, **where: Any) -> list[Any]:
        """What the caller knows to have failed (ProbeFailure)."""
        found = list(self.context.board.failures)
        return [one for one in found if all(getattr(one, name) == value for name, value in where.items())]

    def begin_round(
        self,
        groups: Sequence[Sequence[str]],
        sizes_bytes: Sequence[int],
        *,
        collectives: Sequence[str] = ("all-reduce",),
        budget_s: float = 0.2,
        work: bool = False,
    ) -> int:
        """Its number."""
        number = len(self._results) + 1
        wanted = Round(tuple(map(tuple, groups)), tuple(collectives), tuple(sizes_bytes), budget_s, work)
        self._results[number] = self._turns.submit(self.collective.measure, wanted)
        return number

    def result(self, number: int) -> RoundResult:
        return self._results[number].result(120.0)

    def wait_round(self, number: int) -> dict[str, Event]:
        """The data of each launcher's round event."""
        self.result(number)
        return {one.node: one.wait("round", round=number)["data"] for one in self if not one.closed}

    # What the caller takes for the hub.

    def node(self, name: str) -> Any:
        return SimpleNamespace(state=NodeState(name, "live" if name in self._ranks else "lost"))

    def request(self, op: str, args: Event, nodes: Iterable[str], pending: Pending | None = None) -> Pending:
        names = tuple(nodes)
        pending = pending or Pending((), lambda: None)
        pending.expect(names)
        for name in names:
            if name not in self._ranks:
                pending.put(name, Message("error", error="No route to host"))
            elif op == "probe":
                self._by_name[name] = self._started(name, args["options"], pending)
            else:
                with contextlib.suppress(OSError):  # it has ended
                    self._by_name[name].tell(args["line"])
        return pending

    def _started(self, name: str, options: Event, pending: Pending) -> Launcher:
        def on_event(event: Event | None) -> None:
            pending.put(name, Message("done") if event is None else Message("part", data=event))

        own = {**options, "ranks": self._ranks[name]}
        order = {"kind": "all_reduce", "node": name, "devices": [CPU], "options": own}
        host = self._hosts[name] if self._hosts else None
        return Launcher({**order, "deadlines_s": self._deadlines_s}, self._env, host, on_event)


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
            found.append(Member(int(name), int(fields[1]), fields[0], int(fields[17]), int(fields[19])))
    return found


def wait_gone(pid: int) -> None:
    """Nothing of a launcher's group runs any more."""
    wait_until(lambda: not group_of(pid), what=f"the end of the group {pid}")


def _fits(event: Event, kind: str, where: Mapping[str, Any]) -> bool:
    data = event.get("data", {})
    return event["event"] == kind and all(event.get(name, data.get(name)) == value for name, value in where.items())
