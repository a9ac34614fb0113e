"""All filesystems of this machine, asked in a child process that may hang instead of us: which mounts are worth
watching, how full they are, and NFS's own counters of each.

Source: /proc/self/mounts (proc_pid_mounts(5)); /proc/self/mountstats (net/sunrpc/stats.c, net/sunrpc/xprtsock.c).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from mltop.probes.collect.polled_child import PolledChild
from mltop.probes.collect.redaction.values import shown_text, without_tokens
from mltop.probes.collect.sysfile import read_long
from mltop.probes.collect.timing import Backoff, Pace
from mltop.probes.model import FilesystemSample, Gap, GapKind

MAX_MOUNTS = 40

# Another machine, or another process, has to answer.
# fmt: off
_NETWORK = frozenset((
    "nfs", "nfs4", "vastnfs", "lustre", "gpfs", "mmfs", "ceph", "wekafs", "beegfs", "cifs", "smb3", "smbfs", "9p",
    "virtiofs", "afs", "glusterfs", "orangefs", "pvfs2", "panfs", "quobyte", "cvmfs", "daos", "ncpfs",
))
_DISKS = frozenset((
    "ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "zfs", "f2fs", "jfs", "reiserfs", "vfat", "exfat", "ntfs",
    "ntfs3", "fuseblk",
))
# fmt: on
_DESKTOP = frozenset(("fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse", "fuse.rofiles-fuse"))
_TMPFS_MOUNTS = frozenset(("/", "/dev/shm", "/tmp"))
# Single files and other containers' trees.
_OTHERS = (
    "/proc/", "/sys/", "/run/", "/etc/", "/snap/", "/boot/efi", "/var/lib/docker/", "/var/lib/containers/",
    "/var/lib/containerd/", "/var/lib/kubelet/",
)  # fmt: skip
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of the table."""

    path: str
    device: str
    kind: str
    read_only: bool
    is_network: bool


def parse_mounts(text: str) -> list[Mount]:
    """All mounts in the table's order."""
    listed = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) >= 4:
            # Blanks, tabs, newlines and backslashes are octal in the table.
            device, path, kind, options = (
                _ESCAPE.sub(lambda escape: chr(int(escape[1], 8)), field) for field in fields[:4]
            )
            listed.append(Mount(path, device, kind, "ro" in options.split(","), is_network(kind)))
    return listed


def watched_mounts(mounts: list[Mount]) -> tuple[list[Mount], int]:
    """Real and network filesystems, each once, ordered by path, and how many were too many.

    Of several mounts of one filesystem: a writable one before a read-only one (a bind mount), then the shortest path.
    """
    visible = {mount.path: mount for mount in mounts}  # a later mount on the same path covers the earlier one
    best: dict[tuple[str, str], Mount] = {}
    for mount in visible.values():
        if not _is_real(mount):
            continue
        nameless = mount.kind in ("tmpfs", "overlay") or mount.kind.startswith("fuse")  # many have one source name
        key = (mount.path if nameless else mount.device, mount.kind)
        if key not in best or _order(mount) < _order(best[key]):
            best[key] = mount
    # What fills up or hangs first: shared filesystems, then the system's own.
    ordered = sorted(best.values(), key=lambda mount: (not mount.is_network, len(mount.path.split("/")), mount.path))
    watched = sorted(ordered[:MAX_MOUNTS], key=lambda mount: mount.path)
    return watched, len(ordered) - len(watched)


def is_network(kind: str) -> bool:
    """FUSE counts: its server is a process that may hang."""
    return kind in _NETWORK or kind == "fuse" or (kind.startswith("fuse.") and kind not in _DESKTOP)


def _is_real(mount: Mount) -> bool:
    if mount.path.startswith(_OTHERS) or mount.kind in _DESKTOP:
        return False
    if mount.kind == "tmpfs":
        return mount.path in _TMPFS_MOUNTS
    if mount.kind == "overlay":
        return mount.path == "/"
    return mount.is_network or mount.kind in _DISKS


def _order(mount: Mount) -> tuple[bool, int, str]:
    return mount.read_only, len(mount.path), mount.path


# Where in an "xprt:" line the time that requests waited for a free slot is summed up.
_BACKLOG_AT = {"tcp": 9, "rdma": 9, "udp": 6}


def parse_counters(text: str) -> dict[str, dict[str, int]]:
    """NFS's counters by mount: ``operations``, ``retrans`` (sent again), ``timeouts`` (given up for now), ``backlog``.

    All grow from the mount on. ``backlog`` sums up, for each request sent, how many were waiting for a slot then.
    """
    by_mount: dict[str, dict[str, int]] = {}
    counters: dict[str, int] = {}
    in_operations = False
    for line in text.splitlines():
        words = line.split()
        if line.startswith("device "):
            counters, in_operations = {}, False
            if "fstype" in words and words[words.index("fstype") + 1 :][:1] in (["nfs"], ["nfs4"]):
                counters = {"operations": 0, "retrans": 0, "timeouts": 0, "backlog": 0}
                by_mount[words[words.index("on") + 1]] = counters
        elif not counters or not words:
            continue
        elif words[0] == "xprt:" and len(words) > 2:
            at = _BACKLOG_AT.get(words[1], len(words)) + 2
            counters["backlog"] += int(words[at]) if at < len(words) else 0
        elif line.strip() == "per-op statistics":
            in_operations = True
        elif in_operations and words[0].endswith(":") and len(words) >= 4:
            operations, sent, timeouts = (int(word) for word in words[1:4])
            counters["operations"] += operations
            counters["retrans"] += max(0, sent - operations)
            counters["timeouts"] += timeouts
    return by_mount


LOCAL_EVERY_S = 10.0
NETWORK_EVERY_S = 30.0
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 60.0
STATS_BYTES = 64 << 20  # ten KiB of each of thousands of mounts
TABLE_EVERY_S = 10.0
TABLE_AGAIN_S = 4.0  # from the first reading to the second
DEADLINE_S = 2.0
QUIET_DEADLINES = 3  # a child that says nothing at all is given so many times that
START_DEADLINE_S = 15.0  # Python itself may lie on a slow file server
HELD_S = 1.0  # a child that outlives SIGKILL for so long was held by the kernel
MAX_HUNG = 8  # children in state D that even SIGKILL does not end
LONGEST_RESTART_S = 60.0
_CLOSE_WAIT_S = 0.1


class WatchedMount:
    """What is known of one mount between reads. ``due_at``: in the caller's clock. ``stalled_since_s``, ``retries``:
    CLOCK_MONOTONIC.
    """

    def __init__(self, mount: Mount, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self.mount = mount
        self.due_at = float("-inf")
        self.sizes: tuple[int, ...] | None = None  # bytes, bytes available, inodes, inodes free
        self.error = ""
        self.stalled_since_s: float | None = None
        self.retries = Backoff(first_pause_s, LONGEST_PAUSE_S)
        self.counters: dict[str, int] = {}

    def is_due(self, now: float, at_s: float) -> bool:
        """A stalled one is tried again after pauses of 10, 20, 40 and then 60 s."""
        return now >= self.due_at if self.stalled_since_s is None else at_s >= self.retries.next_s

    def answered(self, answer: list[Any], now: float) -> None:
        """Takes an answer, as of ``Worker.answers``: it is not stalled (any more), though it may refuse."""
        self.stalled_since_s = None
        self.retries.worked()
        self.due_at = now + (NETWORK_EVERY_S if self.mount.is_network else LOCAL_EVERY_S)
        if answer[0] == "full":
            self.sizes, self.error = tuple(answer[2:6]), ""
        else:
            self.sizes, self.error = None, os.strerror(answer[2])

    def stalled(self, since_s: float, at_s: float) -> None:
        if self.stalled_since_s is None:
            self.stalled_since_s = since_s
        self.retries.failed(at_s)

    def sample(self, at_s: float) -> FilesystemSample:
        mount = self.mount
        # A FUSE's or a web server's "device" is what its user wrote, passwords and all.
        path, device = without_tokens(mount.path), shown_text(mount.device)
        sample = FilesystemSample(path, device, mount.kind, mount.is_network, mount.read_only)
        if self.sizes is not None:
            sample.total_bytes, sample.available_bytes, inodes, free = self.sizes
            # Filesystems that make inodes as they are needed (btrfs, vfat, some servers) tell 0 of them.
            sample.inodes_total, sample.inodes_free = (inodes, free) if inodes else (None, None)
        if self.stalled_since_s is not None:
            sample.stalled_s = round(at_s - self.stalled_since_s, 3)
        sample.counters = dict(self.counters)
        return sample


class Worker(PolledChild):
    """A running child that asks filesystems. ``inside``: the path that it asks about and since when; None between
    requests and before it has begun.
    """

    def __init__(self) -> None:
        # Not in our own folder: it must not keep anything from being unmounted.
        super().__init__("mltop.probes.collect.filesystems.child", stderr=subprocess.DEVNULL, cwd="/")
        self._received = b""
        self._paths: list[str] = []
        self.inside: tuple[str, float] | None = None
        self.has_answered = False

    def ask(self, paths: list[str]) -> None:
        self._paths = paths
        self.send(b"".join(os.fsencode(path) + b"\0" for path in paths) + b"\0")

    def answers(self) -> list[list[Any]]:
        """What it has said since the last call, without the notes about where it is: ``["full", path, bytes, bytes
        available, inodes, inodes free]`` or ``["error", path, errno]``.
        """
        while piece := self.receive():
            self._received += piece
        *lines, self._received = self._received.split(b"\n")
        answers: list[list[Any]] = []
        for line in lines:
            kind, *words = line.decode("ascii").split()
            if kind == "done":
                self.asked_s = self.inside = None
                self.has_answered = True
                continue
            path = self._paths[int(words[0])]
            if kind == "in":
                self.inside = (path, float(words[1]))
            else:
                answers.append([kind, path, *map(int, words[1:])])
        return answers


class FilesystemSource:
    """Reads the table of mounts and keeps asking their filesystems. For one thread; no call waits for a filesystem.

    ``root`` is put before every path: a copied tree; "" is this machine. ``deadline_s``: for one filesystem's answer;
    ``first_pause_s``: before one that missed it is asked again, doubled each time up to a minute.
    """

    def __init__(self, root: str = "", deadline_s: float = DEADLINE_S, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._root = root
        self._deadline_s = deadline_s
        self._first_pause_s = first_pause_s
        self._mounts: dict[str, WatchedMount] = {}
        # The second time comes early: one reading of counters does not tell whether they grow.
        self._table_pace = Pace(TABLE_AGAIN_S, TABLE_EVERY_S)
        self._table = b""
        self._table_gaps: list[Gap] = []
        self._worker: Worker | None = None
        self._hung: dict[str, Worker] = {}  # by the mount that they were killed in
        self._restarts = Backoff(1.0, LONGEST_RESTART_S)
        self._trouble = ""
        self._newest: list[FilesystemSample] | None = None
        self._newest_gaps: list[Gap] = []
        self._idle_from = self._idle_until = float("-inf")

    def read(self, now: float) -> tuple[list[FilesystemSample], list[Gap]]:
        """Every mount worth watching, ordered by path, and what is not known of them.

        ``now`` is in seconds of any one clock. A mount that has not answered within its time has ``stalled_s``, which
        grows until it answers; its sizes are the last known ones.
        """
        if self._idle_from <= now < self._idle_until and self._newest is not None:
            return self._newest, self._newest_gaps
        at_s = time.monotonic()
        if self._table_pace.is_due(now):
            self._table_pace.done(now)
            self._read_table()
        self._take_answers(now)
        self._watch(at_s)
        self._ask(now, at_s)
        if self._newest is None or any(watched.stalled_since_s is not None for watched in self._mounts.values()):
            self._newest = [watched.sample(at_s) for watched in self._mounts.values()]
        self._newest_gaps = self._gaps()
        # Until when nothing is to be done or looked after.
        self._idle_from = self._idle_until = now
        waiting = self._hung or any(watched.stalled_since_s is not None for watched in self._mounts.values())
        if not waiting and self._worker is not None and self._worker.asked_s is None:
            due_at = (watched.due_at for watched in self._mounts.values())
            self._idle_until = min(self._table_pace.due_at, *due_at)
        return self._newest, self._newest_gaps

    @property
    def counters_read_at(self) -> float | None:
        """When NFS's counters were read, by the clock of ``read``; None: none are."""
        return self._table_pace.done_at if any(watched.counters for watched in self._mounts.values()) else None

    def close(self) -> None:
        """End the children; one that the kernel holds is left to it."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.close()
            worker.has_ended(_CLOSE_WAIT_S)

    def _read_table(self) -> None:
        try:
            table = read_long(f"{self._root}/proc/self/mounts")
        except OSError as error:
            self._table_gaps = [lacking(f"the table of mounts cannot be read: {error}")]
            return
        if table != self._table:
            self._table = table
            chosen, left_out = watched_mounts(parse_mounts(table.decode("utf-8", "surrogateescape")))
            self._keep(chosen)
            why = f"{left_out} more filesystems are mounted than the {MAX_MOUNTS} that are watched"
            self._table_gaps = [Gap.about("host", "filesystems.more", why=why)] if left_out else []
        if any(watched.mount.kind in ("nfs", "nfs4") for watched in self._mounts.values()):
            self._read_counters()

    def _keep(self, chosen: list[Mount]) -> None:
        """A mount that was remounted stays known; another filesystem in its place is new."""
        before, self._mounts, self._newest = self._mounts, {}, None
        for mount in chosen:
            watched = before.get(mount.path)
            if watched is None or (watched.mount.device, watched.mount.kind) != (mount.device, mount.kind):
                watched = WatchedMount(mount, self._first_pause_s)
            watched.mount = mount
            self._mounts[mount.path] = watched

    def _read_counters(self) -> None:
        try:
            text = read_long(f"{self._root}/proc/self/mountstats", STATS_BYTES).decode("utf-8", "surrogateescape")
            by_mount = parse_counters(text)
        except (OSError, ValueError, IndexError) as error:
            why = f"NFS's counters (mountstats) cannot be read: {error}"
            self._table_gaps.append(Gap.about("host", "filesystems.counters", why=why))
            return
        self._newest = None
        for path, watched in self._mounts.items():
            watched.counters = by_mount.get(path, {})

    def _take_answers(self, now: float) -> None:
        worker = self._worker
        if worker is None or worker.asked_s is None:
            return
        for answer in worker.answers():
            watched = self._mounts.get(answer[1][len(self._root) :])
            if watched is not None:
                watched.answered(answer, now)
                self._newest = None
        if worker.asked_s is None:
            self._restarts.worked()
            self._trouble = ""

    def _watch(self, at_s: float) -> None:
        """One step: notice a child that is gone, end one that a mount holds, collect those that were ended."""
        for path, hung in list(self._hung.items()):
            if hung.has_ended():
                del self._hung[path]
                if at_s - (hung.killed_s or at_s) >= HELD_S and path in self._mounts:
                    self._mounts[path].retries.next_s = at_s  # the kernel has let it go: the filesystem may be back
        worker = self._worker
        if worker is None or worker.asked_s is None:
            return
        if worker.has_ended():
            self._give_up(worker, at_s, "the process that asks filesystems has ended")
        elif worker.inside is not None:
            path, since_s = worker.inside
            if at_s - since_s >= self._deadline_s:
                mount = path[len(self._root) :]
                if mount in self._mounts:
                    self._mounts[mount].stalled(since_s, at_s)
                worker.kill()
                worker.close()
                self._hung[mount], self._worker = worker, None
        elif at_s - worker.asked_s >= (QUIET_DEADLINES * self._deadline_s if worker.has_answered else START_DEADLINE_S):
            self._give_up(worker, at_s, "the process that asks filesystems does not answer")

    def _give_up(self, worker: Worker, at_s: float, trouble: str) -> None:
        worker.kill()
        worker.close()
        self._worker = None
        self._failed(at_s, trouble)

    def _failed(self, at_s: float, trouble: str) -> None:
        """The child cannot be used: the next one comes later."""
        self._trouble = trouble
        self._restarts.failed(at_s)

    def _ask(self, now: float, at_s: float) -> None:
        if self._worker is not None and self._worker.asked_s is not None:
            return
        due = [
            watched for path, watched in self._mounts.items() if path not in self._hung and watched.is_due(now, at_s)
        ]
        if not due or len(self._hung) >= MAX_HUNG:
            return
        if self._worker is None and at_s < self._restarts.next_s:
            return
        try:
            self._worker = self._worker or Worker()
        except OSError as error:
            self._failed(at_s, f"the process that asks filesystems cannot be started: {error}")
            return
        due.sort(key=lambda watched: watched.stalled_since_s is not None)  # what hangs must not delay the others
        self._worker.ask([self._root + watched.mount.path for watched in due])

    def _gaps(self) -> list[Gap]:
        gaps = list(self._table_gaps)
        if self._trouble:
            gaps.append(lacking(self._trouble))
        if len(self._hung) >= MAX_HUNG:
            gaps.append(lacking(f"{len(self._hung)} filesystems hold the process that asks: none is asked any more"))
        refused = [f"{path}: {watched.error}" for path, watched in self._mounts.items() if watched.error]
        if refused:
            gaps.append(lacking(_named(refused)))
        silent = [
            path for path, watched in self._mounts.items() if watched.stalled_since_s is not None and not watched.sizes
        ]
        if silent:
            gaps.append(lacking(f"{_named(silent)}: no answer yet, sizes unknown"))
        unasked = sum(
            watched.sizes is None and not watched.error and watched.stalled_since_s is None
            for watched in self._mounts.values()
        )
        if unasked and not self._trouble:
            gaps.append(lacking(f"{unasked} filesystems have not been asked yet", "starting"))
        return gaps


def lacking(why: str, kind: GapKind = "unknown") -> Gap:
    return Gap.about("host", "filesystems", why=why, kind=kind)


def _named(items: list[str]) -> str:
    return "; ".join(map(without_tokens, items[:3])) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
