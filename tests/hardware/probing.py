"""mltop's probes as its agent runs them on a node: one request, one answer, events with the time they came at.

The agent is the program that mltop starts on every node; it needs nothing but pynvml and psutil. It decides whether a
GPU may be used, finds the Python, starts and ends the probe's processes.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from mltop.probes.agent.protocol import payload_of
from mltop.probes.judge.probes.hardware.peaks import PEAKS
from mltop.probes.system.spawn import python_command
from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context
from tests.hardware.sources import last_words_in

Kind = Literal["matmul", "memory", "copies"]
END_S = 15.0  # the agent ends its probe within 5 s of being asked to


@dataclass
class Event:
    at_s: float  # CLOCK_MONOTONIC
    event: str
    stage: str = ""
    device: str = ""
    why: str = ""
    fix: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """``error``: why the agent gave none. ``began_s``, ``ended_s``: of the agent, CLOCK_MONOTONIC."""

    kind: str
    began_s: float
    events: list[Event] = field(default_factory=list)
    error: str = ""
    ended_s: float = 0.0

    def of(self, name: str) -> list[Event]:
        return [one for one in self.events if one.event == name]

    def result(self, uuid: str) -> dict[str, Any] | None:
        return next((one.data for one in self.of("result") if one.data.get("uuid") == uuid), None)

    def began(self, stage: str) -> float | None:
        """When a stage began, CLOCK_MONOTONIC."""
        return next((one.at_s for one in self.of("stage") if one.stage == stage), None)

    @property
    def refusal(self) -> Event | None:
        return next(iter(self.of("refused")), None)

    @property
    def why_nothing(self) -> str:
        """Why there is no result, in mltop's words."""
        said = next((one for one in self.events if one.event in ("refused", "failed")), None)
        if said is None:
            return self.error or "its probe ended without a result"
        return said.why + (f" ({said.fix})" if said.fix else "")

    def check_begun(self) -> None:
        """NotTriedError where mltop did not begin: somebody else has come, or it takes no Python that has torch."""
        python = any(one.event == "failed" and one.stage == "find python" for one in self.events)
        if self.refusal is not None or python:
            here = "; here that is MLTOP_GPU_PYTHON=PATH bash tests/gpu …" if python else ""
            raise NotTriedError(f"mltop: {self.why_nothing}{here}")

    def phase(self, uuid: str, name: str) -> dict[str, Any]:
        """What its meter says of a stretch of load, {} without."""
        phases = (self.result(uuid) or {}).get("phases", [])
        return next((one for one in phases if one["name"] == name), {})


def probe(
    context: Context,
    kind: Kind,
    uuids: list[str],
    options: dict[str, Any],
    deadlines_s: dict[str, float] | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
) -> Answer:
    """To its end; it never lasts longer than the slice. ``on_event`` is called as they come."""
    asked = {
        "key": f"tests-gpu-{time.monotonic_ns()}",
        "kind": kind,
        "gpus": uuids,
        "python": context.pythons.torch,
        "options": options,
        "deadlines_s": deadlines_s or {},
    }
    words = ("--node", "here", "--text", "--op", "probe", "--args", json.dumps(asked))
    answer = Answer(kind, time.monotonic())
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            python_command("mltop.probes.agent.__main__", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            _read(process, answer, on_event)
        finally:
            _end(process)
        answer.ended_s = time.monotonic()
        if not answer.events and not answer.error:
            silent = f"its agent ended with {process.returncode} and no word"
            answer.error = last_words_in(errors) or silent
    return answer


def _read(process: subprocess.Popen[bytes], answer: Answer, on_event: Callable[[Event], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        payload = payload_of(line.rstrip(b"\n"))
        if payload is None:
            continue
        message = json.loads(payload)
        if message["kind"] == "error":
            answer.error = message.get("error") or "it did not say why"
        elif message["kind"] == "part":
            data = message.get("data", {})
            known = {name: data[name] for name in ("event", "stage", "device", "why", "fix", "data") if name in data}
            answer.events.append(Event(time.monotonic(), **known))
            on_event(answer.events[-1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """The agent ends its probe first when it is asked; killed, it takes the probe with it (active/process.py)."""
    assert process.stdout is not None
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # it is stuck in the driver and left behind
            process.wait(END_S)
    process.stdout.close()


def matmul_options(dtype: str) -> dict[str, Any]:
    """As `mltop probe matmul --dtype` asks for it, which needs more than torch's Python has."""
    rows = [peak for peak in PEAKS if dtype in peak.best_shapes]
    reliable = [peak for peak in rows if peak.is_sure(f"mamf.{dtype}")]
    published = {number: list(peak.best_shapes[dtype]) for peak in reliable for number in peak.ids}
    first_shapes = [list(shape) for shape in dict.fromkeys(peak.best_shapes[dtype] for peak in rows)]
    return {"dtype": dtype, "published": published, "first_shapes": first_shapes}


def library_of(result: dict[str, Any]) -> str:
    """Of its burst, as torch calls it; what is sustained is done with cuBLAS."""
    return "cublaslt" if "cuBLASLt" in result.get("code_path", "") else "cublas"
