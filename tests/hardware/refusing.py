"""mltop's matmul probe of a GPU that somebody else uses: by its agent, and as a user calls it."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from tests.hardware import program
from tests.hardware.asked import APPS
from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context
from tests.hardware.loads import Load
from tests.hardware.probing import Answer, matmul_options, probe
from tests.hardware.sources import SmiError, smi

COMMAND_S = 120.0


@dataclass
class Refused:
    """``is_listed``: nvidia-smi lists the load's ``pid``. Of the command line its exit ``code`` and what it ``said``,
    or why there is none.
    """

    index: int
    uuid: str
    load: str
    pid: int
    is_listed: bool
    answer: Answer
    code: int = 0
    said: str = ""
    no_command: str = ""


def refused(context: Context, gpu: dict[str, Any]) -> Refused:
    """The load is busy and holds 2 GiB: where no process is listed (in a container), that must show."""
    with Load(context, "memory", gpu["uuid"]) as load:
        answer = probe(context, "matmul", [gpu["uuid"]], matmul_options("bf16"))
        found = Refused(gpu["index"], gpu["uuid"], "a kernel runs", load.pid, _is_listed(load.pid), answer)
        _ask_command(context, gpu["uuid"], found)
        load.check_alive()
    said = re.sub(r"in use by .* \(pid \d+", "in use by somebody: train (pid 1", found.said)
    context.record_json("probe-refused.json", {"code": found.code, "said": said, "no_command": bool(found.no_command)})
    return found


def _is_listed(pid: int) -> bool:
    try:
        return any(str(pid) in line.split(", ") for line in smi(*APPS).splitlines())
    except SmiError:
        return False


def _ask_command(context: Context, uuid: str, found: Refused) -> None:
    words = ("probe", "matmul", "--via", "local", "--gpus", uuid, "--torch-python", context.pythons.torch, "--json")
    timeout_s = min(COMMAND_S, max(1.0, context.left_s()))
    with tempfile.TemporaryDirectory() as state:
        try:
            done = program.start(context, *words, timeout_s=timeout_s, MLTOP_STATE_DIR=state)
        except NotTriedError as reason:
            found.no_command = str(reason)
            return
        except subprocess.TimeoutExpired:
            found.code, found.said = -1, f"it did not end within {COMMAND_S:g} s"
            return
    found.code = done.returncode
    try:
        failures = json.loads(done.stdout)["failures"]
        found.said = "; ".join(one["why"] for one in failures if one["refused"]) or "it did not refuse"
    except (ValueError, KeyError):
        found.said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
