"""Folders of the user's own: where mltop keeps state, and where it takes programs for other machines from.

Such a folder belongs to whoever runs mltop, and nobody else can write to it. For root everything above must be root's,
too: ``sudo -E`` and ``su`` without ``-`` leave another user's HOME.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import NoReturn

from mltop.probes.files import BadFile, Folder
from mltop.probes.writable import user_name

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotOurs(BadFile):
    """Somebody else may write to it; the message is one line with its path."""


def home_folder(kind: str) -> Path | None:
    """``kind``: "state" or "data", as XDG has them. None where there is no home directory."""
    import platformdirs

    dirs = platformdirs.PlatformDirs("mltop")
    try:
        found = dirs.user_state_path if kind == "state" else dirs.user_data_path
    except (RuntimeError, OSError):
        return None
    return found if found.is_absolute() else None  # older versions leave a "~" that stands for nothing


def state_folder() -> Path | None:
    """``$MLTOP_STATE_DIR``, or the user's state directory (XDG_STATE_HOME/mltop); None where there is no home."""
    chosen = os.environ.get("MLTOP_STATE_DIR")
    return Path(chosen).absolute() if chosen else home_folder("state")


def open_own(path: Path) -> Folder | None:
    """None where there is none. Raises NotOurs, BadFile and OSError."""
    try:
        with _above(path, make=False) as above:
            return _checked(above.folder(path.name))
    except FileNotFoundError:
        return None


def ensure_own(path: Path) -> Folder:
    """Made, 0700, with all that is missing above it. Raises NotOurs, BadFile and OSError."""
    with _above(path, make=True) as above:
        return _checked(above.ensure_folder(path.name))


def _above(path: Path, make: bool) -> Folder:
    """The folder above, reached from the root: for root everything on the way must be root's, too."""
    folder = _trusted(Folder.open(Path("/"), only_through=True))
    for name in Path(os.path.realpath(path.parent)).parts[1:]:
        with folder:
            step = folder.ensure_folder if make else folder.folder
            folder = _trusted(step(name, only_through=True))
    return folder


def _trusted(folder: Folder) -> Folder:
    if os.geteuid() != 0:
        return folder
    found = os.fstat(folder.fd)
    if found.st_uid != 0 and not _is_root_outside(found.st_uid):
        return _refused(folder, f"belongs to {user_name(found.st_uid)}, and this is root")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return _refused(folder, "everybody may write to it, and this is root")
    return folder


def _checked(folder: Folder) -> Folder:
    found = os.fstat(folder.fd)
    if found.st_uid != os.geteuid():
        return _refused(folder, f"belongs to {user_name(found.st_uid)}, not to {user_name(os.geteuid())}")
    if found.st_mode & _OTHERS_WRITE:
        return _refused(folder, f"others may write to it: chmod 700 {shlex.quote(str(folder.path))}")
    return folder


def _refused(folder: Folder, why: str) -> NoReturn:
    folder.close()
    raise NotOurs(f"{folder.path}: {why}")


def _is_root_outside(uid: int) -> bool:
    """In a user namespace that does not know the machine's root, what is root's belongs to the overflow uid."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
        mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False
    return uid == overflow and mapped[:3] != ["0", "0", "4294967295"]
