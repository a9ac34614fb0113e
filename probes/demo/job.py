"""A real distributed job on this machine's CPU in which one rank stops making progress.

It leaves nothing behind: no temporary file, no listening port on an outside interface, no process
(see training.py for what happens when the owner is killed).
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from mltop.probes.demo.training import RankSetup
from mltop.probes.system.spawn import end_child, signal_group, start_child

# Set by launchers; in a rank's environment they would make it look like a part of the job we were started in.
LAUNCHER_PREFIXES = (
    *("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_"),
    *("ROLE_", "GROUP_", "TORCH_NCCL_", "NCCL_"),
)
PORTS = 1024, 32_768  # below those that the kernel gives to connections. Only a name: nobody meets there
JOB = "llama-7b"


class DemoJob:
    """``ranks`` processes; rank ``culprit`` hangs in its dataset ``healthy_s`` after its first step,
    or after 4 steps of ``step_s`` if that is later.

    ``use_torch``: True torch with gloo, False the pure-Python stand-in, None torch where it can be imported.
    ``start`` returns within some 10 ms per rank; imports happen in the ranks. Usable as a context manager.
    """

    def __init__(
        self,
        ranks: int = 4,
        culprit: int = 2,
        use_torch: bool | None = None,
        healthy_s: float = 4.0,
        step_s: float = 0.25,
    ) -> None:
        if not 0 <= culprit < ranks:
            raise ValueError(f"culprit {culprit} is not one of {ranks} ranks")
        self.ranks = ranks
        self.culprit = culprit
        self.use_torch = importlib.util.find_spec("torch") is not None if use_torch is None else use_torch
        self._may_fall_back = use_torch is None
        self._healthy_s = healthy_s
        self._step_s = step_s
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closing = threading.Event()
        self._started = threading.Event()
        self._start_error: Exception | None = None
        self._hung_fd = self._log_fd = -1

    def start(self) -> DemoJob:
        """Start the ranks. OSError when a process cannot be started; none is left then."""
        self._hung_fd, self._log_fd = memory_file("mltop-demo-hung"), memory_file("mltop-demo-log")
        # PR_SET_PDEATHSIG fires when the *thread* that forked ends, so this one stays until close().
        threading.Thread(target=self._keep, name="mltop-demo-job", daemon=True).start()
        self._started.wait()
        if self._start_error is not None:
            self.close()
            raise self._start_error
        return self

    @property
    def pids(self) -> list[int]:
        """The ranks' pids in rank order; empty before start and after close."""
        return [process.pid for process in self._processes]

    def on_gpus(self) -> list[tuple[int, int]]:
        """(pid, GPU index) of each rank: rank i is given GPU i."""
        return [(pid, index) for index, pid in enumerate(self.pids)]

    def hung_since(self) -> float | None:
        """Unix time at which the culprit stopped; None while the job is healthy."""
        written = os.pread(self._hung_fd, 64, 0) if self._hung_fd >= 0 else b""
        return float(written.split(b"\n")[0]) if b"\n" in written else None

    def problem(self) -> str | None:
        """Why the job does not run: which rank ended, and the last line it wrote. None while all run."""
        for rank, process in enumerate(self._processes):
            # WNOWAIT: the zombie keeps the pid and the process group ours until close().
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return f"rank {rank} of the demo job ended: {self._last_line() or 'it wrote nothing'}"
        return None

    def close(self) -> None:
        """Kill the ranks and whatever they forked; idempotent, well under a second."""
        self._closing.set()
        processes, self._processes = self._processes, []
        for process in processes:  # also of one that has ended: what it forked may live
            signal_group(process, signal.SIGKILL)
        for process in processes:
            end_child(process)
        for fd in (self._hung_fd, self._log_fd):
            if fd >= 0:
                os.close(fd)
        self._hung_fd = self._log_fd = -1

    def __enter__(self) -> DemoJob:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self) -> None:
        try:
            self._spawn_all()
        except Exception as error:  # noqa: BLE001 - start() raises it in the caller's thread
            self._start_error = error
        finally:
            self._started.set()
        self._closing.wait()

    def _spawn_all(self) -> None:
        store_fd = memory_file("mltop-demo-store")
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(self.ranks)]
        port = random.randrange(*PORTS)
        try:
            for rank, (inbox, _) in enumerate(pairs):
                setup = RankSetup(
                    rank=rank,
                    world_size=self.ranks,
                    parent_pid=os.getpid(),
                    step_s=self._step_s,
                    hung_fd=self._hung_fd,
                    store_fd=store_fd,
                    inbox_fd=inbox.fileno(),
                    outbox_fds=[outbox.fileno() for _, outbox in pairs],
                    stuck_after_s=self._healthy_s if rank == self.culprit else None,
                    may_fall_back=self._may_fall_back,
                )
                self._processes.append(self._spawn(setup, port))
        finally:
            os.close(store_fd)
            for ends in pairs:
                for end in ends:
                    end.close()

    def _spawn(self, setup: RankSetup, port: int) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("train_torch.py" if self.use_torch else "train_plain.py")
        return start_child(
            [sys.executable, str(script)],
            env=environment(setup, port),
            pass_fds=[setup.hung_fd, setup.store_fd, setup.inbox_fd, *setup.outbox_fds],
            stdin=subprocess.PIPE,
            stdout=self._log_fd,
            stderr=self._log_fd,
        )

    def _last_line(self) -> str:
        size = os.fstat(self._log_fd).st_size
        text = os.pread(self._log_fd, 4096, max(0, size - 4096)).decode("utf-8", "replace")
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def environment(setup: RankSetup, port: int) -> dict[str, str]:
    """Ours, without what a surrounding job left in it, plus what launchers set for a rank."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_PREFIXES)}
    ranks = {
        "TORCHELASTIC_RUN_ID": JOB,
        "RANK": str(setup.rank),
        "WORLD_SIZE": str(setup.world_size),
        "LOCAL_RANK": str(setup.rank),
        "LOCAL_WORLD_SIZE": str(setup.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return {**inherited, **ranks, **setup.to_environment()}


def memory_file(name: str) -> int:
    """A file that no directory holds; every writer appends."""
    fd = os.memfd_create(name)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd
