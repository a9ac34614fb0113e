"""What a job of the bench is told (CASE_* of its environment), and what it tells: the moment at which it stalls.

Runs in whatever Python has the job's framework: only the standard library, and no frame of it stands in a stack.
"""

import os
import time
from pathlib import Path

MODE = os.environ["CASE_MODE"]
CULPRIT = int(os.environ["CASE_CULPRIT"])
STEPS = int(os.environ["CASE_STEPS"])  # that all ranks do before anything is wrong
DIRECTORY = Path(os.environ["CASE_DIRECTORY"])


def now(rank: int) -> None:
    """Say that ``rank`` does from here on what the case is about."""
    with (DIRECTORY / "moments").open("a") as moments:
        moments.write(f"{time.time():.3f} {rank} {os.getpid()}\n")
