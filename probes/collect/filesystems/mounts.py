"""Which mounts are worth watching, and NFS's own counters of each. Pure: from text to lists.

Source: /proc/self/mounts (proc_pid_mounts(5)); /proc/self/mountstats (net/sunrpc/stats.c, net/sunrpc/xprtsock.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def parse(text: str) -> list[Mount]:
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


def chosen(mounts: list[Mount]) -> tuple[list[Mount], int]:
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
