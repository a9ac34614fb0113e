"""Logs that only another program can unpack."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mltop.probes.collect.logs.files import read_log

pytestmark = pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd is not here")


def packed(path: Path, content: bytes) -> Path:
    path.write_bytes(subprocess.run(["zstd", "-qc"], input=content, capture_output=True, check=True).stdout)
    return path


def test_what_is_refused_is_not_waited_for(tmp_path: Path) -> None:
    """The unpacker still has megabytes to write, and nobody reads them."""
    assert [gap.why for gap in read_log(str(packed(tmp_path / "a.log.zst", bytes(8 << 20)))).gaps] == ["is no text"]


def test_what_stands_before_the_break_is_told(tmp_path: Path) -> None:
    crash = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nValueError: no\n'
    noise = "".join(f"step {step} {step * step % 977}\n" for step in range(200_000))
    path = packed(tmp_path / "a.log.zst", (crash + noise).encode())
    path.write_bytes(path.read_bytes()[:-1000])
    file = read_log(str(path))
    assert [event.kind for event in file.events] == ["exception"]
    assert [gap.why for gap in file.gaps] == ["cannot be read to its end: is no whole zstd file"]
