"""The last lines of what a real process writes to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mltop.probes.collect.logs.follow import MOST_BYTES, last_lines


@contextmanager
def sleeper(out: int | IO[bytes]) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=out, stderr=out)
    try:
        yield process.pid
    finally:
        process.communicate(b"\n", timeout=30)


def test_one_file_for_both_comes_once_cleaned_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_bytes(
        b"x" * MOST_BYTES + b"\nstep 1\rstep 2\r\n\x1b[31mapi_key=sk-123456789012345678901234\x1b[0m\n\xff\xfe\n"
    )
    with path.open("ab") as out, sleeper(out) as pid:
        (tail,) = last_lines(pid, 3)
    assert tail.file == str(path) and tail.size_bytes == path.stat().st_size
    assert tail.lines[0] == "step 2" and "sk-1234" not in tail.lines[1] and "\x1b" not in tail.lines[1]
    assert len(tail.lines) == 3


def test_a_pipe_and_a_process_that_is_gone_say_why() -> None:
    with sleeper(subprocess.PIPE) as pid:
        (tail,) = last_lines(pid, 3)
        assert tail.file == "" and "pipe" in tail.why
    (tail,) = last_lines(pid, 3)
    assert tail.file == "" and tail.why
