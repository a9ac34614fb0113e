"""Plain torch as a second source: programs that share nothing with mltop (plain_gemm.py, plain_copies.py)."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hardware.checks import Told
from tests.hardware.context import Context
from tests.hardware.loads import END_S
from tests.hardware.sources import last_words_in

Said = dict[str, Any]
STOP_S = 2.0  # from the end of its input until it is killed: it has nothing to put in order
SPARE_S = 5.0  # the slice is ended when its time is over, whatever it knows by then
CLOCKS_AGREE = 0.03  # host's and GPU's over seconds: launching costs far less


@dataclass
class Plain:
    """What it said. ``error``: why it did not come to its end, "" when it did."""

    said: list[Said] = field(default_factory=list)
    error: str = ""

    def of(self, event: str, **which: Any) -> Said | None:
        fits = (one for one in self.said if one["event"] == event and which.items() <= one.items())
        return next(fits, None)

    def told(self, event: str, key: str, **which: Any) -> Told:
        found = self.of(event, **which)
        if found is not None and found.get(key) is not None:
            return Told(found[key])
        why = (found or {}).get("why") or self.error or "it did not say"
        return Told(why=f"plain torch: {why}")

    def sustained(self, dtype: str) -> Told:
        """TFLOPS back to back by the host's clock, where the GPU's says the same."""
        host, gpu = self.told("rates", "host", dtype=dtype), self.told("rates", "gpu", dtype=dtype)
        if host.value is None or gpu.value is None:
            return host
        if abs(host.value / gpu.value - 1) > CLOCKS_AGREE:
            return Told(
                why=f"plain torch: {host.value:.1f} TFLOPS by the host's clock, {gpu.value:.1f} by the GPU's: "
                "the host was busy"
            )
        return host

    def mean(self, dtype: str, place: int) -> Told:
        """TFLOPS under mamf-finder's protocol, of the shape at that place of the order."""
        means = self.told("rates", "means", dtype=dtype)
        return means if means.value is None else Told(means.value[place])


def plain(
    context: Context,
    program: str,
    order: dict[str, Any],
    uuids: list[str],
    limit_s: float,
    on_said: Callable[[Said], None] = lambda _: None,
) -> Plain:
    """Runs it to its end, or to ``limit_s``, or until the slice has just the time to tell what there is.

    ``on_said`` is called with each line as it comes.
    """
    found = Plain()
    until_s = time.monotonic() + min(limit_s, max(0.0, context.left_s() - SPARE_S))
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            [context.pythons.torch, str(Path(__file__).with_name(program)), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
        try:
            found.error = _listen(process, found, until_s, on_said)
            if not found.error:
                process.wait(END_S)
        except subprocess.TimeoutExpired:
            found.error = f"it did not end within {END_S:g} s"
        finally:
            _end(process)
        if process.returncode != 0 and not found.error:
            found.error = last_words_in(errors) or f"it ended with {process.returncode}"
    return found


def _listen(process: subprocess.Popen[str], found: Plain, until_s: float, on_said: Callable[[Said], None]) -> str:
    """Why it was not heard to its end."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    out = process.stdout
    assert out is not None

    def read() -> None:
        for line in out:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            return "there was no time for all of it"
        if not line:
            return ""
        with suppress(ValueError):  # start-up files of a Python may print, too
            said = json.loads(line)
            if isinstance(said, dict) and "event" in said:
                found.said.append(said)
                on_said(said)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    for ask, seconds in ((lambda: None, STOP_S), (process.kill, END_S)):
        ask()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
