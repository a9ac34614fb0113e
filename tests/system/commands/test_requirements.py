"""Packages that are missing or of another version are named in one line, by every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT


def run(argv: list[str], path: list[Path]) -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("module", "command"),
    [("click", "--version"), ("msgspec", "check --via local"), ("ClusterShell", "snapshot -w a,b")],
)
def test_another_version_on_pythonpath(module: str, command: str, tmp_path: Path) -> None:
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text('__version__ = "0.1"\n')
    code, err = run([sys.executable, "-m", "mltop", *command.split()], [tmp_path, ROOT / ".dev"])
    (line,) = err.splitlines()
    assert code == 2
    assert line.lower().startswith(f"mltop: {module.lower()} 0.1 in {tmp_path}") and "(env -u PYTHONPATH mltop)" in line


def install(folder: Path, name: str, version: str, *requires: str) -> None:
    (folder / f"{name}.py").write_text("")
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    (info / "RECORD").write_text(f"{name}.py,,\n")


@pytest.mark.parametrize(
    ("requires", "version", "words"),
    [
        (("dep>=1.5,<3",), "1.10", ""),
        (("dep<3,>=1.5",), "1.4", "dep 1.4 in {}: mltop needs dep>=1.5,<3 ("),
        (("dep<3",), "3.0", "dep 3.0 in {}: mltop needs dep<3 ("),
        (("dep~=1.4",), "1.4", ""),
        (("other>=1",), "1.4", "other is not installed: mltop needs other>=1 ("),
        (("other>=1; extra == 'test'", "other; python_version < '3.4'"), "1.4", ""),
        (("other>=1; python_version >= '3.4'",), "1.4", "other is not installed"),
        (("between",), "1.4", "dep 1.4 in {}: between needs dep>=2 ("),
    ],
)
def test_what_is_installed(requires: tuple[str, ...], version: str, words: str, tmp_path: Path) -> None:
    """Not by PYTHONPATH: the fix is another version."""
    install(tmp_path, "mltop", "1", *requires)
    install(tmp_path, "dep", version)
    install(tmp_path, "between", "1", "dep>=2")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.path.insert(1, {str(ROOT)!r})\n"
    code += "from tui.requirements import conflict; sys.stderr.write(conflict())"
    _, said = run([sys.executable, "-S", "-c", code], [])
    assert said.startswith(words.format(tmp_path)) if words else said == ""
    assert not words or "-m pip install '" in said
