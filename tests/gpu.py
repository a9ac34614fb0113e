"""`python -m tests.gpu [--minutes N] [--only NAME…] [-o DIR]`: is mltop right about this machine's GPUs?

What `bash tests/gpu` does, with this Python. Runs as a file, too: the checks come from its own checkout.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path

TESTS = Path(__file__).resolve().parent
DEV = TESTS.parent / ".dev"
PACKAGE = "MLTOP_GPU_PACKAGE"  # for the processes of slices: the folder of the mltop that is tested


def own_checkout_first() -> None:
    """``tests.…`` is this checkout's, ``mltop.…`` the tested one's, whatever is installed beside torch.

    A folder without __init__.py loses to any package of its name, wherever that is on the path.
    """
    package = os.environ.get(PACKAGE) or str(DEV / "mltop")
    ours = [str(DEV), str(TESTS.parent)]
    rest = [place for place in sys.path if place not in (*ours, str(TESTS))]
    sys.path[:] = [*(ours if package == str(DEV / "mltop") else ours[1:]), *rest]
    for name, folder in (("tests", str(TESTS)), ("mltop", package)):
        module = types.ModuleType(name)
        module.__path__ = [folder]
        sys.modules[name] = module


if __name__ == "__main__":
    if not hasattr(sys, "orig_argv"):  # new in Python 3.10
        print("tests.gpu: needs Python 3.10 or newer", file=sys.stderr)
        sys.exit(2)
    own_checkout_first()
    sys.exit(importlib.import_module("tests.hardware.run").main(sys.argv[1:]))
