"""The files that ranks write to, followed while they run: what torch says of a collective that times out is told while
the processes are still there to be looked at.

Files are those that a rank's standard output and error are, or that whoever reads its pipe writes to (pipes.py). They
are opened through /proc, so that those of containers are found, too, and only where they are regular files. All of it
runs in a thread of its own: a file server that does not answer holds up nothing else. The thread has a budget of
processor time for each user, as samples need the interpreter, too: text beyond it is skipped, and a gap says so.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Callable

from mltop.probes.collect.logs.parser import LogParser, quoted
from mltop.probes.collect.logs.pipes import Destination, FileId, PipeReaders
from mltop.probes.collect.logs.prefixes import Clock, speaker_of, without_colours
from mltop.probes.collect.logs.scanning import Scanner
from mltop.probes.collect.ranks.access import user_name
from mltop.probes.collect.redaction.values import shown_text, without_tokens
from mltop.probes.model import Gap, LogLine, RankSample
from mltop.probes.model.acts import LogTail
from mltop.probes.model.evidence.logs import EventKind, LogEvent, LogFile
from mltop.probes.model.sample import MAX_LOG_LINES
from mltop.probes.model.text import clean
from mltop.probes.model.units import size_words
from mltop.probes.model.vocabulary import LogLineKind
from mltop.probes.system.files import BadFile, open_regular
from mltop.probes.system.paths import proc

MOST_BYTES = 256 * 1024  # of one file
MOST_LINES = 500


def last_lines(pid: int, most: int, behind_pipes: Mapping[FileId, Destination] | None = None) -> list[LogTail]:
    """Of standard output and error, where these are regular files; a file that is both comes once. ``behind_pipes``:
    what ranks of this node write to through others; of those files without lines that say that another rank wrote them.
    """
    behind = behind_pipes or {}
    wanted: list[tuple[str, FileId | None, RankSample | None]] = [
        *((f"{proc()}/{pid}/fd/{number}", None, None) for number in (1, 2)),
        *((each.path, file, each.writers[pid]) for file, each in behind.items() if pid in each.writers),
    ]
    tails: dict[FileId, LogTail] = {}
    why = ""
    for path, file, rank in wanted:
        try:
            with os.fdopen(open_regular(path), "rb") as stream:
                status = os.fstat(stream.fileno())
                found = (status.st_dev, status.st_ino)
                if found not in tails and file in (None, found):  # else another one by now
                    stream.seek(max(0, status.st_size - MOST_BYTES))
                    text = stream.read(MOST_BYTES).decode("utf-8", "replace").rstrip("\n")
                    lines = [line for line in text.split("\n") if rank is None or _may_be_of(line, rank)]
                    lines = lines[-min(most, MOST_LINES) :]
                    # Of a progress bar that was written over, its last state.
                    last_states = [line.rstrip("\r").rpartition("\r")[2] for line in lines if line or len(lines) > 1]
                    shown = [quoted(without_colours(line)) for line in last_states]
                    name = without_tokens(clean(os.readlink(path), 1024))
                    tails[found] = LogTail(name, status.st_size, status.st_mtime, shown)
        except BadFile:
            why = why or "it writes to a pipe or a terminal, not to a file"
        except OSError as error:
            why = why or (error.strerror or "")
    return list(tails.values()) or [LogTail("", why=why or "it has no output")]


def _may_be_of(line: str, rank: RankSample) -> bool:
    speaker, _ = speaker_of(without_colours(line))
    number = speaker.task if speaker.rank is None and rank.launcher == "srun" else speaker.rank
    return number is None or number == rank.rank


KEPT_S = 3600.0
LINGERS_S = 3.0  # who reads the pipe of a rank that has ended writes its last words so much later, at most
LAST_WORDS_S = 1.0  # how long a sample in which a rank has ended waits for them
BEFORE_BYTES = 256 * 1024  # that stand in a file when it is first seen
BURST_BYTES = 8 * 1024 * 1024  # of one file in one look: what is beyond it is left out, and only the end is read
LOOK_BYTES = 32 * 1024 * 1024  # of all files: what is beyond it waits for the next look
PIECE_BYTES = 64 * 1024  # read at once: one search holds the interpreter's lock for no longer than this text takes
SHARE = 0.02  # of a core, for all users together
MOST_CREDIT_S = 0.1  # of processor time that a user may save up: the tracebacks of a whole job at once
SKIPPED_SHOWN_S = 60.0
MOST_GAPS = 8
MOST_FILES = 512
STUCK_S = 10.0
# A stamp is believed where it lies so shortly before the file's last change, or after it.
RECENT_S, AHEAD_S = 900.0, 60.0
_LONGEST_REST = 64 * 1024  # of a line that is not complete yet
_KINDS: dict[EventKind, LogLineKind] = {
    "collective_timeout": "timeout",
    "gloo_timeout": "timeout",
    "first_to_dump": "timeout",
    "barrier_named": "names",
    "desync_named": "names",
    "heartbeat_named": "names",
    "remote_named": "names",
    "exception": "fault",
    "fatal_signal": "fault",
    "device_assert": "fault",
    "peer_exception": "peer",
    "peer_lost": "peer",
}


@dataclass
class _Followed:
    """``descriptor``: kept open: the last words of a process are read when it is gone. ``offset``: up to where it was
    read; ``rest``: a line that has no end yet. ``whole``: read from its beginning; ``owners``: who writes to it,
    ``is_whole_job``: and ranks of other nodes. ``is_behind_pipe``: they do so through another process; ``left_at``:
    none of them has lived since, ``read_at``: when it was last read, monotonic s. ``uid``: of its first writer.
    """

    descriptor: int
    offset: int
    parser: LogParser
    scanner: Scanner
    whole: bool
    rest: bytes = b""
    owners: dict[int, RankSample] = field(default_factory=dict)
    fresh: bool = True
    is_whole_job: bool = False
    is_behind_pipe: bool = False
    left_at: float | None = None
    uid: int | None = None
    read_at: float = 0.0
    is_up_to_date: bool = True


class LogFollower:
    """``read`` with every sample: what the thread has read until then. Only where a rank has ended since the last one
    does it wait, LAST_WORDS_S at most. ``lingers_s``: for how long what a pipe's reader writes is waited for.
    """

    def __init__(self, lingers_s: float = LINGERS_S) -> None:
        self._lingers_s = lingers_s
        self._lines: deque[LogLine] = deque(maxlen=MAX_LOG_LINES)
        self._ranks: list[RankSample] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._looking: tuple[float, str] | None = None  # since when (monotonic s) the thread waits for a file
        self._unseen = 0
        self._looks = 0
        self._left = 0  # bytes that this look may still read
        self._credit_s: dict[int | None, float] = {}  # by user, processor time
        self._until_s = 0.0  # thread time at which the user's credit ends
        self._looked_at = 0.0  # monotonic s
        self._skipped: dict[int | None, tuple[int, float]] = {}  # by user: bytes, and when last (monotonic s)
        self._broken: dict[FileId, str] = {}  # files that our own reading failed on, and how
        self._looked = threading.Condition(self._lock)
        self._files: dict[FileId, _Followed] = {}
        self._readers = PipeReaders(self._waits_for)

    def read(self, now: float, ranks: list[RankSample]) -> tuple[list[LogLine], list[Gap]]:
        """Lines of the last hour that matter, the newest last. ``now``: unix s."""
        ranks = [rank for rank in ranks if rank.state not in ("Z", "X")]  # they have no files any more
        with self._looked:
            gone = {rank.pid for rank in self._ranks} - {rank.pid for rank in ranks}
            self._ranks = ranks
        if ranks and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mltop-logs", daemon=True)
            self._thread.start()
        with self._looked:
            looks = self._looks + (self._looking is not None)  # one that runs began before
            self._wake.set()
            if gone and self._thread is not None:  # why they ended is told with that they did, if it can be
                self._looked.wait_for(lambda: self._looks >= looks + 1, LAST_WORDS_S)
            lines = [line for line in self._lines if line.at >= now - KEPT_S]
            looking, unseen, broken = self._looking, self._unseen, list(self._broken.values())
            skipped = {uid: told for uid, told in self._skipped.items() if time.monotonic() - told[1] < SKIPPED_SHOWN_S}
            self._skipped = skipped
        gaps = []
        if looking is not None and time.monotonic() - looking[0] > STUCK_S:
            waited_s = time.monotonic() - looking[0]
            gaps.append(Gap("logs", f"{shown_text(looking[1])} has not answered for {waited_s:.0f} s"))
        gaps += [Gap("logs", f"the reader failed: {why}", "please report this") for why in broken[:1]]
        for uid, (count, _) in list(skipped.items())[:MOST_GAPS]:
            gaps.append(Gap("logs", f"too much text from {user_name(uid) or 'a rank'}: {size_words(count)} skipped"))
        if unseen:
            text = f"the output of {unseen} ranks cannot be read"
            gaps.append(Gap("logs", text, "sudo mltop"))
        return lines, gaps

    def follows(self, files: int) -> bool:
        """Whether so many are open by now."""
        return len(self._files) >= files

    def close(self) -> None:
        self._closed.set()
        self._wake.set()

    # In the thread.

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._closed.is_set():
                for followed in self._files.values():
                    os.close(followed.descriptor)
                return
            with self._lock:
                ranks = list(self._ranks)
            self._look(ranks)
            with self._looked:
                self._looks += 1
                self._looked.notify_all()

    def _look(self, ranks: list[RankSample]) -> None:
        unseen, self._left = 0, LOOK_BYTES
        owners: dict[FileId, dict[int, RankSample]] = {}
        paths: dict[FileId, str] = {}
        piped: dict[int, RankSample] = {}
        for rank in ranks:
            seen = [self._file_of(rank.pid, number) for number in (1, 2)]
            unseen += seen == [None, None]
            for found in seen:
                if found is not None and found[0] is not None:
                    owners.setdefault(found[0], {})[rank.pid] = rank
                    paths[found[0]] = found[1]
                elif found is not None:
                    piped[rank.pid] = rank
        read_for = self._readers.files_of(piped.values())
        for file, destination in read_for.items():
            owners.setdefault(file, {}).update(destination.writers)
            paths.setdefault(file, destination.path)
        self._add_credit({rank.uid for rank in ranks})
        # Whoever has not been read for the longest is first: one file of a user may take all of the credit.
        turns = sorted(list(owners)[:MOST_FILES], key=lambda file: getattr(self._files.get(file), "read_at", 0.0))
        for known in turns:
            if known not in self._broken:
                writers = owners[known]
                follow = partial(self._follow, known, paths[known], writers, read_for.get(known))
                self._guarded(known, next(iter(writers.values())).uid, follow)
        for gone in self._files.keys() - owners.keys():
            followed = self._files[gone]
            now = time.monotonic()
            followed.left_at = now if followed.left_at is None else followed.left_at
            if followed.is_behind_pipe and now - followed.left_at < self._lingers_s:
                self._guarded(gone, followed.uid, partial(self._read_on, followed))
                continue
            self._guarded(gone, followed.uid, partial(self._finish, followed))
            if self._files.pop(gone, None) is not None:
                os.close(followed.descriptor)
        with self._lock:
            self._unseen, self._looking = unseen, None

    def _add_credit(self, users: set[int | None]) -> None:
        now = time.monotonic()
        earned_s = SHARE * (now - self._looked_at) / max(1, len(users))
        self._looked_at = now
        saved_s = {uid: self._credit_s.get(uid, MOST_CREDIT_S) for uid in users | self._credit_s.keys()}
        self._credit_s = {
            uid: min(MOST_CREDIT_S, credit_s + earned_s)
            for uid, credit_s in saved_s.items()
            if uid in users or credit_s < MOST_CREDIT_S
        }

    def _guarded(self, known: FileId, uid: int | None, read: Callable[[], None]) -> None:
        """A file that our own reading fails on is left alone, with a gap. The time is charged to the user."""
        began_s = time.thread_time()
        self._until_s = began_s + self._credit_s.get(uid, 0.0)
        try:
            read()
        except Exception as error:  # noqa: BLE001 - the gap tells every caller, and the other files are read on
            followed = self._files.pop(known, None)
            if followed is not None:
                os.close(followed.descriptor)
            with self._lock:
                self._broken[known] = f"{type(error).__name__}: {shown_text(str(error))}"
        finally:
            self._credit_s[uid] = self._credit_s.get(uid, 0.0) - (time.thread_time() - began_s)

    def _finish(self, followed: _Followed) -> None:
        """The last words of processes that are gone, with a line that has no end."""
        self._read(followed)
        if not followed.is_up_to_date:
            self._skip_to(followed, os.fstat(followed.descriptor).st_size - PIECE_BYTES)
            self._until_s = time.thread_time() + MOST_CREDIT_S
            self._left = max(self._left, PIECE_BYTES)
            self._read(followed)
        if followed.rest:
            followed.scanner.feed(followed.rest)
        followed.parser.finish()
        self._take(followed)

    def _file_of(self, pid: int, number: int) -> tuple[FileId | None, str] | None:
        """The regular file that a descriptor is, with the path to open it; None where that cannot be seen. A process
        that is gone has none.
        """
        path = f"{proc()}/{pid}/fd/{number}"
        self._waits_for(path)
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None, path
        except OSError:
            return None
        return ((found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None), path

    def _waits_for(self, path: str) -> None:
        with self._lock:
            self._looking = time.monotonic(), path

    def _follow(self, known: FileId, path: str, writers: dict[int, RankSample], read_for: Destination | None) -> None:
        followed = self._files.get(known)
        if followed is None:
            followed = self._opened(known, path)
            if followed is None:
                return  # of a file that can be seen and not be read
            self._files[known] = followed
        followed.is_behind_pipe, followed.left_at = read_for is not None, None
        followed.is_whole_job = read_for is not None and read_for.is_whole_job
        followed.uid = next(iter(writers.values())).uid
        followed.owners = {**followed.owners, **writers}  # also those that have ended since the last look
        self._read_on(followed)
        followed.owners = writers

    def _read_on(self, followed: _Followed) -> None:
        if not self._read(followed) and followed.parser.wants_more:  # a block that nothing follows is complete
            followed.parser.finish()
        self._take(followed)

    def _opened(self, known: FileId, path: str) -> _Followed | None:
        try:
            name = os.readlink(path)
            self._waits_for(name)
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        now = os.fstat(descriptor)
        if (now.st_dev, now.st_ino) != known or not stat.S_ISREG(now.st_mode):  # another one since it was looked at
            os.close(descriptor)
            return None
        parser = LogParser(LogFile(without_tokens(clean(name, 1024))), Clock(now.st_mtime))
        offset = max(0, now.st_size - BEFORE_BYTES)
        return _Followed(descriptor, offset, parser, Scanner(parser), offset == 0)

    def _read(self, followed: _Followed) -> bool:
        """Whether there was anything new. A file that has become shorter was emptied: it is read from its beginning."""
        self._waits_for(followed.parser.file.path)
        before = followed.offset
        try:
            now = os.fstat(followed.descriptor)
            if now.st_size < followed.offset:
                before = followed.offset = 0
                followed.rest, followed.whole = b"", False
            most = BURST_BYTES if followed.is_up_to_date else BEFORE_BYTES
            if now.st_size - followed.offset > most:
                self._skip_to(followed, now.st_size - BEFORE_BYTES)
            followed.parser.clock = Clock(now.st_mtime)
            while (new := min(now.st_size - followed.offset, self._left, PIECE_BYTES)) > 0:
                if time.thread_time() >= self._until_s or self._closed.is_set():
                    break
                content = os.pread(followed.descriptor, new, followed.offset)
                if not content:
                    break
                followed.offset += len(content)
                self._left -= len(content)
                content = followed.rest + content
                cut = content.rfind(b"\n") + 1
                if cut == 0 and len(content) > _LONGEST_REST:
                    cut = len(content)
                followed.rest = content[cut:]
                if cut:
                    followed.scanner.feed(content[:cut])
            followed.is_up_to_date = followed.offset >= now.st_size
            if followed.is_up_to_date or followed.offset > before:
                followed.read_at = time.monotonic()
        except OSError:
            return False
        return followed.offset > before

    def _skip_to(self, followed: _Followed, offset: int) -> None:
        if offset <= followed.offset:
            return
        with self._lock:
            before, _ = self._skipped.get(followed.uid, (0, 0.0))
            self._skipped[followed.uid] = before + offset - followed.offset, time.monotonic()
        followed.offset, followed.rest, followed.whole = offset, b"", False

    def _take(self, followed: _Followed) -> None:
        fresh, followed.fresh = followed.fresh, False
        lines = [line for event in followed.parser.drain() if (line := _line(event, followed, fresh)) is not None]
        with self._lock:
            self._lines.extend(lines)


def _line(event: LogEvent, followed: _Followed, fresh: bool) -> LogLine | None:
    """None of what does not matter, and of what was there before the process that writes to the file now."""
    kind = _KINDS.get(event.kind)
    if kind is None:
        return None
    owners = followed.owners
    owner = _writer(event, owners, is_whole_job=followed.is_whole_job)
    at = written_at = followed.parser.clock.written_at
    if event.at is not None and event.at <= written_at + AHEAD_S:
        if fresh and event.at < written_at - RECENT_S:
            return None
        at = event.at if event.at >= written_at - RECENT_S else at  # else of another time zone, as in a container
    some = owner or next(iter(owners.values()), None)
    began = [rank.started_at for rank in owners.values() if rank.started_at is not None]
    if fresh and began and at < min(began):
        return None
    return LogLine(
        kind,
        event.text,
        followed.parser.file.path,
        at,
        event.line if followed.whole else 0,
        some.job if some is not None else "",
        some.uid if some is not None else None,
        owner.pid if owner is not None else None,
        owner.rank if owner is not None else _rank_of(event, owners),
        event.ran_s,
        list(event.named),
    )


def _writer(event: LogEvent, owners: dict[int, RankSample], *, is_whole_job: bool) -> RankSample | None:
    """The rank that wrote a line: the only one that writes to the file, or the one whose number or pid the line has.

    In a file of all nodes pids and local numbers may be of another one.
    """
    is_one_node = not is_whole_job or all(rank.world_size == len(owners) for rank in owners.values())
    if event.pid is not None and event.pid in owners and is_one_node:
        return owners[event.pid]
    number = _rank_of(event, owners)
    if number is not None:
        return next((rank for rank in owners.values() if rank.rank == number), None)
    local = event.speaker.local_rank
    if local is not None:
        alike = [rank for rank in owners.values() if rank.local_rank == local]
        return alike[0] if len(alike) == 1 and is_one_node else None
    return next(iter(owners.values())) if len(owners) == 1 and is_one_node else None


def _rank_of(event: LogEvent, owners: dict[int, RankSample]) -> int | None:
    """By its prefix. Slurm's number of a task is a rank's only where srun has started each of them."""
    if event.rank is not None:
        return event.rank
    is_srun = bool(owners) and all(rank.launcher == "srun" for rank in owners.values())
    return event.speaker.task if is_srun else None
