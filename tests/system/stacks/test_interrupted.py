"""Ctrl-C ends a long dump at once, also where an agent does not answer any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from mltop.probes.investigate.stacks import LATE_RECORDS_S, RECORDS_S

RANK = "import time\nwhile True: time.sleep(0.5)"
ROUNDS_S = RECORDS_S + 4.0


def test_an_agent_that_is_stopped_delays_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK)
    job = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    rank = subprocess.Popen([sys.executable, str(script)], env={**os.environ, **job})
    argv = [sys.executable, "-m", "mltop", "stacks", "--samples", "30", "--timeout", "60"]
    dump = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        time.sleep(ROUNDS_S)  # records are asked for again only so long after the first round
        for child in psutil.Process(dump.pid).children(recursive=True):
            child.suspend()
        time.sleep(1.5)  # a round that nobody answers has begun
        began = time.monotonic()
        dump.send_signal(signal.SIGINT)
        out, _ = dump.communicate(timeout=60)
        assert time.monotonic() - began < LATE_RECORDS_S
        assert dump.returncode == 130 and "train.py" in out
    finally:
        dump.kill()
        rank.kill()
        rank.wait()
