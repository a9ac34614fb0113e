"""JAX on CPUs: one process per rank, collectives over gloo. Rank, size and address stand in variables, as its users set
them, or in options of the command line (--process_id=0 --num_processes=3 --coordinator_address=HOST:PORT).
"""

import os
import sys
import time

import jax
import moment
import numpy as np

VARIABLES = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")
_OPTIONS = [option.partition("=")[2] for option in sys.argv[1:]]
_RANK, _RANKS, ADDRESS = _OPTIONS or (os.environ[name] for name in VARIABLES)
RANK, RANKS = int(_RANK), int(_RANKS)


def load(step: int) -> np.ndarray:
    time.sleep(0.12)
    if moment.MODE == "loader" and RANK == moment.CULPRIT and step == moment.STEPS:
        moment.now(RANK)
        time.sleep(3600)  # FAULT loader
    return np.ones(4, np.float32)


def evaluate(step: int) -> None:
    """Checkpoint libraries wait for each other at such barriers of JAX's coordination service."""
    from jax._src import distributed

    if moment.MODE == "skip" and RANK == moment.CULPRIT and step == moment.STEPS:
        moment.now(RANK)
        return  # FAULT skip
    distributed.global_state.client.wait_at_barrier(f"evaluated {step}", 3_600_000)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(ADDRESS, RANKS, RANK)
    from jax.experimental import multihost_utils

    step = 0
    while True:
        if moment.MODE == "healthy" and step == moment.STEPS:
            moment.now(RANK)
        gathered = multihost_utils.process_allgather(load(step))
        assert gathered.shape == (RANKS, 4)
        if step % 5 == 0:
            evaluate(step)
        step += 1


if __name__ == "__main__":
    main()
