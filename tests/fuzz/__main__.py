"""`python -m tests.fuzz [SECONDS] [WHAT …]` (default: 60 s, shared by all): whatever nodes and files may say.

Nothing may be raised that is not foreseen, nothing may hang, and the memory of the whole run stays below 500 MB.
FUZZ_SEED=N makes a run the same as an earlier one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.fuzz import files, fleet, frames, samples

MOST_MEMORY_KIB = 500_000
ATTACKS: dict[str, Callable[[float, int], str]] = {
    "frames": frames.run,
    "samples": samples.run,
    "fleet": fleet.run,
    **{reader: partial(files.run, reader) for reader in files.READERS},
}


def main(arguments: list[str]) -> int:
    seconds = float(arguments[0]) if arguments else 60.0
    names = arguments[1:] or list(ATTACKS)
    seed = int(os.environ.get("FUZZ_SEED", time.time_ns() % 10**6))
    for name in names:
        print(f"{name}: {ATTACKS[name](seconds / len(names), seed)} (FUZZ_SEED={seed})", flush=True)
    print(f"at most {peak_kib() >> 10} MiB of memory")
    return int(peak_kib() > MOST_MEMORY_KIB)


def peak_kib() -> int:
    """Of this process alone: getrusage begins with what the one had that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
