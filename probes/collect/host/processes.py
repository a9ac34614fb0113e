"""Processes stuck in the kernel (state D) and zombies.

One that is found blocked is from then on looked at each second, as are ranks and their children that were seen so.
Source: /proc/PID/task/PID/{stat,io}, /proc/PID/wchan (proc_pid_stat(5) and its neighbours).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mltop.probes.collect.host.files import read_file
from mltop.probes.collect.host.part import Reading
from mltop.probes.collect.host.process_states import ProcessStates
from mltop.probes.collect.ranks.values import shown_text
from mltop.probes.model import BlockedProcess, Gap, RankSample

_MAX_SHOWN = 40
_MAX_WATCHED = 200  # a dead file server may block thousands


@dataclass
class _Blocked:
    """``marks`` change as soon as the main thread has done something of its own."""

    name: str
    since: float
    marks: tuple[bytes, ...]


class Processes:
    """``blocked`` and ``zombies``. Blocked is the main thread, and only for as long as it does nothing of its own:
    one that merely reads much from a disk is often found in state D, too.
    """

    def __init__(self, root: str) -> None:
        self._proc = root + "/proc"
        self._states = ProcessStates(root)
        # Our own children hang instead of us: what they hang in is told elsewhere.
        self._own_pid = b"" if root else str(os.getpid()).encode()
        self._blocked: dict[int, _Blocked] = {}

    def read(self, now: float, ranks: Sequence[RankSample]) -> Reading:
        reading = Reading()
        found: list[int] = []
        try:
            found = self._states.look(now)
            reading.values["zombies"] = self._states.zombies
        except OSError as error:
            reading.gaps.append(Gap("host.{zombies,blocked}", f"{self._proc} cannot be listed: {error}"))
        if self._states.denied:
            why = f"{len(self._states.denied)} processes of other users cannot be read (hidepid)"
            reading.gaps.append(Gap("host.{zombies,blocked}", why, "sudo mltop"))
        self._watch(dict.fromkeys([*self._blocked, *_suspects(ranks), *found]), now)
        reading.values["blocked"] = self._shown(now, {rank.pid: rank.rank for rank in ranks})
        if len(self._blocked) > _MAX_SHOWN:
            why = f"{len(self._blocked)} processes or more are blocked: {_MAX_SHOWN} of them are shown"
            reading.gaps.append(Gap("host.blocked.more", why))
        return reading

    def close(self) -> None:
        self._states.close()

    def _watch(self, pids: Iterable[int], now: float) -> None:
        """Look at the main threads of those that are, or may be, blocked."""
        for pid in pids:
            try:
                data = read_file(f"{self._proc}/{pid}/task/{pid}/stat")
            except OSError:
                data = b""
            fields = data[data.rfind(b")") + 2 :].split()
            if len(fields) < 20 or fields[0] != b"D" or fields[1] == self._own_pid:
                self._blocked.pop(pid, None)
                continue
            # A pid that is used again has another start; page faults, user time and system calls tell of work.
            marks = (fields[19], fields[7], fields[9], fields[11], self._system_calls(pid))
            known = self._blocked.get(pid)
            if known is None and len(self._blocked) >= _MAX_WATCHED:
                continue
            if known is None or known.marks != marks:
                name = data[data.find(b"(") + 1 : data.rfind(b")")].decode("utf-8", "replace")
                self._blocked[pid] = _Blocked(name, now, marks)

    def _system_calls(self, pid: int) -> bytes:
        """The main thread's I/O counts; b"" without permission, and for what ends meanwhile."""
        try:
            return read_file(f"{self._proc}/{pid}/task/{pid}/io")
        except OSError:
            return b""

    def _shown(self, now: float, ranks: dict[int, int | None]) -> list[BlockedProcess]:
        """Ranks first, then what belongs to the GPU driver, then by time."""

        def order(item: tuple[int, _Blocked]) -> tuple[bool, bool, float, int]:
            pid, blocked = item
            return pid not in ranks, not blocked.name.startswith("nvidia"), blocked.since, pid

        return [
            BlockedProcess(pid, shown_text(one.name), max(0.0, now - one.since), self._wchan(pid), ranks.get(pid))
            for pid, one in sorted(self._blocked.items(), key=order)[:_MAX_SHOWN]
        ]

    def _wchan(self, pid: int) -> str | None:
        """The kernel function in which it sleeps; the kernel prints "0" to those who may not know."""
        try:
            text = read_file(f"{self._proc}/{pid}/wchan").decode("ascii", "replace").strip()
        except OSError:
            return None
        return None if text in ("", "0") else text


def _suspects(ranks: Sequence[RankSample]) -> Iterable[int]:
    for rank in ranks:
        if rank.state == "D":
            yield rank.pid
        if rank.children_blocked:
            yield from rank.children
