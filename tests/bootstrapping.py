"""A small hub for one node: starts a launcher's command, sends the opening, answers the boot frame, reads frames."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from mltop.probes.agent.protocol import Assembler, Boot, Message, Request, encode
from mltop.probes.model import Sample
from mltop.probes.reach.bundle import bundle, file_for, loader, opening
from mltop.probes.reach.launchers import pdsh
from mltop.probes.reach.launchers.remote_command import installed_agent, remote_command
from mltop.probes.reach.receiving import own_type

DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)
DEADLINE_S = 60.0
REPOSITORY = Path(__file__).parent.parent
MACHINE = os.uname().machine


def bundle_sha256() -> str:
    """Of what this machine is sent."""
    return bundle(MACHINE).sha256


@cache
def file_here(name: str = "bundle") -> Request:
    """What ``file_for`` makes for this machine: compressing it takes half a second, so for all tests once."""
    return file_for(name, MACHINE)


class Bootstrapped:
    """One running command. Times are seconds since it was started."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.noise: list[bytes] = []
        self.boots: list[Boot] = []
        self.sent_bytes = 0
        self._assembler = Assembler()
        self._buffer = b""

    def send(self, data: bytes | Request) -> None:
        data = encode(data) if isinstance(data, Request) else data
        self.process.stdin.write(data)
        self.sent_bytes += len(data)

    def send_frame(self, request: Request, share: float) -> None:
        """Only the first part of a frame."""
        data = encode(request)
        self.send(data[: int(len(data) * share)])

    def close_stdin(self) -> None:
        self.process.stdin.close()

    def next(self, *kinds: str) -> Message:
        """The next frame of one of these kinds; AssertionError with what was said at the end or deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            line = self._line(deadline)
            payload = self._assembler.take(line)
            if payload is None:
                self.noise.append(line)
                continue
            message = DECODER.decode(payload)
            if message.boot is not None:
                self.boots.append(message.boot)
            if message.kind in kinds or message.kind == "error":
                return message

    def later_sample(self) -> Sample:
        """One that has what the first one does not wait for."""
        while True:
            sample = self.next("sample").sample
            if not any(gap.source == "links" and gap.kind == "starting" and not gap.fields for gap in sample.gaps):
                return sample

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no frame within {DEADLINE_S} s: {self.noise}"
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise AssertionError(f"ended with {self.process.wait(10)}: {self.noise} {self.errors()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def boot(self, file: Callable[[Boot], Request] | None = None) -> Message:
        """Opening sent, boot frame answered; the hello, or the error in its place. ``booted`` is the first boot."""
        self.send(opening())
        message = self.next("boot")
        if message.kind == "error":
            return message
        self.booted = self.boots[0]
        if not self.booted.cached:
            assert self.booted.machine == MACHINE
            self.send(file(self.booted) if file else file_here())
        hello = self.next("hello")
        self.hello_s = time.monotonic() - self.started
        return hello

    def errors(self) -> str:
        """What it wrote to stderr; call it when it has ended."""
        return self.process.stderr.read().decode(errors="replace")

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def running(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[Bootstrapped]:
    node = Bootstrapped(argv, env)
    try:
        yield node
    finally:
        with contextlib.suppress(OSError):
            node.close_stdin()
        try:
            node.process.wait(5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.process.pid, signal.SIGKILL)
            node.process.wait()
        node.process.stdout.close()
        node.process.stderr.close()


def command(*agent_args: str, shell: str = "sh", python: str = "", node: str = "here") -> list[str]:
    """What ssh would make the node's login shell do."""
    return [shell, "-c", remote_command(["--node", node, "--interval", "0.2", *agent_args], python)]


def installed(*agent_args: str, node: str = "there", shell: str = "sh", one_shot: bool = False) -> list[str]:
    """What pdsh would make a node's login shell do."""
    words = ["--node", node, *agent_args]
    return [shell, "-c", installed_agent(node, words, pdsh.agent_hashes(), loader=loader(), one_shot=one_shot)]


def environment(home: os.PathLike[str] | str, **more: str) -> dict[str, str]:
    """A node's environment: nothing of ours, a home of its own, and no other cache folder before it."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **more}


def start_once(home: Path, argv: list[str] | None = None, **env: str) -> Boot:
    """Boots an agent, sees its first sample and ends it."""
    with running(argv or command(), environment(home, **env)) as node:
        hello = node.boot()
        assert hello.kind == "hello", hello.error
        assert node.next("sample").sample is not None
        node.close_stdin()
        assert node.wait() == 0
        return node.booted


def processes_of(home: os.PathLike[str] | str) -> list[int]:
    """Pids of every process that has this home: all that a bootstrap started."""
    wanted = b"HOME=" + os.fsencode(home)
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            continue  # it ended while we looked
    return found


def in_mounts(setup: str, argv: Sequence[str]) -> list[str]:
    """``argv`` where the shell commands of ``setup`` have changed what is mounted, for it alone.

    As another user than root it is root in a namespace of its own (user_namespaces(7)).
    """
    unshare = ["unshare", "--mount", "--propagation", "private", *(["--map-root-user"] if os.geteuid() else [])]
    return [*unshare, "sh", "-c", f'set -e; {setup}; exec "$@"', "sh", *argv]


SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")


def nowhere_to_write() -> str:
    """For ``in_mounts``: /tmp and its like are read-only, and empty but for what the tests run from."""
    needed = {REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)}
    steps = []
    for folder in filter(os.path.isdir, SCRATCH):
        below = [path for path in needed if path.is_relative_to(folder) and needed.isdisjoint(path.parents)]
        steps += [f"exec {fd}<{shlex.quote(str(path))}" for fd, path in enumerate(below, 5)]  # what the mount hides
        steps.append(f"mount -t tmpfs none {folder}")
        for fd, path in enumerate(below, 5):
            place = shlex.quote(str(path))
            steps.append(f"mkdir -p {place}; mount --no-canonicalize --rbind /proc/self/fd/{fd} {place}; exec {fd}<&-")
        steps.append(f"mount -o remount,bind,ro {folder}")
    return "; ".join(steps)
