"""`python -m mltop.probes.demo.fleet --nodes N`: one process that speaks for N simulated nodes on one stdout.

It speaks the agent's protocol: hello, samples, answers to "stacks", "doctor" and "probe", and ends when stdin ends.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import signal
import time
from collections.abc import Iterator
from typing import Any

from mltop.probes.active.supervisor.gate import Holder
from mltop.probes.agent.caller import Caller, Terms, leave
from mltop.probes.agent.frames import Frames
from mltop.probes.agent.protocol import VERSION, Hello, Message, Request, Wire, encode
from mltop.probes.demo.probes.replay import ProbeMachine
from mltop.probes.demo.probes.requests import SimulatedProbes
from mltop.probes.demo.simulated import FIRST_PID, JOB, LOST_GPU, RAN_S, SimulatedJob, SimulatedNode, rank_stacks
from mltop.probes.judge.health import node as _rules  # noqa: F401 - loaded before the first row: hundreds would wait
from mltop.probes.version import __version__

JUDGED_EVERY_S = 10.0  # the rules of hundreds of nodes run in one process here
SLOTS = 20  # the samples of an interval are spread over this many moments


def node_names(count: int, first: int) -> tuple[str, ...]:
    """``sim002``, ``sim003``, … : the names that a fleet started with these arguments answers for."""
    return tuple(f"sim{number:03d}" for number in range(first, first + count))


def build(
    count: int, first: int, gpus: int, interval_s: float, hang_after_s: float, *, spares: int = 1
) -> list[SimulatedNode]:
    """One job over all nodes that hangs in the middle.

    From 3 nodes on the last ``spares`` (as far as there are twice as many others) run no job, and the very last has
    lost a GPU. On the first of them GPU 5 computes slowly, on the second the way to other nodes is slow: only probes
    find that. From 2 nodes on, the power brake of one node is on, and from 3 on another one has an InfiniBand port
    down, an Xid 94 and a full disk.
    """
    names, now = node_names(count, first), time.time()
    of_job = names[: count - min(max(1, spares), count // 3)] if count >= 3 else names
    culprit = len(of_job) // 2 * gpus + min(5, gpus - 1)
    job = SimulatedJob(of_job, gpus, culprit, now - RAN_S, now + hang_after_s)
    return [
        SimulatedNode(
            name=name,
            number=first + position,
            gpus=gpus,
            interval_s=interval_s,
            job=job,
            ranks=range(position * gpus, (position + 1) * gpus) if position < len(of_job) else range(0),
            began_at=now,
            lost_gpu=position >= len(of_job) and position == count - 1 and gpus > 3,
            braked=count >= 2 and position == len(of_job) // 3,
            faulty=count >= 3 and position == len(of_job) * 2 // 3,
            slow_gpu=min(5, gpus - 1) if position == len(of_job) else None,
            slow_nic=position == len(of_job) + 1,
        )
        for position, name in enumerate(names)
    ]


class Fleet:
    """Frames of all ``nodes`` to stdout; requests from stdin."""

    def __init__(self, nodes: list[SimulatedNode], interval_s: float, probe_speed: float) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._slots = [nodes[start::SLOTS] for start in range(min(SLOTS, len(nodes)))]
        self._slot_s = interval_s / len(self._slots)
        self._frames = {node.name: Frames(node.name, judged_every_s=JUDGED_EVERY_S) for node in nodes}
        self._caller = Caller(Wire(nodes[0].name), Terms(), 0, 1)
        self._probes = SimulatedProbes(self._machine, self._send, probe_speed)

    def run(self) -> None:
        """Serves until the caller closes our stdin or its end of our stdout."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c in the caller's terminal is the caller's to handle
        for name in self._nodes:
            self._send(Message("hello", node=name, hello=hello(name)))
        self._caller.start(self._handle, lambda: None)
        for number in range(len(self._slots)):
            self._put_samples(number)
        due = time.monotonic() + self._slot_s
        for turn in itertools.count():
            if self._caller.stop.wait(max(0.0, due - time.monotonic())):
                return
            self._put_samples(turn % len(self._slots))
            due = max(due + self._slot_s, time.monotonic())

    def _machine(self, name: str) -> ProbeMachine:
        """What probes find on a node; one of another process is healthy as far as we know."""
        node = self._nodes.get(name)
        return ProbeMachine(name, 0) if node is None else machine_of(node)

    def _send(self, message: Message) -> None:
        self._caller.outbox.put(encode(message))

    def _handle(self, request: Request) -> None:
        if request.node in self._nodes and self._probes.take(request):
            return
        if request.kind == "watch":
            for name in (request.node,) if request.node in self._nodes else self._nodes:
                self._frames[name].watch(float(request.args.get("seconds") or 0.0))
        if request.kind != "request":
            return
        for message in self._answer(request):
            self._send(message)

    def _answer(self, request: Request) -> Iterator[Message]:
        """All frames of one answer; ``node`` "" in the request asks all nodes, in one answer."""
        if request.node and request.node not in self._nodes:
            yield Message("error", node=request.node, id=request.id, error=f"no node {request.node!r} here")
            return
        nodes = [self._nodes[request.node]] if request.node else list(self._nodes.values())
        if request.op == "doctor":
            yield Message("done", node=request.node, id=request.id, data={"checks": CHECKS})
        elif request.op == "stacks":
            chosen = [(node, rank) for node in nodes for rank in node.ranks if is_wanted(rank, request.args)]
            expected = len(chosen)
            yield Message("part", node=request.node, id=request.id, expected=expected, data={"expected": expected})
            for node, rank in chosen:
                yield Message("part", node=node.name, id=request.id, stacks=rank_stacks(node.job, rank, time.time()))
            yield Message("done", node=request.node, id=request.id, data={"cancelled": False})
        else:
            no_process = request.op in ("signal", "signal_facts")
            error = "a simulated rank is no process" if no_process else f"unknown operation {request.op!r}"
            yield Message("error", node=request.node, id=request.id, error=error)

    def _put_samples(self, slot: int) -> None:
        """Of a caller that reads slowly only the newest wait."""
        now, rows = time.time(), []
        for node in self._slots[slot]:
            for message in self._frames[node.name].of(node.sample(now)):
                if message.kind == "row":
                    rows.append(encode(message))
                else:
                    self._caller.outbox.put_newest(f"{message.kind} {node.name}", encode(message))
        self._caller.outbox.put_newest(f"row {slot}", b"".join(rows))


def machine_of(node: SimulatedNode) -> ProbeMachine:
    """The same node as probes see it."""
    return ProbeMachine(
        name=node.name,
        number=node.number,
        gpus=node.gpus,
        owners={
            index: Holder(FIRST_PID + rank, "demo", "python train.py", JOB) for index, rank in enumerate(node.ranks)
        },
        lost=(LOST_GPU,) if node.lost_gpu else (),
        braked=node.braked,
        slow_gpu=node.slow_gpu,
        slow_nic=node.slow_nic or node.faulty,
    )


def is_wanted(rank: int, args: dict[str, Any]) -> bool:
    job, pids = args.get("job"), args.get("pids")
    return (not job or job == JOB) and (pids is None or FIRST_PID + rank in pids)


def hello(name: str) -> Hello:
    return Hello(__version__, VERSION, os.getpid(), platform.python_version(), name, platform.machine())


# As an agent's: name, state (ok | warning | missing), why, fix.
CHECKS = [{"name": "simulation", "state": "ok", "why": "a node made up by mltop demo", "fix": ""}]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="mltop-demo-fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="how many nodes to simulate")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="number of the first one")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="GPUs (and ranks) per node")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S")
    parser.add_argument("--hang-after", type=float, default=3.0, metavar="S")
    parser.add_argument("--spares", type=int, default=1, metavar="N", help="of 3 nodes and more, how many have no job")
    parser.add_argument("--probe-speed", type=float, default=1.0, metavar="X", help="for tests: probes run faster")
    options = parser.parse_args(argv)
    if min(options.nodes, options.gpus, options.spares) < 1 or min(options.interval, options.probe_speed) <= 0:
        parser.error("--nodes, --gpus, --spares, --interval and --probe-speed must be positive")
    nodes = build(
        options.nodes, options.first, options.gpus, options.interval, options.hang_after, spares=options.spares
    )
    Fleet(nodes, options.interval, options.probe_speed).run()
    leave(0)


if __name__ == "__main__":
    main()
