"""The test's side of ``watch.py``: the states of all nodes over time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.hosts.cluster import REPOSITORY, Hosts
from tests.waiting import wait_until


@dataclass(frozen=True)
class Change:
    """A node's state from ``at`` (monotonic s) on."""

    at: float
    node: str
    state: str
    reason: str
    connect_s: float | None
    restarts: int


class Watcher:
    """A session on all hosts, run on the login node from ``__enter__`` to ``__exit__``."""

    def __init__(self, hosts: Hosts, *options: str) -> None:
        self._hosts = hosts
        self._options = options
        self.changes: list[Change] = []
        self._killed = False

    def __enter__(self) -> Watcher:
        self.process = self._hosts.login.start(
            [sys.executable, "-m", "tests.hosts.watch", self._hosts.pattern, *self._options],
            env=self._hosts.mltop_environment(),
            cwd=str(REPOSITORY),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(30)
        self._reader.join()
        assert code == (-signal.SIGKILL if self._killed else 0)

    def kill(self) -> None:
        """End it without a chance to say goodbye to anybody."""
        login = self._hosts.login
        ours = [process.pid for process in login.strangers() if "tests.hosts.watch" in process.command]
        login.signal("KILL", *ours)
        self._killed = True

    def now(self, node: str) -> Change | None:
        return next((change for change in reversed(self.changes) if change.node == node), None)

    def wait(self, node: str, *states: str, words: str = "", timeout_s: float = 60.0) -> Change:
        """The node is in one of these states; its reason has ``words``. AssertionError tells its history."""
        return self._wait(node, states, words, timeout_s, lambda: [self.now(node)])

    def wait_passing(self, node: str, since: float, *states: str, words: str = "", timeout_s: float = 60.0) -> Change:
        """The node was in one of these states at any moment after ``since``."""
        return self._wait(node, states, words, timeout_s, lambda: self._after(node, since))

    def _after(self, node: str, since: float) -> list[Change]:
        return [change for change in self.changes if change.node == node and change.at >= since]

    def _wait(
        self,
        node: str,
        states: tuple[str, ...],
        words: str,
        timeout_s: float,
        look: Callable[[], Sequence[Change | None]],
    ) -> Change:
        def there() -> Change | None:
            assert self.process.poll() is None, "the watch has ended"
            fits = [c for c in look() if c is not None and c.state in states and words.lower() in c.reason.lower()]
            return fits[0] if fits else None

        try:
            found = wait_until(there, timeout_s, f"{node}: {'/'.join(states)} {words!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it was {self.history(node)}") from None
        assert found is not None
        return found

    def wait_all_live(self, timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        for name in self._hosts.names:
            self.wait(name, "live", timeout_s=max(0.0, deadline - time.monotonic()))

    def retry(self, node: str) -> None:
        """What the user does after having repaired a node that refused us."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"retry {node}\n".encode())
        self.process.stdin.flush()

    def history(self, node: str, since: float = 0.0) -> list[tuple[str, str]]:
        return [(change.state, change.reason) for change in self._after(node, since)]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            fields = json.loads(line)
            if "node" in fields:
                self.changes.append(Change(**fields))
