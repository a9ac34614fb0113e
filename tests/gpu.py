"""`python -m tests.gpu [--minutes N] [--only NAME…] [-o DIR]`: is mltop right about this machine's GPUs?

What `bash tests/gpu` does, with this Python. Runs as a file, too: all that it starts comes from its own checkout.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def own_checkout_first() -> None:
    """``mltop.…`` and ``tests.…`` are those of this checkout, whatever is installed beside torch.

    A folder without __init__.py loses to any package of its name, wherever that stands on the path.
    """
    ours = [str(TESTS.parent / ".dev"), str(TESTS.parent)]
    sys.path[:] = ours + [place for place in sys.path if place not in (*ours, str(TESTS))]
    for name, folder in (("tests", TESTS), ("mltop", TESTS.parent / ".dev/mltop")):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


if __name__ == "__main__":
    if not hasattr(sys, "orig_argv"):  # new in Python 3.10
        print("tests.gpu: needs Python 3.10 or newer", file=sys.stderr)
        sys.exit(2)
    own_checkout_first()
    sys.exit(importlib.import_module("tests.hardware.run").main(sys.argv[1:]))
