"""One slice, in a process of its own: its checks go to a file, line by line, so that none is lost when it ends."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.slices import module_of

_PR_SET_PDEATHSIG = 1  # prctl(2)


class OutOfTime(BaseException):
    """The runner ends this slice: its ``finally`` blocks run, nothing else does."""


def command(order: dict[str, Any]) -> list[str]:
    """For the Python that mltop runs in. ``order``: slice, directory, seconds, parent, pythons, machine."""
    gpu_py = str(Path(__file__).resolve().parents[1] / "gpu.py")
    return [order["pythons"]["mltop"], gpu_py, "--child", json.dumps(order)]


def main(text: str) -> int:
    order = json.loads(text)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != order["parent"]:
        return 1  # it ended before it could be waited for
    signal.signal(signal.SIGTERM, _out_of_time)
    context = Context(
        Path(order["directory"]),
        time.monotonic() + order["seconds"],
        Pythons(**order["pythons"]),
        Machine(**order["machine"]),
        os.geteuid() == 0,
    )
    module = module_of(order["slice"])
    try:
        with open(checks_file(context.directory, order["slice"]), "a", encoding="utf-8") as out:
            for check in module.run(context):
                if check.outcome != "not tried" and check.name not in module.CHECKS:
                    raise ValueError(f"{check.name!r} is not among the CHECKS of {order['slice']}")
                out.write(json.dumps(asdict(replace(check, slice=order["slice"]))) + "\n")
                out.flush()
    except OutOfTime:
        return 1
    except NotTriedError as reason:
        why_file(context.directory, order["slice"]).write_text(str(reason), encoding="utf-8")
    sys.stdout.flush()
    return 0


def checks_file(directory: Path, name: str) -> Path:
    return directory / "slices" / f"{name}.jsonl"


def why_file(directory: Path, name: str) -> Path:
    """Where a slice says why it did not go on."""
    return directory / "slices" / f"{name}.why"


def _out_of_time(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise OutOfTime
