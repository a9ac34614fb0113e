"""Who else may change a file: by owners and modes of everything on the way to it."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mltop.probes.reach.launchers.remote_command import TRUST
from mltop.probes.system import writable
from mltop.probes.system.writable import EVERYBODY, writer_of

STRANGER = 54321  # nobody's number
needs_chown = pytest.mark.skipif(
    os.geteuid() != 0, reason="gives files to a second user, which a user namespace has only with newuidmap(1)"
)
EMPTY_GROUP = next((group.gr_gid for group in grp.getgrall() if group.gr_name == "staff" and not group.gr_mem), None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ours, and so is all above it."""
    found = tmp_path / "a/b"
    found.mkdir(parents=True, mode=0o755)
    (found / "file").write_text("")
    (found / "file").chmod(0o644)
    return found


def told(path: Path | str, shared: bool = False) -> str:
    """As the node's shell sees it, too: both must say the same, but for what is not there and the last folder."""
    found = writer_of(str(path), shared)
    if os.path.lexists(path) and not os.path.isdir(path):
        code = subprocess.run(["sh", "-c", f'{TRUST}ours "$1"', "sh", str(path)], check=False).returncode
        assert code == int(found is not None), f"{path}: the shell says {code}, we say {found}"
    return str(found or "")


def test_what_is_ours_is_ours(folder: Path) -> None:
    for path in (folder / "file", folder, folder / "nothing", folder / "nothing/below", folder / "file/below"):
        assert told(path) == ""
    assert told("/") == ""
    assert told("/dev/null") == ""  # everybody writes to it, which changes nothing


@pytest.mark.parametrize(
    ("mode", "who"), [(0o757, EVERYBODY), (0o777, EVERYBODY), (0o755, ""), (0o1777, ""), (0o700, ""), (0o2755, "")]
)
def test_folders_on_the_way_by_their_modes(folder: Path, mode: int, who: str) -> None:
    folder.parent.chmod(mode)
    expected = f"{folder.parent} {who}" if who else ""
    assert told(folder / "file") == expected
    folder.parent.chmod(0o755)
    folder.chmod(mode)
    assert told(folder / "file") == (f"{folder} {who}" if who else "")


def test_the_file_itself(folder: Path) -> None:
    (folder / "file").chmod(0o646)
    assert told(folder / "file") == f"{folder}/file {EVERYBODY}"


def test_a_folder_like_tmp_is_for_entries_of_ones_own(folder: Path) -> None:
    folder.chmod(0o1777)
    assert told(folder / "file") == ""
    assert told(folder / "nothing") == f"{folder} {EVERYBODY}"  # anybody can make it
    assert told(folder) == f"{folder} {EVERYBODY}"
    assert told(folder, shared=True) == ""


def test_every_link_and_what_it_leads_to(folder: Path, tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    (tmp_path / "link").symlink_to(folder / "file")
    assert told(tmp_path / "link") == ""
    # From a folder of everybody's into one of ours: whoever may exchange the link decides.
    (open_folder / "link").symlink_to(folder / "file")
    (tmp_path / "over").symlink_to("open/link")
    open_folder.chmod(0o777)
    assert told(tmp_path / "over") == f"{open_folder} {EVERYBODY}"
    assert told(open_folder / "link") == f"{open_folder} {EVERYBODY}"
    (tmp_path / "folder").symlink_to(open_folder)
    (open_folder / "file").write_text("")
    assert told(tmp_path / "folder/file") == f"{open_folder} {EVERYBODY}"
    assert told(tmp_path / "folder/../a/b/file") == f"{open_folder} {EVERYBODY}"  # the way leads through it
    open_folder.chmod(0o755)
    assert told(tmp_path / "folder/../a/b/file") == ""


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert told(tmp_path / "one") == f"{tmp_path}/one leads in a circle"
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    assert told(tmp_path / "dangling") == ""


@needs_chown
@pytest.mark.parametrize("link", [False, True])
def test_owners(folder: Path, link: bool) -> None:
    path = folder / "file"
    if link:
        path.unlink()
        path.symlink_to("/etc/passwd")
    for owned in (path, folder, folder.parent):
        os.chown(owned, STRANGER, -1, follow_symlinks=False)
        assert told(path) == f"{owned} belongs to uid {STRANGER}"
        os.chown(owned, 0, -1, follow_symlinks=False)
    assert told(path) == ""


@needs_chown
def test_a_strangers_entry_in_a_shared_folder(folder: Path) -> None:
    folder.chmod(0o1777)
    os.chown(folder / "file", STRANGER, -1)
    assert told(folder / "file") == f"{folder}/file belongs to uid {STRANGER}"


@needs_chown
def test_the_members_of_a_group_are_others(folder: Path) -> None:
    folder.chmod(0o775)
    os.chown(folder, -1, STRANGER)  # of which nothing is known
    assert told(folder / "file") == f"{folder} can be written by group {STRANGER}"
    os.chown(folder, -1, grp.getgrnam("users").gr_gid)
    assert told(folder / "file") == f"{folder} can be written by group users"


@needs_chown
@pytest.mark.skipif(EMPTY_GROUP is None, reason="only Debian and its kin have an empty group staff")
def test_a_group_of_the_distribution_without_members_is_nobody(folder: Path) -> None:
    folder.chmod(0o2775)  # as Debian's Python leaves /usr/local/lib/python3.X
    os.chown(folder, -1, EMPTY_GROUP or 0)
    assert told(folder / "file") == ""


@pytest.mark.parametrize(
    ("members", "logins", "gid", "name", "has"),
    [
        ([], [], 50, "staff", False),
        (["root"], [], 50, "staff", False),
        (["root", "ada"], [], 50, "staff", True),
        ([], [(1001, 50)], 50, "staff", True),  # somebody's login group
        ([], [(0, 50)], 50, "staff", False),
        ([], [], 1001, "ada", True),  # a directory service need not say who is in it
        ([], [], 0, "root", False),
        ([], [(11, 0)], 0, "root", True),
    ],
)
def test_groups(
    members: list[str],
    logins: list[tuple[int, int]],
    gid: int,
    name: str,
    has: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what the group and user data bases say; of root here, whoever runs this."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    group = grp.struct_group((name, "x", gid, members))
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    users = [writable.pwd.struct_passwd(("u", "x", uid, login, "", "/", "/bin/sh")) for uid, login in logins]
    monkeypatch.setattr(writable.pwd, "getpwall", lambda: users)
    assert writable.has_others(gid) is has


def test_a_list_of_users_behind_the_groups_bits(folder: Path) -> None:
    """POSIX ACLs: the group's bits are the mask of the list (acl(5))."""
    gid = os.getegid()
    # Version 2: owner rwx, user 54321 rwx, group r-x, mask rwx, other r-x.
    entries = [(1, 7, -1), (2, 7, STRANGER), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    packed = (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + (number & 0xFFFFFFFF).to_bytes(4, "little")
        for tag, rights, number in entries
    )
    try:
        os.setxattr(folder, "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error.strerror}")
    assert told(folder / "file") == f"{folder} can be written by group {grp.getgrgid(gid).gr_name}"


@needs_chown
def test_a_file_system_of_another_users_shows_what_owners_it_likes(tmp_path: Path) -> None:
    """FUSE, mounted by a stranger in a folder like /tmp."""
    mounted = tmp_path / "shared/mounted"
    mounted.parent.mkdir()
    mounted.parent.chmod(0o1777)
    mounted.mkdir()
    # Nobody answers, so only what the kernel itself knows can be asked for: not the files.
    fuse = f"exec 9<>/dev/fuse; mount -i -t fuse -o fd=9,rootmode=40000,user_id={STRANGER},group_id=0 x {mounted}"
    look = "import os, sys; from mltop.probes.system.writable import *; print(whose_file_system(int(sys.argv[1])))"
    ask = f"major=$(awk -v p={mounted} '$5 == p {{print $3}}' /proc/self/mountinfo); {sys.executable} -c \"{look}\" "
    ask += "$(( ${major%:*} * 256 + ${major#*:} ))"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", f"{fuse}; {ask}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(writable.__file__).parents[3])},
    )
    assert done.stdout.strip() == f"is a file system of uid {STRANGER}"


def test_what_does_not_answer_is_not_waited_for() -> None:
    never = threading.Event()
    assert writable.in_time(never.wait, 0.05) is None
    never.set()
    assert writable.in_time(lambda: 7, 30) == 7
    with pytest.raises(OSError, match="gone"):
        writable.in_time(lambda: (_ for _ in ()).throw(OSError("gone")), 30)


def test_one_thread_looks_again_and_again_but_not_after_it_was_late() -> None:
    release = threading.Event()
    late: list[threading.Thread] = []
    first = writable.in_time(threading.get_ident, 10.0)
    assert writable.in_time(threading.get_ident, 10.0) == first
    with pytest.raises(ValueError, match="no luck"):
        writable.in_time(lambda: int("no luck"), 10.0)
    assert writable.in_time(release.wait, 0.01, late.append) is None
    assert late[0].ident == first
    assert writable.in_time(threading.get_ident, 10.0) != first
    release.set()
    late[0].join(10.0)
    assert not late[0].is_alive()


def test_a_forked_process_looks_with_threads_of_its_own() -> None:
    writable.in_time(threading.get_ident, 10.0)
    child = os.fork()
    if not child:
        os._exit(0 if writable.in_time(lambda: 42, 10.0) == 42 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
