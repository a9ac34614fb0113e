"""NVIDIA's services. Source: systemctl show, once a minute, in a child with a deadline; systemd.unit(5).

In between their cgroups tell: one that comes or goes has its service asked for at once.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from mltop.probes.collect.host.part import Reading
from mltop.probes.collect.timing import Pace
from mltop.probes.model import RankSample
from mltop.probes.system import as_root
from mltop.probes.system.spawn import end_child, start_child

SERVICES = ("nvidia-fabricmanager", "nvidia-imex", "nvidia-persistenced", "nvidia-dcgm")
_ASK_EVERY_S = 60.0
_LOOK_EVERY_S = 5.0
_DEADLINE_S = 5.0
_ANSWER_BYTES = 65536
_KILL_WAIT_S = 0.1
_WORDS = {"active": "active", "reloading": "active", "activating": "activating", "failed": "failed"}


class Services:
    """``services``: active | inactive | failed | absent | activating, by name."""

    def __init__(self, root: str) -> None:
        self._systemd = root + "/run/systemd/system"  # sd_booted(3)
        self._cgroups = root + "/sys/fs/cgroup/system.slice"
        self._process: subprocess.Popen[bytes] | None = None  # a systemctl that runs
        self._deadline_s = 0.0
        self._look_pace, self._ask_pace = Pace(_LOOK_EVERY_S), Pace(_ASK_EVERY_S)
        self._running: frozenset[str] = frozenset()
        self._newest = Reading().lack("services", why="systemctl has not answered yet", kind="starting")

    def read(self, now: float, _ranks: Sequence[RankSample]) -> Reading:
        if self._process is not None:
            self._newest = self._answer(self._process) or self._newest
        if not self._look_pace.is_due(now):
            return self._newest
        self._look_pace.done(now)
        if not os.path.isdir(self._systemd):
            self._newest = Reading().lack("services", why="no systemd here", kind="unsupported")
            return self._newest
        running = frozenset(name for name in SERVICES if os.path.exists(f"{self._cgroups}/{name}.service"))
        if self._process is None and (self._ask_pace.is_due(now) or running != self._running):
            self._ask_pace.done(now)
            self._running = running
            program = as_root.find_program("systemctl")
            if program is None:
                self._newest = Reading().lack("services", why="systemctl is not in PATH")
                return self._newest
            units = [f"{name}.service" for name in SERVICES]
            try:
                self._process = start_child([program, "show", "--no-pager", "-p", "Id,LoadState,ActiveState", *units])
                self._deadline_s = time.monotonic() + _DEADLINE_S
            except OSError as error:
                self._newest = Reading().lack("services", why=f"systemctl cannot be started: {error}")
        return self._newest

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_child(process, kill_s=_KILL_WAIT_S)

    def _answer(self, process: subprocess.Popen[bytes]) -> Reading | None:
        """The states that it tells; None while it runs and has time left. Its few hundred bytes wait in the pipe."""
        code = process.poll()
        if code is None:
            if time.monotonic() < self._deadline_s:
                return None
            self.close()
            return Reading().lack("services", why=f"systemctl did not answer within {_DEADLINE_S:.0f} s")
        self._process = None
        assert process.stdout is not None
        with process.stdout as pipe:
            os.set_blocking(pipe.fileno(), False)  # something that it left behind may hold the other end
            try:
                text = os.read(pipe.fileno(), _ANSWER_BYTES).decode("utf-8", "replace")
            except BlockingIOError:
                text = ""
        states = parse_states(text) if code == 0 else {}
        if states:
            return Reading({"services": states})
        reason = next(iter(text.strip().splitlines()), "") or f"exit {code}"
        return Reading().lack("services", why=f"systemctl show: {reason[:200]}")


def parse_states(text: str) -> dict[str, str]:
    """The answer has a block of NAME=VALUE lines for each unit, in the order in which they were asked for."""
    blocks = [block for block in text.split("\n\n") if block.strip()]
    if len(blocks) != len(SERVICES):
        return {}
    states = {}
    for name, block in zip(SERVICES, blocks):
        unit = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "ActiveState" not in unit:
            return {}
        absent = unit.get("LoadState") == "not-found" and unit["ActiveState"] == "inactive"
        states[name] = "absent" if absent else _WORDS.get(unit["ActiveState"], "inactive")
    return states
