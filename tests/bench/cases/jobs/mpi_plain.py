"""mpi4py alone, without torch."""

import time

import moment
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()


def load(step: int) -> float:
    time.sleep(0.12)
    if moment.MODE == "loader" and RANK == moment.CULPRIT and step == moment.STEPS:
        moment.now(RANK)
        time.sleep(3600)  # FAULT loader
    return float(step)


def evaluate(step: int) -> None:
    if moment.MODE == "skip" and RANK == moment.CULPRIT and step == moment.STEPS:
        moment.now(RANK)
        return  # FAULT skip
    WORLD.Barrier()


def main() -> None:
    step = 0
    while True:
        if moment.MODE == "healthy" and step == moment.STEPS:
            moment.now(RANK)
        WORLD.allreduce(load(step))
        if step % 5 == 0:
            evaluate(step)
        step += 1


if __name__ == "__main__":
    main()
