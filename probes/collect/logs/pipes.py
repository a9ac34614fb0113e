"""Where the output of ranks goes that write to a pipe: whoever reads it, through several pipes if need be, has the file
open (``train.py | tee log``, a launcher's own reader); and in a Slurm job srun or the batch script has it, on the first
node, while the pipes of the ranks end in slurmstepd.

Only regular files are told that are the job's owner's and open for writing; of other users' processes slurmstepd's
alone are looked at, where that is allowed. Looking at the descriptors of all processes takes a while: it is done when
the ranks, or what was found, have changed, and seldom otherwise. Python 3.9.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Callable

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.sysfile import read_text
from mltop.probes.model import RankSample
from mltop.probes.system.paths import proc

FileId = tuple[int, int]
MOST_HOPS = 4  # pipes, one behind the other
MOST_PROCESSES, MOST_DESCRIPTORS = 8_192, 1_024  # looked at; of one process
MOST_FILES_OF_READER = 32
SCAN_S = 2.0  # at most
SELDOM = 100.0  # times what it has cost: a percent of a core
AGAIN_S, MOST_AGAIN_S = 5.0, 300.0  # where something is not found, and each time twice as long after that
_PIPE = "pipe:["
_STEPD, _SLURMD = "slurmstepd", "slurmd"
_OF_JOB = ("srun", "slurm_script")  # write what all ranks of a Slurm job say


@dataclass
class Destination:
    """A file that gets what ranks write to pipes. ``path``: to open it; ``writers``: those ranks by pid.

    ``is_whole_job``: ranks of other nodes write to it, too.
    """

    path: str
    writers: dict[int, RankSample] = field(default_factory=dict)
    is_whole_job: bool = False


@dataclass
class _Open:
    """What a process has open. ``writes``: pipes that its output goes to; ``files``: (descriptor, path) of what it may
    write to.
    """

    pid: int
    uid: int
    name: str
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    files: list[tuple[int, str]] = field(default_factory=list)


class PipeReaders:
    """``files_of`` with every look. ``waits_for``: is told what may keep us waiting. For one thread."""

    def __init__(self, waits_for: Callable[[str], None]) -> None:
        self._waits_for = waits_for
        self._found: dict[FileId, Destination] = {}
        self._ranks: frozenset[tuple[int, float | None]] = frozenset()
        self._not_before = self._due = 0.0
        self._pause_s = AGAIN_S

    def files_of(self, ranks: Iterable[RankSample]) -> dict[FileId, Destination]:
        """``ranks``: those with an output that is no regular file."""
        by_process = {(rank.pid, rank.started_at): rank for rank in ranks}
        if not by_process:
            self._found, self._ranks = {}, frozenset()
            return {}
        now = time.monotonic()
        known = frozenset(by_process)
        if known != self._ranks:
            self._ranks, self._due, self._pause_s = known, now, AGAIN_S
            self._found = {
                file: destination
                for file, destination in self._found.items()
                if any((rank.pid, rank.started_at) in known for rank in destination.writers.values())
            }
        found = {file: self._stat(each.path) for file, each in self._found.items()}
        standing = {
            file: self._found[file] for file, each in found.items() if each and (each.st_dev, each.st_ino) == file
        }
        if len(standing) < len(self._found):
            self._found, self._due = standing, now
        if now >= max(self._due, self._not_before):
            self._scan(list(by_process.values()))
            cost_s = time.monotonic() - now
            self._not_before = now + SELDOM * cost_s
            self._due = now + self._pause_s
            self._pause_s = min(MOST_AGAIN_S, 2 * self._pause_s)
        return self._found

    def _stat(self, path: str, name: str = "") -> os.stat_result | None:
        self._waits_for(name or path)
        try:
            return os.stat(path)
        except OSError:
            return None

    # One look at all processes.

    def _scan(self, ranks: list[RankSample]) -> None:
        uids = {rank.uid for rank in ranks if rank.uid is not None}
        until = time.monotonic() + SCAN_S
        own = {rank.pid for rank in ranks}
        processes = [each for each in _processes(uids, until) if each.pid not in own]
        found: dict[FileId, Destination] = {}
        daemons = {path for each in processes if each.name == _SLURMD for _, path in each.files}
        readers: dict[str, list[_Open]] = {}
        for each in processes:
            for pipe in each.reads:
                readers.setdefault(pipe, []).append(each)
        for rank in ranks:
            for reader in _behind(_pipes_of(rank.pid), readers):
                passed_on = [one for one in reader.files if one[0] != 2]  # its own errors are not what it reads
                self._take(found, rank, reader, passed_on, daemons)
        self._take_slurms(found, ranks, processes)
        self._found = found

    def _take_slurms(self, found: dict[FileId, Destination], ranks: list[RankSample], processes: list[_Open]) -> None:
        for writer in (each for each in processes if each.name in _OF_JOB):
            job = procfs.read_variables(proc(), writer.pid, ("SLURM_JOB_ID",)).get("SLURM_JOB_ID", "")
            files = [one for one in writer.files if writer.name == "srun" or one[0] in (1, 2)]
            for rank in ranks if job else ():
                if rank.job.partition("/")[0] == job and rank.uid == writer.uid:  # behind "/": which server in the job
                    self._take(found, rank, writer, files, set(), is_whole_job=True)

    def _take(
        self,
        found: dict[FileId, Destination],
        rank: RankSample,
        writer: _Open,
        files: Iterable[tuple[int, str]],
        without: set[str],
        *,
        is_whole_job: bool = False,
    ) -> None:
        for number, name in list(files)[:MOST_FILES_OF_READER]:
            if name in without or (writer.uid != rank.uid and writer.name != _STEPD):
                continue
            path = proc(writer.pid, "fd", number)
            told = self._stat(path, name)
            if told and stat.S_ISREG(told.st_mode) and told.st_uid == rank.uid:
                destination = found.setdefault((told.st_dev, told.st_ino), Destination(path))
                destination.writers[rank.pid] = rank
                destination.is_whole_job = destination.is_whole_job or is_whole_job


def _processes(uids: set[int], until: float) -> Iterator[_Open]:
    """Those of these users, and Slurm's daemons."""
    pids: list[int] = []
    with suppress(OSError):
        pids = procfs.list_pids(proc())
    for pid in pids[:MOST_PROCESSES]:
        if time.monotonic() > until:
            return
        with suppress(OSError):
            uid = os.stat(proc(pid)).st_uid
            name = (read_text(proc(pid, "comm")) or "") if uid in uids or uid == 0 else ""
            if uid in uids or name in (_STEPD, _SLURMD):
                yield _opened(_Open(pid, uid, name))


def _opened(process: _Open) -> _Open:
    """By the links alone: nothing that they lead to is touched."""
    folder = proc(process.pid, "fd")
    for number in os.listdir(folder)[:MOST_DESCRIPTORS]:
        with suppress(OSError, ValueError):
            path = f"{folder}/{number}"
            target, mode = os.readlink(path), os.lstat(path).st_mode
            if target.startswith(_PIPE):
                if mode & stat.S_IRUSR:
                    process.reads.append(target)
                if mode & stat.S_IWUSR and number == "1":
                    process.writes.append(target)
            elif target.startswith("/") and not target.startswith(("/dev/", "/proc/")) and mode & stat.S_IWUSR:
                process.files.append((int(number), target))
    return process


def _pipes_of(pid: int) -> list[str]:
    """What its output and its errors go to."""
    pipes = []
    for number in (1, 2):
        with suppress(OSError):
            target = os.readlink(proc(pid, "fd", number))
            if target.startswith(_PIPE) and target not in pipes:
                pipes.append(target)
    return pipes


def _behind(pipes: list[str], readers: dict[str, list[_Open]]) -> Iterator[_Open]:
    """Who reads them, and who reads what those write."""
    seen: set[int] = set()
    passed = set(pipes)
    for _ in range(MOST_HOPS):
        here = [reader for pipe in pipes for reader in readers.get(pipe, ()) if reader.pid not in seen]
        here = list({reader.pid: reader for reader in here}.values())
        seen.update(reader.pid for reader in here)
        yield from here
        # One that both reads and writes a pipe wakes itself up by it: that one leads nowhere.
        written = (pipe for reader in here for pipe in reader.writes if pipe not in reader.reads)
        pipes = [pipe for pipe in dict.fromkeys(written) if pipe not in passed]
        passed.update(pipes)
