"""Jobs of torch that really die here: what they leave is explained. The rest of the ways are recorded (launch.py)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.collect.logs.files import read_log
from tests.system.explain.launch import Way, left_by
from tests.waiting import wait_until

EXPLAIN = [sys.executable, "-m", "mltop", "explain"]


@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        (Way("exception"), "crash", "ValueError: expected 8 columns, got 7"),
        (Way("timeout", tee=True), "hang", "did not come"),
    ],
    ids=lambda value: value.name if isinstance(value, Way) else None,
)
def test_who_died_first_is_told(tmp_path: Path, way: Way, kind: str, words: str) -> None:
    assert left_by(way, tmp_path / "job") == 1
    done = subprocess.run(
        [*EXPLAIN, str(tmp_path / "job"), "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stdout
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["incident"]["kind"], [culprit["rank"] for culprit in job["incident"]["culprits"]]) == (kind, [1])
    assert words in job["incident"]["headline"]


def test_zstd_is_unpacked_by_its_program(tmp_path: Path) -> None:
    path = tmp_path / "a.log.zst"
    program = shutil.which("zstd")
    if program is None:  # then it is said what to do
        path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 50)
        assert "unpack it first" in read_log(str(path)).gaps[0].why
        return
    text = b'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nValueError: no\n'
    path.write_bytes(subprocess.run([program, "-c"], input=text, capture_output=True, check=True).stdout)
    assert [event.kind for event in read_log(str(path)).events] == ["exception"]


def test_ctrl_c_says_what_is_known(tmp_path: Path) -> None:
    """The second path is standard input, which does not end."""
    for rank in range(3):
        said = "ValueError: no" if rank == 1 else "torch.distributed.DistBackendError: NCCL error in: x"
        text = f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/a.py", line 1, in f\n[rank{rank}]: {said}\n'
        (tmp_path / f"rank_{rank}.log").write_text(text)
    with subprocess.Popen(
        [*EXPLAIN, str(tmp_path), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(
            lambda: "pipe_read" in Path(f"/proc/{process.pid}/wchan").read_text() or _waits(process.pid),
            30,
            "it to read stdin",
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "rank 1 failed first" in " ".join(out.split())
    assert "interrupted" in err


def _waits(pid: int) -> bool:
    """It sleeps in read(0, …)."""
    call = Path(f"/proc/{pid}/syscall").read_text().split()
    return call[:2] == ["0", "0x0"]
