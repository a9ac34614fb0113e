"""What takes long is made once for all workers of a test run: the first that wants it makes it, the others wait."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """What ``make`` returned, given a folder of its own that stays until the end of the run; it must be picklable."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder = factory.mktemp(name)
            made.write_bytes(pickle.dumps(make(folder)))
        found: T = pickle.loads(made.read_bytes())
    return found
