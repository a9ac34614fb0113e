"""The Python side of the fake NVML: writes its scenario file and names the environment that selects it.

    fake = FakeNvml(tmp_path, count=8)
    fake.set("gpu.3.power_mw", 312000)
    fake.set("gpu.5.call.*", "error 15")
    fake.write()
    subprocess.run([...], env={**os.environ, **fake.env()})

Keys: README.md beside this file. A key or function that the library does not know aborts the process
that uses it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from tests.fakes.nvml.build import build

Value = str | int | bool | Iterable[tuple[int, int | None, str] | tuple[int, int | None, str, int]]


class FakeNvml:
    """One scenario in one directory. Nothing reaches running processes before ``write``."""

    def __init__(self, directory: Path, **top: Value) -> None:
        """``top``: count, driver, cuda, nvml. The scenario is written at once: ``env`` can be used."""
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.path = self.directory / "nvml.scenario"
        self.counts_path = self.directory / "nvml.counts"
        self._lines: dict[str, str] = {}
        for key, value in top.items():
            self.set(key, value)
        self.write()

    def set(self, key: str, value: Value) -> None:
        """``gpu.3.power_mw``, 312000; processes also as [(pid, bytes or None, kind[, MIG instance]), ...]."""
        self._lines[key] = _format(key, value)

    def unset(self, key: str) -> None:
        """Back to the default. KeyError when it was not set."""
        del self._lines[key]

    def unset_all(self, prefix: str) -> None:
        """All keys that begin so."""
        self._lines = {key: text for key, text in self._lines.items() if not key.startswith(prefix)}

    def write(self) -> None:
        """Makes what was set visible to running processes, all at once."""
        temporary = self.path.with_suffix(".writing")
        temporary.write_text("".join(f"{key} = {value}\n" for key, value in self._lines.items()))
        # The library compares modification times: those of the kernel only advance with its tick.
        now_ns = time.time_ns()
        os.utime(temporary, ns=(now_ns, now_ns))
        temporary.replace(self.path)

    def env(self) -> dict[str, str]:
        """Variables to merge into a child's environment. Builds the library when its sources changed."""
        before = os.environ.get("LD_LIBRARY_PATH", "")
        return {
            "LD_LIBRARY_PATH": f"{build()}:{before}" if before else str(build()),
            "MLTOP_FAKE_NVML": str(self.path),
            "MLTOP_FAKE_NVML_COUNTS": str(self.counts_path),
        }


def _format(key: str, value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return f"{value:#x}" if key.endswith("_mask") else str(value)
    return ", ".join(":".join("?" if part is None else str(part) for part in process) for process in value)
