"""Where this node's kernel log can be read, and its lines as it grows. No read waits or takes longer than it may."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from mltop.probes.collect.kernel_log.records import seq_of
from mltop.probes.collect.ranks.procfs import boot_time
from mltop.probes.model import Gap
from mltop.probes.system import as_root, paths
from mltop.probes.system.spawn import end_child, start_child

KINDS = ("kmsg", "journal", "kern_log")  # the best first
KMSG_DEVICE = os.makedev(1, 11)  # Documentation/admin-guide/devices.txt
RECORD_BYTES = 16 * 1024  # a record of /dev/kmsg has at most 8 KB
CHUNK_BYTES = 64 * 1024
MAX_LINE_BYTES = 64 * 1024  # longer ones are no kernel lines
BATCH_LINES = 256
MAX_READ_BYTES = 2 * 1024 * 1024  # of one read: a usual ring
TAIL_BYTES = 2 * 1024 * 1024
ANSWER_S = 20.0  # of an old journal on a slow disk
MOST_LINES = 20_000
_KILL_WAIT_S = 0.2
_JOIN_ADM = "sudo usermod -aG adm $USER   # and log in again"
_ON_HOST = "run mltop on the host, or start the container with --device /dev/kmsg --cap-add SYSLOG"


@dataclass(frozen=True)
class LogFiles:
    """``journalctl``: the program, "" for none. ``boot_at``: unix s of the boot, None: ask this machine."""

    kmsg: str
    journalctl: str
    kern_log: str
    boot_at: float | None = None

    @classmethod
    def usual(cls) -> LogFiles:
        """A copied tree has a log of its own: this machine's journal says nothing about it."""
        if not paths.SYSROOT:
            import shutil

            # Looked for when it is started; none where we are root and others could change it.
            is_fit = shutil.which("journalctl") is None or as_root.find_program("journalctl")
            return cls("/dev/kmsg", "journalctl" if is_fit else "", "/var/log/kern.log")
        kern_log = paths.SYSROOT + "/var/log/kern.log"
        return cls(paths.SYSROOT + "/dev/kmsg", "", kern_log, boot_time(paths.proc()))

    def boot_time(self, now: float) -> float:
        """Unix s at which the kernel's own clock was 0: it counts as CLOCK_MONOTONIC does, without time in suspend."""
        return now - time.monotonic() if self.boot_at is None else self.boot_at

    def unreadable(self, tried: list[str]) -> Gap:
        """The gap where nothing can be read; ``tried``: "/dev/kmsg: operation not permitted" …, in order."""
        why = f"kernel log unreadable ({'; '.join(tried)}): Xid history before start unknown"
        return Gap.about("kernel_log", why=why, fix=_JOIN_ADM if _is_log(self.kmsg) else _ON_HOST)


def _is_log(path: str) -> bool:
    """Whether the kernel's log exists here, readable or not."""
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return not stat.S_ISCHR(status.st_mode) or status.st_rdev == KMSG_DEVICE


def open_log(path: str) -> tuple[int | None, str]:
    """A file descriptor that never blocks, or None and why not.

    Containers often have something else under this name (a terminal, /dev/null), which must not be opened.
    """
    try:
        status = os.stat(path)
        mode = status.st_mode
        if stat.S_ISCHR(mode) and status.st_rdev != KMSG_DEVICE:
            return None, "is not the kernel's log (a container?)"
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            return None, "is no file"
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), ""
    except OSError as error:
        return None, (error.strerror or str(error)).lower()


def open_reader(files: LogFiles, kind: str, since: float | None = None) -> tuple[Reader | None, str]:
    """A reader of one of ``KINDS``, or None and why not ("" where there is no such log); ``since``: as in Journal."""
    if kind == "journal":
        try:
            return (Journal(files.journalctl, since) if files.journalctl else None), ""
        except OSError as error:
            return None, f"{files.journalctl}: {(error.strerror or str(error)).lower()}"
    path = files.kmsg if kind == "kmsg" else files.kern_log
    fd, why = open_log(path)
    if fd is None:
        return None, f"{path}: {why}"
    if kind == "kern_log":
        return GrowingFile(fd, TAIL_BYTES, path), ""
    # What stands in for the kernel's own device may be a file.
    return (KmsgDevice if stat.S_ISCHR(os.fstat(fd).st_mode) else GrowingFile)(fd), ""


class Reader:
    """A log that is read as it grows. ``is_current``: everything that there is has been read. ``lost``: lines that
    nobody can read any more.

    ``first_seq``: the kernel's number of the first line that was there, ``first_line``.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._next_seq: int | None = None
        self.first_seq: int | None = None
        self.first_line = b""
        self.lost = 0
        self.is_current = False

    def batches(self, until: float) -> Iterator[list[bytes]]:
        """New lines, until there are no more, or ``until`` (monotonic s), or 2 MB. A line may have lines of its own
        behind it (" SUBSYSTEM=pci"). Batches, because looking for words in many lines at once costs a tenth.
        """
        self.is_current = False
        size = 0
        while size < MAX_READ_BYTES and not self.is_current:
            batch, read_bytes = self._next()
            size += read_bytes
            if batch:
                yield self._count(batch)
            if time.monotonic() > until:
                return

    def _next(self) -> tuple[list[bytes], int]:
        """The next lines, and how many bytes were read."""
        raise NotImplementedError

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _count(self, batch: list[bytes]) -> list[bytes]:
        """Gaps in the kernel's numbers are lines that were overwritten before they were read."""
        first, last = seq_of(batch[0]), seq_of(batch[-1])
        if first is None or last is None:
            return batch
        if self._next_seq is None:
            self.first_seq, self.first_line = first, batch[0]
        else:
            self.lost += max(0, first - self._next_seq)
        self.lost += max(0, last - first + 1 - len(batch))
        self._next_seq = last + 1
        return batch


class KmsgDevice(Reader):
    """/dev/kmsg: every read(2) gives one record, from the oldest that is still there."""

    def _next(self) -> tuple[list[bytes], int]:
        batch: list[bytes] = []
        fd, read = self._fd, os.read
        while len(batch) < BATCH_LINES:
            try:
                batch.append(read(fd, RECORD_BYTES))
            except BlockingIOError:
                self.is_current = True
                break
            except BrokenPipeError:  # overwritten meanwhile; the next read goes on with the oldest there is
                break
        return batch, sum(map(len, batch))


class GrowingFile(Reader):
    """A regular file, a FIFO or a pipe with lines, from its last ``from_end_bytes`` on. ``path``: where to look for it
    again after a rotation. ``has_ended``: a pipe that nobody writes to any more.
    """

    def __init__(self, fd: int, from_end_bytes: int = 0, path: str = "") -> None:
        super().__init__(fd)
        self.path = path
        self._rest = b""
        self._rest_at_end = b""
        self._skipping = False  # inside of a line that is too long, or that was cut
        self.has_ended = False
        if from_end_bytes and os.fstat(fd).st_size > from_end_bytes:
            os.lseek(fd, -from_end_bytes, os.SEEK_END)
            self._skipping = True

    def batches(self, until: float) -> Iterator[list[bytes]]:
        yield from super().batches(until)
        if self.path and self.is_current and self._was_replaced():
            fd, _ = open_log(self.path)
            if fd is not None:
                self.close()
                self._fd, self._rest, self._rest_at_end, self._skipping = fd, b"", b"", False

    def _next(self) -> tuple[list[bytes], int]:
        try:
            chunk = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            self.is_current = True
            return [], 0
        if not chunk:
            self.is_current = self.has_ended = True
        return (self._split(chunk) if chunk else self._last()), len(chunk)

    def _was_replaced(self) -> bool:
        """Another file has its name now, or it was emptied (logrotate's copytruncate)."""
        ours = os.fstat(self._fd)
        try:
            named = os.stat(self.path)
        except OSError:
            return False  # between the two steps of a rotation
        is_other = (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino)
        return is_other or named.st_size < os.lseek(self._fd, 0, os.SEEK_CUR)

    def _split(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if lines and self._skipping:
            del lines[0]
            self._skipping = False
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._skipping = b"", True
        # " KEY=value" belongs to the record before; `dmesg` indents the further lines of a record, too.
        return [line for line in lines if line and (line[:1] != b" " or b"NVRM" in line)]

    def _last(self) -> list[bytes]:
        """A file's last line may have no line break; one that is still being written has grown at the next look."""
        rest = self._rest
        if rest and rest == self._rest_at_end and not self._skipping:
            self._rest = self._rest_at_end = b""
            return [rest]
        self._rest_at_end = rest
        return []


def command(program: str, *more: str) -> list[str]:
    fields = "--output-fields=MESSAGE,PRIORITY"
    return [program, "--dmesg", "--boot", "--output=json", fields, "--no-pager", *more]


class Journal(Reader):
    """The journal's kernel lines, by `journalctl` as a child process that ends with us.

    ``refused``: why it says nothing more, "" while it may. ``is_permitted``: we may see the kernel's lines in it.

    Whoever may not see the system's journal gets no line of it, and with --follow that looks like silence. So the
    newest line is asked for first: every boot has kernel lines.
    """

    def __init__(self, program: str, since: float | None = None) -> None:
        """``since``: unix s, for what was read before up to there. Raises OSError where there is no such program."""
        super().__init__(-1)
        self._program = program
        self._since = () if since is None else (f"--since=@{since:.0f}",)
        self.is_permitted = False
        self._errors = b""
        self._began_s = time.monotonic()
        self._has_lines = False
        self.refused = ""
        self._start("--lines=1")

    def batches(self, until: float) -> Iterator[list[bytes]]:
        self.is_current = False
        if not self.is_permitted and not self._look_for_a_line(until):
            return
        for batch in self._out.batches(until):
            lines = [line for line in batch if line[:1] == b"{"]  # not "-- No entries --"
            if lines:
                self._has_lines = True
                yield lines
        self.is_current = self._out.is_current and (self._has_lines or bool(self._since))
        if self._has_ended():
            self._refuse("journalctl ended")

    def close(self) -> None:
        end_child(self._process, kill_s=_KILL_WAIT_S)

    def _start(self, *more: str) -> None:
        environment = {**os.environ, "LC_ALL": "C"}
        self._process = start_child(command(self._program, *more), stderr=subprocess.PIPE, env=environment)
        assert self._process.stdout and self._process.stderr
        for pipe in (self._process.stdout, self._process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._out = GrowingFile(self._process.stdout.fileno())

    def _look_for_a_line(self, until: float) -> bool:
        """Whether the newest line has come; then the next child follows the journal."""
        has_come = any(line[:1] == b"{" for batch in self._out.batches(until) for line in batch)
        if has_come:
            self.close()
            self.is_permitted = True
            self._start(f"--lines={MOST_LINES}", "--follow", *self._since)
        elif self._has_ended():
            self._refuse("no permission, or no journal")
        elif time.monotonic() - self._began_s > ANSWER_S:
            self._refuse(f"no kernel line within {ANSWER_S:g} s")
        return has_come

    def _has_ended(self) -> bool:
        assert self._process.stderr
        with contextlib.suppress(BlockingIOError):
            self._errors = (self._errors + os.read(self._process.stderr.fileno(), 4096))[-4096:]
        return self._out.has_ended and self._process.poll() is not None

    def _refuse(self, why: str) -> None:
        words = "" if self._errors.startswith(b"Hint:") else self._errors.decode("utf-8", "replace").strip()
        self.refused = why + (f": {words.splitlines()[-1][:100]}" if words else "")
