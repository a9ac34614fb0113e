"""Small training jobs on a GPU (job_child.py), started rank by rank as torchrun does, and what becomes of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from mltop.probes.system.spawn import die_with_parent
from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context
from tests.ports import free_port

Case = Literal["healthy", "kernel", "stream", "item", "alone", "dataloader", "collective", "gloo"]
Backend = Literal["nccl", "gloo", ""]
Device = Literal["cuda", "cpu"]
READY_S = 180.0  # torch from a slow disk, NCCL's first communicator
END_S = 10.0
TURN_S = 0.02
# Ranks on hosts of their own, as far as NCCL knows, that talk over the loopback interface.
TWO_HOSTS = {
    "NCCL_HOSTID": "mltop-{rank}",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
}
# Of the job that we may run in ourselves: ours is another one. And whatever changes what NCCL and torch do and say.
_OF_A_JOB = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(SLURM|PMI|PMIX|OMPI|TORCHELASTIC|ACCELERATE)_\w+"
    r"|CROSS_RANK|LOCAL_SIZE"
    r"|(TORCH_)?NCCL_\w+|TORCH_FR_\w+|TORCH_(CPP_LOG_LEVEL|DISTRIBUTED_DEBUG|SHOW_CPP_STACKTRACES)|GLOO_\w+"
    r"|CUDA_LAUNCH_BLOCKING"
)


class Job:
    """with Job(context, "kernel", [uuid]) as job: every rank is ready then. NotTriedError where it cannot be started.

    One rank for each of ``gpus`` (UUIDs; the same one twice for two ranks on one GPU). ``settings``: of its
    environment, with {rank} and {directory} (of its files) in them. It ends by itself when the slice's time is over.
    """

    def __init__(
        self,
        context: Context,
        case: Case,
        gpus: list[str],
        backend: Backend = "",
        settings: dict[str, str] | None = None,
        device: Device = "cuda",
        ready_s: float = READY_S,
    ) -> None:
        if not context.pythons.torch:
            raise NotTriedError("no Python here has torch")
        self.case, self.backend = case, backend
        self._folder = tempfile.TemporaryDirectory(prefix="mltop-job-", ignore_cleanup_errors=True)
        self.directory = Path(self._folder.name)
        self.port = free_port()
        self._context, self._gpus, self._device = context, gpus, device
        self._settings, self._ready_s = settings or {}, ready_s
        self._ranks: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def __enter__(self) -> Job:
        return self if self._ranks else self.start()

    def start(self) -> Job:
        """For what must be known to have started before `with`."""
        try:
            for rank in range(len(self._gpus)):
                with self.log(rank).open("wb") as log:
                    self._ranks.append(self._start(rank, log))
            self._wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Its ranks; their workers end with them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for rank in self._ranks:
                if rank.poll() is None:
                    rank.send_signal(number)
            until = time.monotonic() + END_S
            for rank in self._ranks:
                try:
                    rank.wait(max(TURN_S, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue  # after SIGKILL: the driver holds it, and nothing can be done from here
        self._folder.cleanup()

    def check_alive(self) -> None:
        """NotTriedError when a rank has ended by itself."""
        for number, rank in enumerate(self._ranks):
            if rank.poll() is not None:
                raise NotTriedError(f"rank {number} of the job {self.case} ended: {self.last_word(number)}")

    def steps(self, rank: int = 0) -> list[float]:
        """When its steps ended: seconds of CLOCK_MONOTONIC."""
        path = self.directory / f"steps.{rank}"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [int(line) / 1e9 for line in whole.splitlines()]

    def stood_s(self, rank: int) -> float:
        """For how long a rank has been ready."""
        return time.time() - (self.directory / f"ready.{rank}").stat().st_mtime

    def log(self, rank: int) -> Path:
        return self.directory / f"log.{rank}"

    def wait_end(self, rank: int, seconds: float) -> int | None:
        """How a rank ended, as Popen says it; None: it did not."""
        try:
            return self._ranks[rank].wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last_word(self, rank: int) -> str:
        """The line that says most of why it ended: NCCL's own, else the last one."""
        lines = self.log(rank).read_text(errors="replace").strip().splitlines()
        telling = [line for line in lines if "Duplicate GPU" in line]
        return (telling or lines or ["it said nothing"])[-1].strip()

    def _start(self, rank: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        limit_s = max(1.0, self._context.left_s())
        words = [self.case, self.backend, self._device, str(self.directory), f"{limit_s:.0f}"]
        return subprocess.Popen(
            [self._context.pythons.torch, str(Path(__file__).with_name("job_child.py")), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment(rank),
            preexec_fn=die_with_parent,  # in the group of the slice, which its runner ends
        )

    def _environment(self, rank: int) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not _OF_A_JOB.fullmatch(name)}
        return {
            **kept,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(len(self._gpus)),
            "LOCAL_WORLD_SIZE": str(len(self._gpus)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": self._gpus[rank],
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            **{
                name: text.replace("{rank}", str(rank)).replace("{directory}", str(self.directory))
                for name, text in self._settings.items()
            },
        }

    def _wait_ready(self) -> None:
        until = time.monotonic() + min(self._ready_s, self._context.left_s())
        while not all((self.directory / f"ready.{rank}").exists() for rank in range(len(self._gpus))):
            self.check_alive()
            if time.monotonic() > until:
                raise NotTriedError(f"the job {self.case} did not get going: {self.last_word(0)}")
            time.sleep(TURN_S)


def longest_gap_s(steps: list[float], began_s: float, ended_s: float) -> float | None:
    """Between two steps, of those that touch this time; None without any."""
    inside = steps[max(0, bisect_left(steps, began_s) - 1) : bisect_left(steps, ended_s) + 1]
    return max((later - earlier for earlier, later in pairwise(inside)), default=None)
