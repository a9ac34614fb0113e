"""Ctrl-C ends a long dump at once, also where an agent does not answer any more."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import psutil

from mltop.probes.agent.protocol import Request, encode
from mltop.probes.investigate.stacks import LATE_RECORDS_S, RECORDS_S
from tests.waiting import wait_until

RANK = "import time\nwhile True: time.sleep(0.5)"
PING_BYTES = len(encode(Request("ping")))


def test_an_agent_that_is_stopped_delays_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK)
    job = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    rank = subprocess.Popen([sys.executable, str(script)], env={**os.environ, **job})
    argv = [sys.executable, "-m", "mltop", "stacks", "--samples", "30", "--timeout", "120"]
    dump = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        began = wait_until(lambda: is_dumping(dump.pid) and time.monotonic(), 60.0, "the first round")
        # Only so long after the first round are records asked for again.
        wait_until(lambda: is_dumping(dump.pid) and time.monotonic() > began + RECORDS_S, 60.0, "a later round")
        (agent,) = (child for child in psutil.Process(dump.pid).children() if "mltop.probes.agent" in command(child))
        for process in (agent, *agent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        wait_until(lambda: unread_bytes(agent.pid) > 2 * PING_BYTES, 60.0, "a request that nobody answers")
        began = time.monotonic()
        dump.send_signal(signal.SIGINT)
        out, _ = dump.communicate(timeout=60)
        assert time.monotonic() - began < LATE_RECORDS_S
        assert dump.returncode == 130 and "train.py" in out
    finally:
        dump.kill()
        rank.kill()
        rank.wait()


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def is_dumping(pid: int) -> bool:
    return any("py-spy" in command(child) for child in psutil.Process(pid).children(recursive=True))


def unread_bytes(pid: int) -> int:
    """What was written to a process's standard input, a pipe, and not read by it."""
    pipe = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])
    finally:
        os.close(pipe)
