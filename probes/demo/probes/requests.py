"""Probes of simulated nodes: answers the operations "probe" and "probe_tell" as an agent does, with made-up results.

Everything of them is labelled: the event "devices" says "simulated".
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable

from mltop.probes.active.child import fields_of
from mltop.probes.active.supervisor.request import request_from
from mltop.probes.agent.protocol import Message, MessageKind, Request
from mltop.probes.demo.probes.collectives import Launcher, MachineOf, World
from mltop.probes.demo.probes.replay import Replay, Timeline
from mltop.probes.model.probe import ProbeEvent


class SimulatedProbes:
    """All probes that run on the nodes of one process. Not for several threads at once; times are monotonic s.

    ``machine_of`` gives what a node has, when it is asked. ``speed``: how much faster they run than in a demo.
    """

    def __init__(self, machine_of: MachineOf, speed: float = 1.0) -> None:
        self._world = World(machine_of)
        self._speed = speed
        self._running: dict[int, Timeline] = {}  # by the request's id
        self._replies: list[Message] = []

    @property
    def next_at(self) -> float | None:
        """When ``due`` has something new to say; None: not before something else is asked."""
        if self._replies:
            return 0.0
        return min((running.next_at for running in self._running.values()), default=None)

    def take(self, request: Request, now: float) -> bool:
        """A request or cancel; False when it is not for a probe."""
        if request.kind == "cancel" and request.id in self._running:
            node = self._running.pop(request.id).machine.name
            self._reply("done", node, request.id, data={"cancelled": True})
        elif request.kind == "request" and request.op == "probe":
            self._start(request, now)
        elif request.kind == "request" and request.op == "probe_tell":
            self._tell(request, now)
        else:
            return False
        return True

    def due(self, now: float) -> list[Message]:
        """Everything that is to be said by ``now``."""
        messages, self._replies = self._replies, []
        for number, running in tuple(self._running.items()):
            node = running.machine.name
            messages += [Message("part", node, number, data=fields_of(event)) for event in running.due(now)]
            if running.ended:
                del self._running[number]
                messages.append(Message("done", node, number, data={"cancelled": False}))
        return messages

    def _start(self, request: Request, now: float) -> None:
        try:
            wanted = request_from(request.args)
            machine = self._world.machine_of(request.node)
            before = self._running_on(request.node)
            if before is not None:
                self._refuse_second(request, before)
                return
            if wanted.kind == "all_reduce":
                running: Timeline = Launcher(machine, wanted, now, self._speed, self._world)
            else:
                running = Replay(machine, wanted, now, self._speed)
        except (ValueError, TypeError) as error:
            self._reply("error", request.node, request.id, error=str(error))
        else:
            self._running[request.id] = running

    def _tell(self, request: Request, now: float) -> None:
        key, line = request.args.get("key"), request.args.get("line")
        running = self._running_on(request.node)
        if running is None or running.request.key != key or not isinstance(line, dict):
            self._reply("error", request.node, request.id, error=f"no probe with the key {key} runs here")
            return
        try:
            running.tell(line, now)
        except (ValueError, TypeError) as error:
            self._reply("error", request.node, request.id, error=str(error))
        else:
            self._reply("done", request.node, request.id)

    def _running_on(self, node: str) -> Timeline | None:
        """One probe at a time, as agents have it."""
        return next((running for running in self._running.values() if running.machine.name == node), None)

    def _refuse_second(self, request: Request, before: Timeline) -> None:
        why = f"a {before.request.kind} probe of mltop (simulated, key {before.request.key}) runs here"
        event = ProbeEvent("refused", why=why, fix="wait until it is over, or cancel it")
        self._reply("part", request.node, request.id, data=fields_of(event))
        self._reply("done", request.node, request.id, data={"cancelled": False})

    def _reply(self, kind: MessageKind, node: str, number: int, **fields: Any) -> None:
        self._replies.append(Message(kind, node, number, **fields))


class ProbeThread:
    """``SimulatedProbes`` in a thread of their own, for an agent whose requests come from another one."""

    def __init__(self, probes: SimulatedProbes, send: Callable[[Message], None]) -> None:
        self._probes, self._send = probes, send
        self._changed = threading.Condition()
        self._started = False

    def take(self, request: Request) -> bool:
        """Takes a request or cancel; False when it is not for a probe."""
        with self._changed:
            taken = self._probes.take(request, time.monotonic())
            if taken and not self._started:
                self._started = True
                threading.Thread(target=self._run, name="mltop-simulated-probes", daemon=True).start()
            self._changed.notify()
        return taken

    def _run(self) -> None:
        while True:
            with self._changed:
                next_at = self._probes.next_at
                self._changed.wait(None if next_at is None else max(0.0, next_at - time.monotonic()))
                messages = self._probes.due(time.monotonic())
            for message in messages:
                self._send(message)
