"""Who else may change a file: by itself, or by any folder or link on the way to it.

Whoever may write a program, a folder above it or a link that leads to it decides what it does, with the rights of
whoever starts it. OpenSSH (safe_path) and sudo look at files that they depend on in the same way. "Else" is everybody
but root and the user that we run as; the other members of a group count. What is found safe stays so until it is used:
nobody but root and we could change it in between. Not seen is what file modes do not say: NFSv4 ACLs, and what a file
server lets its other clients do.

Part of stage 1 of the bootstrap, too (``agent/bootstrap``): standard library only, in Python 3.6's syntax.
"""

import grp
import os
import pwd
import stat
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

EVERYBODY = "can be written by everybody"
MOST_LINKS = 40  # as the kernel: path_resolution(7)
# Groups that distributions allocate (Debian policy 9.2.2): nobody's login group unless passwd says so. The members of
# others a directory service need not list.
SYSTEM_GROUPS = 100

Result = TypeVar("Result")


class Writer:
    """``path``: what others may change; ``who``: the end of a sentence that begins with it."""

    def __init__(self, path: str, who: str) -> None:
        self.path, self.who = path, who

    def __str__(self) -> str:
        return f"{self.path} {self.who}"


def writer_of(path: str, shared: bool = False, ours: "frozenset[int]" = frozenset()) -> "Writer | None":
    """Who else may change what lies at this absolute path, None when nobody may. What is not there is judged by who
    could make it.

    ``shared``: the last folder may be one like /tmp, where everybody makes entries and changes only his own.
    ``ours``: devices of file systems that nobody else can write to, whatever the modes of their files.
    """
    left = [*reversed(path.split("/")), "/"]  # from the root on, which is looked at like every other folder
    folder, links = "", 0
    devices = set()  # type: set[int]
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            folder = os.path.dirname(folder)  # has no link in it
            continue
        here = os.path.join(folder, name)
        try:
            status = os.lstat(here)
            target = os.readlink(here) if stat.S_ISLNK(status.st_mode) else ""
        except (FileNotFoundError, NotADirectoryError):
            return Writer(folder, EVERYBODY) if is_shared(folder, ours) else None
        except OSError as error:
            return Writer(here, f"cannot be looked at: {error.strerror}")
        who = "" if status.st_dev in ours else who_else(here, status)
        if not who and status.st_dev not in devices:
            devices.add(status.st_dev)
            who = whose_file_system(status.st_dev)
        if who:
            return Writer(here, who)
        if not target:
            folder = here
            continue
        links += 1
        if links > MOST_LINKS:
            return Writer(path, "leads in a circle")
        left += reversed(target.split("/"))
        folder = "/" if target.startswith("/") else folder
    return Writer(folder, EVERYBODY) if is_shared(folder, ours) and not shared else None


def who_else(path: str, status: "os.stat_result") -> str:
    """Who may change a file by its own modes: its owner, everybody or a group, as the end of a sentence; "" for nobody.

    In a folder with the sticky bit nobody changes another's entries: each entry's owner decides.
    """
    if not is_trusted(status.st_uid):
        return f"belongs to {user_name(status.st_uid)}"
    mode = status.st_mode
    if stat.S_ISLNK(mode) or stat.S_ISCHR(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return ""
    if mode & stat.S_IWOTH:
        return EVERYBODY
    if mode & stat.S_IWGRP and (has_others(status.st_gid) or has_acl(path)):
        return f"can be written by group {group_name(status.st_gid)}"
    return ""


def is_shared(folder: str, ours: "frozenset[int]" = frozenset()) -> bool:
    """Whether others may make entries in a folder of ours or root's that has the sticky bit."""
    status = os.lstat(folder)
    mode = 0 if status.st_dev in ours else status.st_mode
    return stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX) and bool(mode & (stat.S_IWOTH | stat.S_IWGRP))


def is_trusted(uid: int) -> bool:
    """Root and we. In a user namespace that does not know the host's root, root's files have nobody's number."""
    return uid in (0, os.geteuid()) or (uid == _number_in("/proc/sys/kernel/overflowuid") and not is_mapped(uid))


def is_mapped(uid: int) -> bool:
    """Whether this number is a user's in our user namespace (user_namespaces(7))."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
    except (OSError, ValueError):
        return True
    return any(first <= uid < first + count for first, _, count in ranges)


def has_others(gid: int) -> bool:
    """Whether anybody but root and us is, or might be, in this group.

    Certain are the groups of the distribution (Debian's Python leaves its folders in /usr/local to "staff", which is
    empty) and a user's own one.
    """
    own = (0, os.geteuid())
    try:
        group, names = grp.getgrgid(gid), {pwd.getpwuid(uid).pw_name for uid in own}
    except KeyError:
        return True
    if set(group.gr_mem) - names or not (gid < SYSTEM_GROUPS or group.gr_name in names):
        return True
    return any(user.pw_gid == gid and user.pw_uid not in own for user in pwd.getpwall())


def has_acl(path: str) -> bool:
    """Whether the group's bits are the mask of a list of users and groups (acl(5))."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access", follow_symlinks=False))
    except OSError:
        return False


def whose_file_system(device: int) -> str:
    """Which other user mounted a file system (FUSE) and shows any owner there that he likes; "" for all others."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return ""
    for words in mounts:
        if words[2] != number:
            continue
        kind, _, options = words[words.index("-") + 1 :][:3]
        users = [option[8:] for option in options.split(",") if option.startswith("user_id=")]
        if kind.startswith("fuse") and users and not is_trusted(int(users[0])):
            return f"is a file system of {user_name(int(users[0]))}"
    return ""


def name_of_user(uid: int) -> str:
    """The user's name, "" where the system knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def user_name(uid: int) -> str:
    return name_of_user(uid) or f"uid {uid}"


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


class Looker(threading.Thread):
    """Looks at what may hang, one thing after the other: a new thread for each costs four times as much."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.looks = SimpleQueue()  # type: SimpleQueue[Callable[[], object] | None]
        self.answers = SimpleQueue()  # type: SimpleQueue[tuple[object, Exception | None]]
        self.start()

    def run(self) -> None:
        for look in iter(self.looks.get, None):
            try:
                self.answers.put((look(), None))
            except Exception as error:  # noqa: BLE001 - raised again by in_time
                self.answers.put((None, error))


_idle = []  # type: list[Looker]
os.register_at_fork(after_in_child=_idle.clear)  # threads stay behind


def in_time(
    look: "Callable[[], Result]", limit_s: float, late: "Callable[[threading.Thread], None]" = lambda _: None
) -> "Result | None":
    """``look()``, or None when it takes too long, as on a file server that is gone; it then hangs on in a thread of its
    own, which ``late`` is given. What it raises is raised here.
    """
    try:
        looker = _idle.pop()
    except IndexError:
        try:
            looker = Looker()
        except RuntimeError:  # no more threads can be started
            return look()
    looker.looks.put(look)
    try:
        answer, error = looker.answers.get(timeout=limit_s)
    except Empty:
        looker.looks.put(None)
        late(looker)
        return None
    _idle.append(looker)
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def _number_in(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1
