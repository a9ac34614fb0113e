"""A training job of one rank per host: real torch processes that speak gloo across the hosts' network."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from tests.hosts.cluster import REPOSITORY, Hosts
from tests.hosts.keeper import SHARED
from tests.waiting import wait_until

SCRIPT = REPOSITORY / "tests/system/cases/train.py"
PORT = 29500


class FleetJob:
    """Rank N runs on the N-th host; ``culprit`` is the rank that stops in the way of ``case`` (see train.py)."""

    def __init__(self, hosts: Hosts, case: str, culprit: int) -> None:
        self._hosts = hosts
        self._case = case
        self._culprit = culprit
        self.directory = hosts.shared / f"job-{case}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> FleetJob:
        (self.directory / "events").mkdir(parents=True)
        for rank in range(len(self._hosts.names)):
            self._start(rank)
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            ours = [process.pid for process in host.processes() if str(SCRIPT) in process.command]
            host.signal("KILL", *ours)
        for process in self._processes:
            process.wait(30)

    def wait_hung(self, timeout_s: float = 180.0) -> None:
        """Return when the culprit has stopped and every other rank is about to wait for it."""
        others = [rank for rank in range(len(self._hosts.names)) if rank != self._culprit]
        wanted = {"hung", *(f"waiting.{rank}" for rank in others)}
        try:
            wait_until(lambda: wanted <= self._events(), timeout_s, "the hang")
        except AssertionError as error:
            raise AssertionError(f"{error}; missing: {sorted(wanted - self._events())}\n{self._logs()}") from None

    def _events(self) -> set[str]:
        return {path.name for path in (self.directory / "events").iterdir()}

    def _start(self, rank: int) -> None:
        host = self._hosts[self._hosts.names[rank]]
        inside = SHARED / self.directory.name
        world = str(len(self._hosts.names))
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": world,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self._hosts.names[0],
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        with (self.directory / f"rank{rank}.log").open("wb") as log:
            process = host.start(
                host.as_login([sys.executable, str(SCRIPT), self._case, str(inside), str(self._culprit)]),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)

    def _logs(self) -> str:
        texts = []
        for path in sorted(self.directory.glob("*.log")):
            with contextlib.suppress(OSError):
                texts.append(f"{path.name}: {Path(path).read_text(errors='replace')[-1000:]}")
        return "\n".join(texts)
