"""A second user for tests of what root must not take from others."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

STRANGER = 54321  # nobody's number
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="root and a second user, which a user namespace has only with newuidmap(1)"
)


def give(path: Path) -> Path:
    """The file, or the folder with all that it holds, belongs to the stranger."""
    for one in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        os.chown(one, STRANGER, STRANGER, follow_symlinks=False)
    return path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def spy(path: Path, seen: Path) -> Path:
    """A program that leaves a trace when it runs."""
    return script(path, f"#!/bin/sh\nid -u >>{seen}\nexec sleep 600\n")


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder of ours that everybody can enter, on a file system where the setuid bit counts."""
    places = [place for place in (tempfile.gettempdir(), "/var/tmp", "/run") if os.path.isdir(place)]
    place = next((place for place in places if not os.statvfs(place).f_flag & os.ST_NOSUID), None)
    assert place is not None, f"all of {', '.join(places)} are mounted nosuid"
    folder = Path(tempfile.mkdtemp(prefix="mltop-public-", dir=place))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def setuid_copy(program: str, path: Path) -> Path:
    """Of a program of root's, for everybody to start."""
    shutil.copy(program, path)
    path.chmod(0o4755)
    return path
