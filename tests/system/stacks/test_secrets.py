"""A rank with a secret in every text that it has a say in: none of them is in a capture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# `mltop capture` dumps every job of the machine and so moves the counters of jobs that other tests watch.
pytestmark = pytest.mark.jobs

# Each ZEBRAnn is one secret; the tokens have real shapes.
SCRIPT = """
import ctypes, threading, time
def ghp_ZEBRA01aBcDeFgHiJkLmNoPqRsTuVwXyZ01234():
    hf_ZEBRA02aBcDeFgH1234 = 5
    ctypes.CDLL(None).prctl(15, b"pwd=ZEBRA03", 0, 0, 0)
    print("RuntimeError: login failed", flush=True)
    print("Traceback (most recent call last):", flush=True)
    print('  File "t.py", line 5, in f', flush=True)
    print("ValueError: tokens=['q', 'ZEBRA04'] key=b'ZEBRA05' me:ZEBRA06@host figd_a1ZEBRA07b2C3d4E5f6G7", flush=True)
    time.sleep(3600)
thread = threading.Thread(target=ghp_ZEBRA01aBcDeFgHiJkLmNoPqRsTuVwXyZ01234, name="login password=ZEBRA08")
thread.start()
thread.join()
"""
ENVIRON = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "me:ZEBRA09@host",
    "MASTER_PORT": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "name token=ZEBRA10",
    "NCCL_SOCKET_IFNAME": "password=ZEBRA11",
    "TORCH_LOGS": "+dynamo,token=ZEBRA12",
    "NCCL_COMM_ID": '{"password":ZEBRA13}',
    "HF_TOKEN": "ZEBRA14",
}
ARGUMENTS = ["--pat", "ZEBRA15", "--api-keys", "a", "ZEBRA16", '{"pin":ZEBRA17}', "-kZEBRA18"]


def test_no_secret_is_in_a_capture(tmp_path: Path) -> None:
    folder = tmp_path / "api_key=ZEBRA19 dir"
    folder.mkdir()
    script, capture = folder / "train-glpat-ZEBRA20aBcDeFgHiJkL.py", tmp_path / "capture"
    script.write_text(SCRIPT)
    with (folder / "out-token=ZEBRA21.log").open("wb") as log:
        rank = subprocess.Popen([sys.executable, script, *ARGUMENTS], env=ENVIRON, stdout=log)
    try:
        printed = ""
        for command in (["capture", "-o", str(capture)], ["snapshot", "--json"], ["stacks", "--raw"]):
            done = subprocess.run(
                [sys.executable, "-m", "mltop", *command],
                env={**os.environ, "MLTOP_STATE_DIR": str(tmp_path / "state")},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            printed += done.stdout + done.stderr
    finally:
        rank.kill()
        rank.wait()
    unpacked = subprocess.run(["zcat", "-f", *[p for p in capture.rglob("*") if p.is_file()]], capture_output=True)
    texts = unpacked.stdout.decode() + printed
    assert f'"pid":{rank.pid}' in texts and "ValueError: tokens=***" in texts
    assert "ZEBRA" not in texts, texts[texts.index("ZEBRA") - 200 :][:400]
