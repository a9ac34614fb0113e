"""A training job without torch: its all_reduce goes over UDP, so that a peer that dies is never noticed.

Run by launch.py as ``standin.py CASE DIRECTORY CULPRIT``; RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set.
Rank r listens on MASTER_PORT + r. This is how the survivors of a killed NCCL rank look: they wait for ever.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from pathlib import Path

HANG_STEP = int(os.environ.get("CASE_HANG_STEP", "3"))
PACE_S = float(os.environ.get("CASE_PACE_S", "0"))
DIRECTORY = Path(sys.argv[2])
CULPRIT = int(sys.argv[3])
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
PORT = int(os.environ["MASTER_PORT"])
MESSAGE = struct.Struct("!id")  # rank, value


def mark(event: str) -> None:
    (DIRECTORY / "events" / event).touch()


class Summation:
    """Sums a number over all ranks: everyone sends to rank 0, rank 0 answers everyone."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((os.environ["MASTER_ADDR"], PORT + RANK))

    def all_reduce(self, value: float) -> float:
        if RANK != 0:
            self.send(0, value)
            return self.receive()[1]
        values = {0: value}
        while len(values) < WORLD_SIZE:
            rank, received = self.receive()
            values[rank] = received
        for rank in range(1, WORLD_SIZE):
            self.send(rank, sum(values.values()))
        return sum(values.values())

    def send(self, rank: int, value: float) -> None:
        self.socket.sendto(MESSAGE.pack(RANK, value), (os.environ["MASTER_ADDR"], PORT + rank))

    def receive(self) -> tuple[int, float]:
        rank, value = MESSAGE.unpack(self.socket.recv(MESSAGE.size))
        return rank, value


def meet(directory: Path) -> None:
    """UDP loses what is sent before the other side is bound: go on only when all ranks are."""
    mark(f"bound.{RANK}")
    while not all((directory / "events" / f"bound.{rank}").exists() for rank in range(WORLD_SIZE)):
        time.sleep(0.01)


def train(summation: Summation) -> None:
    loss = 1.0
    for step in range(1_000_000):
        if step == HANG_STEP:
            if RANK == CULPRIT:
                mark("hung")
                time.sleep(3600)  # until it is killed
            mark(f"waiting.{RANK}")
        time.sleep(PACE_S)
        loss = summation.all_reduce(loss) / WORLD_SIZE


def main() -> None:
    summation = Summation()
    meet(DIRECTORY)
    train(summation)


if __name__ == "__main__":
    main()
