"""`python -m mltop.probes.demo.fleet --nodes N`: one process that speaks for N simulated nodes on one stdout.

It speaks the agent's protocol: hello, samples, answers to "stacks", "doctor" and "probe", and ends when stdin ends.
"""

from __future__ import annotations

import argparse
import os
import platform
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from mltop.probes.active.supervisor.gate import Holder
from mltop.probes.agent.light import EVERY_S
from mltop.probes.agent.protocol import MARK, VERSION, Hello, Message, Request, decode_request, encode
from mltop.probes.demo.probes.replay import ProbeMachine
from mltop.probes.demo.probes.requests import SimulatedProbes
from mltop.probes.demo.simulated import FIRST_PID, JOB, LOST_GPU, RAN_S, SimulatedJob, SimulatedNode, rank_stacks
from mltop.probes.system.files import write_all
from mltop.probes.version import __version__

SLOTS = 20  # the samples of an interval are spread over this many moments
REPLIES_AT_ONCE = 64  # between two looks at the clock
EXIT_GRACE_S = 0.2


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
        self._probes = SimulatedProbes(self._machine, probe_speed)
        self._slots = [nodes[start::SLOTS] for start in range(min(SLOTS, len(nodes)))]
        self._slot_s = interval_s / len(self._slots)
        self._whole_at: dict[str, float] = {}
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._replies: deque[tuple[int, Iterator[Message]]] = deque()

    def run(self) -> None:
        """Serves until the caller closes our stdin or its end of our stdout."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c in the caller's terminal is the caller's to handle
        threading.Thread(target=self._read, name="mltop-requests", daemon=True).start()
        try:
            self._write(b"".join(encode(Message("hello", node=name, hello=hello(name))) for name in self._nodes))
            for slot in self._slots:
                self._write_samples(slot)
            self._serve()
        except BrokenPipeError:
            return

    def _serve(self) -> None:
        turn, due = 0, time.monotonic() + self._slot_s
        while True:
            probes_at = self._probes.next_at
            wake_at = due if probes_at is None else min(due, probes_at)
            timeout_s = 0.0 if self._replies else max(0.0, wake_at - time.monotonic())
            try:
                request = self._requests.get(timeout=timeout_s)
            except queue.Empty:
                pass
            else:
                if request is None:
                    return
                self._take(request)
            self._write_replies()
            self._write(b"".join(map(encode, self._probes.due(time.monotonic()))))
            if time.monotonic() >= due:
                self._write_samples(self._slots[turn % len(self._slots)])
                turn, due = turn + 1, max(due + self._slot_s, time.monotonic())

    def _machine(self, name: str) -> ProbeMachine:
        """What probes find on a node; one of another process is healthy as far as we know."""
        node = self._nodes.get(name)
        return ProbeMachine(name, 0) if node is None else machine_of(node)

    def _take(self, request: Request) -> None:
        if request.node in self._nodes and self._probes.take(request, time.monotonic()):
            return
        if request.kind == "request":
            self._replies.append((request.id, self._answer(request)))
        elif request.kind == "cancel" and any(number == request.id for number, _ in self._replies):
            self._replies = deque(reply for reply in self._replies if reply[0] != request.id)
            done = Message("done", node=request.node, id=request.id, data={"cancelled": True})
            self._replies.append((request.id, iter([done])))

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

    def _write_replies(self) -> None:
        frames: list[bytes] = []
        while self._replies and len(frames) < REPLIES_AT_ONCE:
            message = next(self._replies[0][1], None)
            if message is None:
                self._replies.popleft()
            else:
                frames.append(encode(message))
        if frames:
            self._write(b"".join(frames))

    def _write_samples(self, nodes: list[SimulatedNode]) -> None:
        now = time.time()
        self._write(b"".join(frame for node in nodes for frame in self._frames(node, now)))

    def _frames(self, node: SimulatedNode, now: float) -> Iterator[bytes]:
        if now - self._whole_at.get(node.name, 0.0) >= EVERY_S:
            # Not of all nodes in the same second from the second time on.
            early_s = 0.0 if node.name in self._whole_at else node.number % 5 * self._slot_s * len(self._slots)
            self._whole_at[node.name] = now - early_s
            yield slow_frame(node, now)
        yield light_frame(node, now)

    def _write(self, data: bytes) -> None:
        write_all(1, data)

    def _read(self) -> None:
        buffer = b""
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                request = decode_request(line)
                if request is not None:
                    self._requests.put(request)
        self._requests.put(None)
        time.sleep(EXIT_GRACE_S)
        os._exit(0)  # the loop is stuck writing to a caller that no longer reads


def slow_frame(node: SimulatedNode, now: float) -> bytes:
    """A Message of kind slow with its fields in text, as ``encode`` would write it: the whole sample."""
    return _frame(b"slow", node, node.sample_json(now))


def light_frame(node: SimulatedNode, now: float) -> bytes:
    """A Message of kind sample, as ``encode_light`` would write it."""
    return _frame(b"sample", node, node.light_json(now))


def _frame(kind: bytes, node: SimulatedNode, sample: bytes) -> bytes:
    payload = b'{"kind":"%s","node":"%s","sample":%s}' % (kind, node.name.encode(), sample)
    return b"%s%d %s\n" % (MARK, len(payload), payload)


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


if __name__ == "__main__":
    main()
