"""A process with pynvml over the fake NVML, to be asked one expression at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.fakes.nvml.scenario import FakeNvml

# A child that evaluates the expressions it is sent, one per line, and answers each with one line of JSON.
EVALUATOR = """
import json, pynvml, sys
from pynvml import *
def handle(index): return nvmlDeviceGetHandleByIndex(index)
def fields(index, *ids):
    values = nvmlDeviceGetFieldValues(handle(index), list(ids))
    return [[v.nvmlReturn, v.valueType, v.value.sllVal] for v in values]
def processes(list_function, index): return [[p.pid, p.usedGpuMemory] for p in list_function(handle(index))]
def compute_processes_with_room_for(room, index):
    count = c_uint(room)
    result = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(handle(index), byref(count), None)
    return [result, count.value]
def sram(index):
    status = c_nvmlEccSramErrorStatus_v1_t()
    nvmlDeviceGetSramEccErrorStatus(handle(index), byref(status))
    return members(status)
def members(struct): return {name: getattr(struct, name) for name, _ in struct._fields_}
for line in sys.stdin:
    try: answer = {"value": eval(line)}
    except NVMLError as error: answer = {"error": error.value, "type": type(error).__name__}
    print(json.dumps(answer, default=lambda value: value.decode()), flush=True)
"""


class Child:
    """A process with pynvml over the fake."""

    def __init__(self, fake: FakeNvml, initialize: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", EVALUATOR],
            env={**os.environ, **fake.env()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not initialize:
            return
        try:
            self("nvmlInit()")
        except AssertionError:
            self.close()
            raise

    def ask(self, expression: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr
            raise AssertionError(f"the child died: {self.process.stderr.read()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __call__(self, expression: str) -> Any:
        answer = self.outcome(expression)
        assert "error" not in answer, f"{expression}: {answer}"
        return answer["value"]

    def error(self, expression: str) -> int:
        """The NVML error code that the expression raises."""
        answer = self.outcome(expression)
        assert "error" in answer, f"{expression} raised nothing: {answer}"
        code: int = answer["error"]
        return code

    def outcome(self, expression: str) -> dict[str, Any]:
        """``{"value": ...}`` or ``{"error": NVML code, "type": exception}``."""
        self.ask(expression)
        return self.answer()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
