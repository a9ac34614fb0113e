"""--capture-on-hang: what is refused before the screen begins, and where a capture goes and when none begins."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.investigate.session import LiveSession
from tests.fakes.agents import well_behaved


def mltop(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mltop", *args],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--capture-on-hang", "{file}"], "is no directory"),
        (["--read-only", "--capture-on-hang", "{dir}"], "off: --read-only"),
        (["--capture-on-hang", "{dir}", "stacks"], "is nothing to mltop stacks"),
        (["--capture-on-hang", "{dir}/a\nb"], "cannot be printed"),
        (["--capture-on-hang", "{dir}/new"], "not a terminal"),
    ],
)
def test_what_cannot_be_is_one_line(args: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = mltop(*(arg.format(file=tmp_path / "file", dir=tmp_path) for arg in args))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
    assert not (tmp_path / "new").exists()


def captured(parent: Path, least_free_bytes: int) -> CaptureResult:
    session = LiveSession("test", [well_behaved()], 0.1, lambda *_: "words")
    done: list[CaptureResult] = []
    ended = threading.Event()

    def take(result: CaptureResult) -> None:
        done.append(result)
        ended.set()

    try:
        session.capture(take, deadline_s=20.0, parent=parent, least_free_bytes=least_free_bytes)
        assert ended.wait(60)
    finally:
        session.close()
    return done[0]


def test_it_goes_below_the_directory_which_is_made(tmp_path: Path) -> None:
    result = captured(tmp_path / "a" / "b", 1)
    assert result.error == "" and result.directory.parent == tmp_path / "a" / "b"
    assert (result.directory / "manifest.json").exists() and (result.directory / "incidents.json").exists()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_a_disk_that_is_nearly_full_gets_none(tmp_path: Path) -> None:
    result = captured(tmp_path / "a", 1 << 60)
    assert "are free, it begins with" in result.error
    assert str(tmp_path / "a") in result.error and not (tmp_path / "a").exists()
