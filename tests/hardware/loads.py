"""Known loads on a GPU, for as long as a slice wants them (load_child.py)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from mltop.probes.model import GpuSample
from mltop.probes.model.gpu import IN_USE_BYTES
from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context
from tests.hardware.ours import Mltop
from tests.hardware.sources import last_words_in

LoadKind = Literal["idle", "spin", "host", "copy", "memory", "fp32", "bursts", "bf16"]
READY_S = 120.0  # torch from a slow disk, the first kernels
END_S = 20.0
MOST_BUSY = 0.05
FREE_S = 15.0  # until what we ran has left the driver's lists and averages
FIRST_S = 3.0  # likewise, what ran before this slice
LOOK_S = 0.5


def in_use(gpu: GpuSample) -> str:
    """Why no load may be put on a GPU: somebody else works on it, or it is not known that nobody does. "" for none.

    Processes of other containers may not be listed, but their memory is counted.
    """
    if gpu.mig_enabled:
        return "MIG is enabled on this GPU: loads are for whole GPUs"
    if gpu.processes is None or gpu.busy is None:
        return "mltop cannot tell whether somebody else uses this GPU"
    others = [one.pid for one in gpu.processes if one.kind != "graphics"]
    if others:
        return f"somebody else uses this GPU (pid {', '.join(map(str, others))}): no load is put on it"
    used = gpu.memory_used_bytes or 0
    if not gpu.processes and used > IN_USE_BYTES:
        return f"{used / 2**30:.1f} GiB of this GPU are in use by nobody who is seen from here: no load is put on it"
    return f"this GPU is busy ({gpu.busy:.0%}): no load is put on it" if gpu.busy > MOST_BUSY else ""


def why_not(gpu: dict[str, Any], sample: GpuSample | None) -> str:
    """Why no load may be put on a GPU of context.machine.gpus. "" for none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")  # as schedulers and users say which GPUs are theirs
    words = [word for word in map(str.strip, (given or "").split(",")) if word]
    if given is not None and not any(word == str(gpu["index"]) or gpu["uuid"].startswith(word) for word in words):
        return f"CUDA_VISIBLE_DEVICES={given} leaves this GPU out: no load is put on it"
    return in_use(sample) if sample is not None else "mltop does not list this GPU"


def sorted_out(gpus: list[dict[str, Any]], samples: list[GpuSample]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Those that a load may be put on, and by index why not on the others."""
    told = {sample.index: sample for sample in samples}
    why = {gpu["index"]: why_not(gpu, told.get(gpu["index"])) for gpu in gpus if gpu["uuid"]}
    return [gpu for gpu in gpus if why.get(gpu["index"]) == ""], {index: text for index, text in why.items() if text}


def free_gpus(context: Context, uuid: str = "") -> tuple[list[dict[str, Any]], dict[int, str]]:
    """As ``sorted_out``, with one that is free at least; ``uuid``: that one, after a load of ours. What still shows of
    work that has just ended is waited for. NotTriedError where none is free.
    """
    until_s = time.monotonic() + min(FREE_S if uuid else FIRST_S, context.left_s() / 4)
    while True:
        with Mltop() as mltop:
            free, why = sorted_out(context.machine.gpus, mltop.poll())
        if any(uuid in ("", gpu["uuid"]) for gpu in free):
            return free, why
        if time.monotonic() > until_s:
            told = "; ".join(f"GPU {index}: {text}" for index, text in why.items())
            raise NotTriedError(told or "no GPU has a UUID")
        time.sleep(LOOK_S)


def free_gpu(context: Context, uuid: str = "") -> dict[str, Any]:
    """The first of them, or the one of this UUID."""
    return next(gpu for gpu in free_gpus(context, uuid)[0] if uuid in ("", gpu["uuid"]))


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
            with suppress(subprocess.TimeoutExpired):  # it is stuck in the driver and left behind
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
        code = self._process.poll()
        silent = f"it said nothing within {READY_S:g} s" if code is None else f"it ended with {code} and no word"
        return last_words_in(self._errors) or silent
