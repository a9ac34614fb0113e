"""A node with ranks of a job that hangs, made up: `python training_node.py --node h01 --first 0 --ranks 2 --world 8`.

It speaks the agent's frames on stdin and stdout. The rank ``--culprit`` loads data while all others wait.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = json.loads(os.environ.get("TRAINING_NODE_PATH", "[]"))

from mltop.probes.agent.frames import Frames
from mltop.probes.agent.protocol import VERSION, Hello, Message, decode_request, encode
from mltop.probes.model import Frame, GpuSample, RankSample, RankStacks, Sample, StackDigest
from mltop.probes.version import __version__

JOB = "pretend"
FIRST_PID = 6_000_000  # above the kernel's largest pid
_lock = threading.Lock()


def say(message: Message) -> None:
    with _lock:
        sys.stdout.buffer.write(encode(message))
        sys.stdout.buffer.flush()


def rank_sample(rank: int, options: argparse.Namespace) -> RankSample:
    return RankSample(
        pid=FIRST_PID + rank,
        rank=rank,
        local_rank=rank - options.first,
        world_size=options.world,
        local_world_size=options.ranks,
        job=JOB,
        master_address="h01",
        launcher="torchrun",
        state="S",
        started_at=1.0,
        gpus=[rank - options.first],
        cpu_fraction=0.0,
        voluntary_switches=100,
        main_cpu_s=5.0,
        read_syscalls=7,
        write_syscalls=7,
    )


def stacks(rank: int, options: argparse.Namespace) -> RankStacks:
    culprit = rank == options.culprit
    leaf = Frame("load", "job/data.py", 9) if culprit else Frame("all_reduce", "torch/distributed/c10d.py", 2808)
    frames = [leaf, Frame("train", "job/train.py", 40 + culprit, {"step": 7}), Frame("<module>", "job/train.py", 60)]
    digest = StackDigest(
        rank,
        FIRST_PID + rank,
        state="S",
        frames=frames,
        waiting_in=None if culprit else "all_reduce",
        key=f"key-{culprit}",
    )
    sample = rank_sample(rank, options)
    return RankStacks(
        FIRST_PID + rank, rank, JOB, options.node, time.time(), 0.01, sample, sample, [digest], [{"pid": 1}]
    )


def beat(options: argparse.Namespace, ranks: range) -> None:
    frames = Frames(options.node, judged_every_s=5.0)
    frames.watch(3600.0)
    while True:
        gpus = [GpuSample(rank - options.first, busy=1.0, temperature_c=50, power_w=300.0) for rank in ranks]
        sample = Sample(options.node, time.time() + options.skew, interval_s=0.2, gpus=gpus)
        sample.ranks = [rank_sample(rank, options) for rank in ranks]
        for message in frames.of(sample):
            say(message)
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--world", type=int, default=8)
    parser.add_argument("--culprit", type=int, default=-1)
    parser.add_argument("--skew", type=float, default=0.0, help="of the clock, seconds")
    parser.add_argument("--late", type=float, default=0.0, help="seconds before the first word")
    parser.add_argument("--mark", help="to be found by")
    parser.add_argument("--mute", action="store_true", help="answers no request")
    options = parser.parse_args()
    time.sleep(options.late)
    ranks = range(options.first, options.first + options.ranks)
    say(Message("hello", node=options.node, hello=Hello(__version__, VERSION, os.getpid(), "3", options.node, "m1")))
    threading.Thread(target=beat, args=(options, ranks), daemon=True).start()
    for line in sys.stdin.buffer:
        request = decode_request(line.rstrip(b"\n"))
        if request is None or request.kind != "request" or options.mute:
            continue
        if request.op == "stacks":
            say(Message("part", node=options.node, id=request.id, expected=len(ranks)))
            for rank in ranks:
                say(Message("part", node=options.node, id=request.id, stacks=stacks(rank, options)))
        checks = [{"name": "py-spy", "state": "ok", "why": "py-spy 0.4.1 at /usr/bin/py-spy", "fix": ""}]
        say(Message("done", node=options.node, id=request.id, data={"checks": checks}))


def command(node: str, *options: str) -> tuple[str, ...]:
    """The program and its arguments; with ``environment()`` it finds our packages."""
    return (sys.executable, str(Path(__file__)), "--node", node, *options)


def environment() -> dict[str, str]:
    return {"TRAINING_NODE_PATH": json.dumps([entry for entry in sys.path if entry])}


if __name__ == "__main__":
    main()
