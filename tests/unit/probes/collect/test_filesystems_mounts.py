"""Which mounts are watched, and NFS's counters: pure functions on texts as the kernel prints them."""

from __future__ import annotations

import pytest

from mltop.probes.collect.filesystems import source as mounts

TABLE = r"""
sysfs /sys sysfs rw,nosuid 0 0
proc /proc proc rw,relatime 0 0
cgroup2 /sys/fs/cgroup cgroup2 rw 0 0
udev /dev devtmpfs rw 0 0
tmpfs /run tmpfs rw,size=1g 0 0
tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0
tmpfs /run/user/1000 tmpfs rw 0 0
/dev/nvme0n1p2 / ext4 rw,relatime,errors=remount-ro 0 0
/dev/nvme0n1p1 /boot/efi vfat rw 0 0
/dev/loop3 /snap/core/1 squashfs ro 0 0
/dev/nvme1n1 /local xfs ro,noatime 0 0
/dev/nvme0n1p2 /etc/hosts ext4 rw 0 0
/dev/nvme0n1p2 /srv/bind ext4 ro 0 0
overlay /var/lib/docker/overlay2/x/merged overlay rw 0 0
10.0.4.11:/vol/home /home nfs4 rw,vers=4.1,hard 0 0
10.0.4.11:/vol/home /mnt/again nfs4 ro,vers=4.1 0 0
mgs@o2ib:/scratch /scratch\040big lustre rw,flock 0 0
fs1 /gpfs/fs1 gpfs rw 0 0
juice /jfs fuse.juicefs rw 0 0
gvfsd-fuse /run/user/1000/gvfs fuse.gvfsd-fuse rw 0 0
tank/data /tank zfs rw 0 0
systemd-1 /proc/sys/fs/binfmt_misc autofs rw 0 0
auto.home /net autofs rw 0 0
none
"""


def test_real_and_network_filesystems_are_watched_once() -> None:
    kept, left_out = mounts.watched_mounts(mounts.parse_mounts(TABLE))
    assert left_out == 0
    assert [(m.path, m.kind, m.read_only, m.is_network) for m in kept] == [
        ("/", "ext4", False, False),
        ("/dev/shm", "tmpfs", False, False),
        ("/gpfs/fs1", "gpfs", False, True),
        ("/home", "nfs4", False, True),
        ("/jfs", "fuse.juicefs", False, True),
        ("/local", "xfs", True, False),
        ("/scratch big", "lustre", False, True),
        ("/tank", "zfs", False, False),
    ]


def test_a_later_mount_on_the_same_path_covers_the_earlier_one() -> None:
    table = "/dev/sda /data ext4 rw 0 0\nserver:/x /data nfs rw 0 0\n"
    assert [(m.path, m.device) for m in mounts.watched_mounts(mounts.parse_mounts(table))[0]] == [
        ("/data", "server:/x")
    ]


def test_of_one_filesystem_the_writable_and_then_the_shortest_path_is_kept() -> None:
    table = "/dev/sda /a ext4 ro 0 0\n/dev/sda /data/long ext4 rw 0 0\n/dev/sda /data2 ext4 rw 0 0\n"
    assert [m.path for m in mounts.watched_mounts(mounts.parse_mounts(table))[0]] == ["/data2"]


def test_fuse_mounts_of_one_source_name_are_several_filesystems() -> None:
    table = "s3fs /data fuse.s3fs rw 0 0\ns3fs /models fuse.s3fs rw 0 0\n"
    found, _ = mounts.watched_mounts(mounts.parse_mounts(table))
    assert [mount.path for mount in found] == ["/data", "/models"]


def test_the_root_of_a_container_or_a_diskless_node_is_watched() -> None:
    assert [m.path for m in mounts.watched_mounts(mounts.parse_mounts("overlay / overlay rw 0 0\n"))[0]] == ["/"]
    assert [
        m.path for m in mounts.watched_mounts(mounts.parse_mounts("root / tmpfs rw 0 0\nt /tmp tmpfs rw 0 0\n"))[0]
    ] == [
        "/",
        "/tmp",
    ]


def test_of_too_many_the_shared_ones_stay() -> None:
    local = [f"/dev/sd{n} /disk/{n:02} ext4 rw 0 0" for n in range(60)]
    shared = [f"server:/v{n} /net/{n} nfs rw 0 0" for n in range(3)]
    kept, left_out = mounts.watched_mounts(mounts.parse_mounts("\n".join(local + shared)))
    assert (len(kept), left_out) == (mounts.MAX_MOUNTS, 23)
    assert sum(m.is_network for m in kept) == 3


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs", True), ("nfs4", True), ("ceph", True), ("wekafs", True), ("beegfs", True), ("virtiofs", True),
     ("fuse", True), ("fuse.sshfs", True),
     ("fuseblk", False), ("fuse.lxcfs", False), ("ext4", False), ("tmpfs", False)],
)  # fmt: skip
def test_network_kinds(kind: str, network: bool) -> None:
    assert mounts.is_network(kind) is network


STATS = """device rootfs mounted on / with fstype rootfs
device server:/a mounted on /a with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1
\tage:\t100
\tbytes:\t1 2 3 4 5 6 7 8
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 790 1 2 0 11 5000 4999 0 12345 77 2 10 20
\txprt:\ttcp 791 1 2 0 11 5000 4999 0 12345 3 2 10 20
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 100 110 4 1 2 3 4 5 0
\t       WRITE: 50 50 0 1 2 3 4 5

device server:/b mounted on /b with fstype nfs statvers=1.1
\txprt:\tudp 790 1 20 20 0 9 33 2 10 20
\tper-op statistics
\t        READ: 7 9 1 1 2 3 4 5 0
device /dev/sda mounted on /c with fstype ext4
"""


def test_nfs_counters_by_mount() -> None:
    assert mounts.parse_counters(STATS) == {
        "/a": {"operations": 151, "retrans": 10, "timeouts": 4, "backlog": 80},
        "/b": {"operations": 7, "retrans": 2, "timeouts": 1, "backlog": 33},
    }


@pytest.mark.parametrize("text", ["", "device", "device x mounted on /a with fstype nfs\n\txprt:\tnew 1\n"])
def test_short_mountstats_are_no_error(text: str) -> None:
    assert all(not any(counters.values()) for counters in mounts.parse_counters(text).values())
