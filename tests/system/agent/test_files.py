"""Files of others and of ours: nothing hangs, nothing is too large, nobody gets in between."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.system.files import BadFile, Folder, open_regular, read_regular
from tests.others import ordinary
from tests.waiting import wait_until

MOST = 1 << 20


@pytest.mark.parametrize(
    ("kind", "words"),
    [("pipe", "is a pipe"), ("socket", "is a socket"), ("folder", "is a directory"), ("device", "is a device")],
)
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(BadFile, match=f"^{path}: {words}, not a regular file$"):
        read_regular(path, MOST)


def test_a_link_is_followed_where_the_user_names_it_and_not_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", MOST) == b"text"
    with Folder.open(tmp_path) as folder:
        assert folder.read("file", MOST) == b"text"
        with pytest.raises(BadFile, match=f"^{tmp_path}/link: is a symbolic link, not a regular file$"):
            folder.read("link", MOST)
        for name in ("../x", "a/b", "..", "", "/etc/passwd"):
            with pytest.raises(OSError):
                folder.read(name, MOST)


def test_more_than_allowed_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadFile, match=f"^{path}: is larger than 1 MiB, the most that mltop reads of such a file$"):
        read_regular(path, MOST)


def test_errors_name_the_whole_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        open_regular(tmp_path / "nothing")
    assert missing.value.filename == str(tmp_path / "nothing")
    with Folder.open(tmp_path) as folder, pytest.raises(FileNotFoundError) as missing:
        folder.read("nothing", MOST)
    assert missing.value.filename == str(tmp_path / "nothing")


MAKE = """
import sys
from pathlib import Path
from mltop.probes.system.files import Folder
from mltop.probes.record import CaptureWriter
with Folder.make(Path(sys.argv[1]) / "a" / "b") as folder:
    folder.write("file", b"1")
    folder.ensure_folder("inner").write("file", b"2")
writer = CaptureWriter(Path(sys.argv[1]) / "captures" / "c")
writer.add("stacks/n1/rank-0-pid-1.json", b"[]")
writer.finish()
"""


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o2777)  # new folders take the set-group-id bit from here
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run(ordinary([sys.executable, "-c", MAKE, str(tmp_path)]), check=True, timeout=60, umask=umask, env=env)
    modes = {path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert len(modes) == 11
    assert modes == {path: 0o700 if (tmp_path / path).is_dir() else 0o600 for path in modes}


def test_a_new_folder_is_new(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    for name in ("link", "folder", "to-folder"):
        with pytest.raises(FileExistsError):
            Folder.make(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "to-folder"]


# Whoever may write to the folder above lays a link in the place of each new folder, as fast as that goes.
EXCHANGER = """
import os, sys, time
target, victim = sys.argv[1:]
open(target + ".ready", "w").close()
number = 0
while True:
    try:
        os.rename(target, f"{target}.{number}")
        os.symlink(victim, target)
    except OSError:
        continue
    number += 1
    time.sleep(0.005)
    os.unlink(target)
"""


def test_a_folder_that_is_exchanged_at_once_gets_nothing(tmp_path: Path) -> None:
    target, victim = tmp_path / "c", tmp_path / "victim"
    victim.mkdir()

    def exchanged_often() -> bool:
        with contextlib.suppress(OSError), Folder.make(target) as folder:
            folder.ensure_folder("inner").write("file", b"secret")
        return len(list(tmp_path.glob("c.*"))) > 150

    exchanger = subprocess.Popen([sys.executable, "-c", EXCHANGER, str(target), str(victim)])
    try:
        wait_until((tmp_path / "c.ready").exists, what="the exchanger")
        wait_until(exchanged_often, 60, "150 exchanges")
    finally:
        exchanger.kill()
        exchanger.wait()
    assert list(victim.iterdir()) == []


def test_many_names_are_refused(tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / str(number)).touch()
    with Folder.open(tmp_path) as folder:
        assert len(folder.names(11)) == 11
        with pytest.raises(BadFile, match=f"^{tmp_path}: holds more than 10 files$"):
            folder.names(10)
