"""The Pythons on this machine, for tests that run once for each version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

REQUIRED = ("3.10", "3.11", "3.12", "3.13")  # a run of all tests without one of these proves too little
_NAME = re.compile(r"python3\.\d+t?")
_VERSION = "import sys; print('%d.%d%s' % (*sys.version_info[:2], 't' if 't' in sys.abiflags else ''))"


@cache
def found() -> dict[str, Path]:
    """The first interpreter of each version that starts: "3.12", or "3.13t" for a free-threaded build.

    Interpreters of virtual environments do not count, nor do pyenv's shims, which start another version by the folder.
    """
    by_version: dict[str, Path] = {}
    for path in _candidates():
        version = _version(path)
        if version is not None:
            by_version.setdefault(version, path)
    return dict(sorted(by_version.items(), key=lambda item: [int(part) for part in re.findall(r"\d+", item[0])]))


def missing() -> list[str]:
    return [version for version in REQUIRED if version not in found()]


def _candidates() -> Iterator[Path]:
    on_path = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = sorted(Path.home().glob(".pyenv/versions/*/bin"), reverse=True)
    for folder in (*on_path, *pyenv):
        if folder.name == "shims" or (folder.parent / "pyvenv.cfg").exists() or not folder.is_dir():
            continue
        yield from (path for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name))
    yield Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")


def _version(path: Path) -> str | None:
    """None for one that does not start."""
    try:
        run = subprocess.run([path, "-I", "-c", _VERSION], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
