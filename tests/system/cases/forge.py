"""Starts ranks that need not import torch each for itself, which takes seconds of CPU: forks of one process that has.

``Forge().start(...)`` is like Popen; a rank's environment stands where the kernel shows it (/proc/PID/environ), as
after an exec. Run as a program (its stdin is a socket) this file is the process that forks. Linux only.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mltop.probes.system.spawn import die_with_parent

ROOM = "MLTOP_TESTS_ROOM"  # a variable whose only purpose is its length: ranks have more variables than the forge
ROOM_BYTES = 4096


class ForgedRank:
    """As far as needed what Popen is."""

    def __init__(self, forge: Forge, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._forge = forge

    def wait(self, timeout_s: float) -> None:
        """Collects it. AssertionError when it still runs at the timeout."""
        self.returncode = self._forge.ask({"collect": self.pid, "timeout_s": timeout_s})["code"]
        assert self.returncode is not None, f"rank {self.pid} still runs"


class Forge:
    """Ends with the thread that made it, and its ranks with it."""

    def __init__(self) -> None:
        self._socket, its_end = socket.socketpair()
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=its_end,
            env={**env, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", ROOM: "x" * ROOM_BYTES},
            preexec_fn=die_with_parent,
        )
        its_end.close()
        self._answers = self._socket.makefile("rb")

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> ForgedRank:
        """``command``: a script and its arguments; stdout and stderr go to ``log``."""
        return ForgedRank(self, self.ask({"start": list(command), "env": dict(env), "log": str(log)})["pid"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(json.dumps(question).encode() + b"\n")
        answer = self._answers.readline()
        assert answer, "the forge ended"
        return json.loads(answer)

    def close(self) -> None:
        self._socket.close()
        self._answers.close()
        self._process.wait(10)


def main() -> None:
    import torch.utils.data  # noqa: F401 - what all ranks share

    questions = os.fdopen(os.dup(0), "rb")
    for line in questions:
        question = json.loads(line)
        answer = {"code": collect(**question)} if "collect" in question else {"pid": fork(**question)}
        os.write(0, json.dumps(answer).encode() + b"\n")


def collect(collect: int, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(collect, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def fork(start: list[str], env: dict[str, str], log: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            become(start, env, log)
        finally:
            os._exit(1)
    return pid


def become(command: list[str], env: dict[str, str], log: str) -> None:
    """The rank's own life."""
    die_with_parent()
    os.setsid()
    redirect(log)
    os.environ.clear()
    os.environ.update(env)
    show_environment()
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    script = Path(command[0]).read_text()
    namespace = {"__name__": "__main__", "__file__": command[0]}
    exec(compile(script, command[0], "exec"), namespace)
    os._exit(0)


def redirect(log: str) -> None:
    nothing, written = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for target, source in ((0, nothing), (1, written), (2, written)):
        os.dup2(source, target)
    os.closerange(3, 64)


def show_environment() -> None:
    """Writes the environment to where the kernel keeps that of the last exec."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])  # env_start and env_end: proc_pid_stat(5), fields 50 and 51
    shown = b"".join(name + b"=" + value + b"\0" for name, value in os.environb.items())
    assert len(shown) <= end - begin, "the forge's environment is too small"
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, shown, len(shown))


if __name__ == "__main__":
    main()
