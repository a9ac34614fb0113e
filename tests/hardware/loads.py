"""Known loads on a GPU, for as long as a slice wants them (load_child.py)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from mltop.probes.active.gate import USED_BYTES
from mltop.probes.model import GpuSample
from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context
from tests.hardware.ours import Mltop

LoadKind = Literal["idle", "spin", "host", "copy", "memory", "fp32", "bursts", "bf16"]
READY_S = 120.0  # torch from a slow disk, the first kernels
END_S = 20.0
MOST_BUSY = 0.05


def in_use(gpu: GpuSample) -> str:
    """Why no load may be put on a GPU: somebody else works on it, or it is not known that nobody does. "" for none."""
    if gpu.mig_enabled:
        return "it is in MIG mode: CUDA computes on a part of it"
    if gpu.processes is None or gpu.busy is None:
        return "mltop cannot tell whether somebody else uses this GPU"
    others = [one.pid for one in gpu.processes if one.kind != "graphics"]
    if others:
        return f"somebody else uses this GPU (pid {', '.join(map(str, others))}): no load is put on it"
    used_bytes = gpu.memory_used_bytes or 0
    if not gpu.processes and used_bytes > USED_BYTES:  # in a container nobody else's are listed
        return f"{used_bytes / 2**30:.1f} GiB of this GPU are in use by nobody that is seen: no load is put on it"
    return f"this GPU is busy ({gpu.busy:.0%}): no load is put on it" if gpu.busy > MOST_BUSY else ""


def free_gpu(context: Context) -> tuple[dict[str, Any], dict[int, str]]:
    """The first GPU of context.machine.gpus that a load may be put on, and of all of them why not, by index.

    NotTriedError where there is none.
    """
    with Mltop() as mltop:
        gpus = {gpu.index: gpu for gpu in mltop.poll()}
    whys = {
        one["index"]: in_use(gpus[one["index"]]) if one["index"] in gpus else "mltop does not list this GPU"
        for one in context.machine.gpus
        if one["uuid"]
    }
    for one in context.machine.gpus:
        if whys.get(one["index"]) == "":
            return one, whys
    raise NotTriedError(next(iter(whys.values()), "no GPU has a UUID"))


class Load:
    """with Load(context, "bf16", uuid) as load: …: it runs from `with` on. NotTriedError where it cannot."""

    def __init__(self, context: Context, kind: LoadKind, uuid: str, report_s: float = 0.5) -> None:
        if not context.pythons.torch:
            raise NotTriedError("no Python here has torch")
        self.kind = kind
        self.rates: list[float] = []  # FLOP or bytes a second, each over about ``report_s``
        self.gpu_rates: list[float] = []  # the same by the GPU's own clock, without what the host needs between pieces
        self.spans: list[tuple[float, float]] = []  # from when to when each rate is, CLOCK_MONOTONIC
        self.ready_at_s = 0.0
        self._ready = threading.Event()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (it lives as long as the load)
        self._process = subprocess.Popen(
            [context.pythons.torch, str(Path(__file__).with_name("load_child.py")), kind, f"{report_s:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": uuid,
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "NVIDIA_TF32_OVERRIDE": "0",  # whatever an image has chosen: fp32 is no tensor core's
            },
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Load:
        self._reader.start()
        if not self._ready.wait(READY_S) or self._process.poll() is not None:
            self.__exit__(None, None, None)
            raise NotTriedError(f"the load {self.kind} did not start: {self._why()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)

    def check_alive(self) -> None:
        """NotTriedError when it has ended by itself."""
        if self._process.poll() is not None:
            raise NotTriedError(f"the load {self.kind} broke off: {self._why()}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                told: dict[str, Any] = json.loads(line)
            except ValueError:  # start-up files of a Python may print, too
                continue
            if told["event"] == "ready":
                self.ready_at_s = time.monotonic()
                self._ready.set()
            elif told["event"] == "rate":
                self.spans.append((told["began_s"], told["ended_s"]))
                self.gpu_rates.append(told["gpu_per_s"])
                self.rates.append(told["per_s"])
        self._ready.set()  # it ended before it was

    def _why(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return said[-1] if said else f"it said nothing within {READY_S:g} s"
