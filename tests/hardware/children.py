"""Children that say lines of JSON for as long as a slice wants them: mltop's own agent, and our small programs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from mltop.probes.agent.protocol import Request, encode, payload_of
from mltop.probes.system.spawn import python_command
from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context
from tests.hardware.sources import last_words_in

END_S = 10.0
KILL_S = 5.0
ASK_S = 30.0
NOBODY = 65534
WATCHED_S = 24 * 3600.0
Self = TypeVar("Self", bound="Speaker")
Told = tuple[float, dict[str, Any]]  # CLOCK_MONOTONIC at its arrival, what the line says


class Speaker:
    """with Speaker(command) as child: ``child.told`` grows. It ends when its input does.

    ``user``: the uid that it runs as, with no rights beside. NotTriedError where it cannot be started.
    """

    name = "our program"

    def __init__(self, command: Sequence[str], user: int | None = None) -> None:
        self.told: list[Told] = []
        self._news = threading.Condition()
        self._ended = False
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the child)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd="/",
                **as_user(user),
            )
        except OSError as error:
            whom = "" if user is None else f" as uid {user}"
            raise NotTriedError(f"{command[0]} cannot be started{whom}: {error}") from None
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self: Self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End of its input, SIGTERM, SIGKILL; one that is stuck in the driver is left behind."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        for wait_s, harder in ((END_S, self._process.terminate), (KILL_S, self._process.kill), (KILL_S, None)):
            try:
                self._process.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                if harder is not None:
                    harder()
        self._reader.join(KILL_S)

    def wait(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Whether it has come to that in time; at once when the child has ended."""
        with self._news:
            self._news.wait_for(lambda: enough() or self._ended, seconds)
            return enough()

    def check_alive(self) -> None:
        """NotTriedError when it has ended by itself."""
        if self._process.poll() is not None:
            raise NotTriedError(f"{self.name} ended by itself: {self.why()}")

    def why(self) -> str:
        """Its last words on stderr."""
        return last_words_in(self._errors) or "it said nothing"

    def decode(self, line: bytes) -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(line)
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                told = self.decode(line)
                if told is not None:
                    with self._news:
                        self.told.append((time.monotonic(), told))
                        self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class Agent(Speaker):
    """mltop's own agent as it runs on a node; ``told``: its samples, as they go over the wire."""

    name = "mltop's agent"

    def __init__(self, context: Context, interval_s: float = 1.0, user: int | None = None) -> None:
        words = ("--node", "here", "--interval", f"{interval_s:g}")
        super().__init__(python_command("mltop.probes.agent.__main__", *words, python=context.pythons.mltop), user)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(encode(Request("watch", args={"seconds": WATCHED_S})))  # whole samples, each time
            self._process.stdin.flush()

    def decode(self, line: bytes) -> dict[str, Any] | None:
        payload = payload_of(line.rstrip(b"\n"))
        frame = {} if payload is None else json.loads(payload)
        return frame["sample"] if frame.get("kind") == "sample" else None

    def wait_for_gpus(self, seconds: float) -> None:
        """Until some GPU has been read. NotTriedError when that does not happen, or the agent has ended."""
        if not self.wait(lambda: any(gpu.get("last_seen_at") for gpu in self._newest()), seconds):
            gaps = [gap["why"] for gap in self.told[-1][1].get("gaps", ())] if self.told else []
            said = "; ".join(gaps[:3]) or self.why()
            raise NotTriedError(f"mltop's agent tells of no GPU within {seconds:g} s: {said}")

    def _newest(self) -> list[dict[str, Any]]:
        return self.told[-1][1].get("gpus", []) if self.told else []


def script(context: Context, name: str, *words: str, user: int | None = None) -> Speaker:
    """One of our small programs, in the Python that has pynvml."""
    return Speaker([context.pythons.mltop, str(Path(__file__).with_name(name)), *words], user)


def as_user(user: int | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": [], "env": {**os.environ, "HOME": "/"}}


def why_not_as(context: Context, user: int) -> str:
    """Why mltop's agent cannot run as this user, "" when it can: it must be able to read all that it is made of."""
    if os.geteuid() != 0:
        return "only root can run the agent as somebody else, too: run this as root"
    command = python_command("mltop.probes.agent.__main__", "--help", python=context.pythons.mltop)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S, cwd="/", **as_user(user)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"uid {user} cannot run {context.pythons.mltop}: {error}"
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        return f"uid {user} cannot run mltop's agent from this checkout: {said}"
    return ""


Rights = Literal["none", "some", "unknown"]


def rights_of(pid: int, user: int) -> Rights:
    """Whether a process that runs as somebody else has capabilities left."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "unknown"
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    uids = {int(word) for word in lines["Uid"].split()}
    capabilities = [int(lines[name], 16) for name in ("CapEff", "CapPrm", "CapAmb") if name in lines]
    return "none" if uids == {user} and not any(capabilities) else "some"
