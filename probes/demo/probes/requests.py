"""Probes of simulated nodes: answers the operations "probe" and "probe_tell" as an agent does, with made-up results.

Everything of them is labelled: the event "devices" says "simulated".
"""

from __future__ import annotations

import threading
import time
from typing import Callable

from mltop.probes.active.child import fields_of
from mltop.probes.active.supervisor.request import request_from
from mltop.probes.agent.protocol import Message, Request
from mltop.probes.demo.probes.collectives import Launcher, MachineOf, World
from mltop.probes.demo.probes.replay import Replay, Timeline
from mltop.probes.model.probe import ProbeEvent
from mltop.probes.model.probe_kinds import CHILDREN


class SimulatedProbes:
    """All probes that run on the nodes of one process, in a thread of their own.

    ``machine_of`` gives what a node has, when it is asked. ``speed``: how much faster they run than in a demo.
    """

    def __init__(self, machine_of: MachineOf, send: Callable[[Message], None], speed: float = 1.0) -> None:
        self._world, self._send, self._speed = World(machine_of), send, speed
        self._running: dict[int, Timeline] = {}  # by the request's id
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="mltop-simulated-probes", daemon=True).start()

    def take(self, request: Request) -> bool:
        """Takes a request or cancel; False when it is not for a probe."""
        with self._changed:
            if request.kind == "cancel" and request.id in self._running:
                self._end(request.id, cancelled=True)
            elif request.kind == "request" and request.op in ("probe", "probe_tell"):
                try:
                    (self._start if request.op == "probe" else self._tell)(request)
                except (ValueError, TypeError) as error:
                    self._send(Message("error", request.node, request.id, error=str(error)))
            else:
                return False
            self._changed.notify()
        return True

    def _start(self, request: Request) -> None:
        wanted, machine = request_from(request.args), self._world.machine_of(request.node)
        before = self._running_on(request.node)
        if before is not None:  # one at a time, as agents have it
            why = f"a {before.request.kind} probe of mltop (simulated, key {before.request.key}) runs here"
            refused = ProbeEvent("refused", why=why, fix="wait until it is over, or cancel it")
            self._send(Message("part", request.node, request.id, data=fields_of(refused)))
            self._send(Message("done", request.node, request.id, data={"cancelled": False}))
        elif not CHILDREN[wanted.kind].one_gpu:
            self._running[request.id] = Launcher(machine, wanted, time.monotonic(), self._speed, self._world)
        else:
            self._running[request.id] = Replay(machine, wanted, time.monotonic(), self._speed)

    def _tell(self, request: Request) -> None:
        key, line = request.args.get("key"), request.args.get("line")
        running = self._running_on(request.node)
        if running is None or running.request.key != key or not isinstance(line, dict):
            raise ValueError(f"no probe with the key {key} runs here")
        running.tell(line, time.monotonic())
        self._send(Message("done", request.node, request.id))

    def _running_on(self, node: str) -> Timeline | None:
        return next((running for running in self._running.values() if running.machine.name == node), None)

    def _end(self, number: int, *, cancelled: bool) -> None:
        node = self._running.pop(number).machine.name
        self._send(Message("done", node, number, data={"cancelled": cancelled}))

    def _run(self) -> None:
        while True:
            with self._changed:
                next_at = min((running.next_at for running in self._running.values()), default=None)
                self._changed.wait(None if next_at is None else max(0.0, next_at - time.monotonic()))
                for number, running in tuple(self._running.items()):
                    for event in running.due(time.monotonic()):
                        self._send(Message("part", running.machine.name, number, data=fields_of(event)))
                    if running.ended:
                        self._end(number, cancelled=False)
