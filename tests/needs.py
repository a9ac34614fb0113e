"""What the selected tests need beside Python packages; runs before anything is installed: ``tests/needs.py [PATH…]``.

A test needs a program if it, or one of the helpers in tests/ that it imports, names it in a string. What is pure
(tests/unit) needs none. Prints one line per need: ``program package``, and ``torch``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch"

# Programs that tests drive, and the Debian package of each. A missing one is a failure, not a skip.
PACKAGES = {
    "cc": "gcc",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "nvtop": "nvtop",
    "ip": "iproute2",
    "iptables": "iptables",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "pdsh": "pdsh",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "zsh": "zsh",
    "tcsh": "tcsh",
    "fish": "fish",
    "dash": "dash",
}
ALWAYS = {"setpriv", "unshare"}  # every stream's end and the lanes of tests/run rest on them
WORD = re.compile(r"[A-Za-z][\w-]*")


def selected(arguments: Iterable[str]) -> list[Path]:
    """The files behind pytest's arguments: those that are paths (of a folder all tests), or every test when none is."""
    named = [ROOT / argument.partition("::")[0] for argument in arguments]
    paths = [path for path in named if path.exists() and path != ROOT] or [ROOT / "tests"]
    return sorted({file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else (path,))})


@cache
def _read(file: Path) -> tuple[frozenset[str], frozenset[Path]]:
    """The words in its strings and the names it imports; the helpers in tests/ among them."""
    words: set[str] = set()
    helpers: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.update(WORD.findall(node.value))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = _modules(node)
            words.update(module.partition(".")[0] for module in modules)
            helpers.update(_files(modules))
    return frozenset(words), frozenset(helpers)


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]


def _files(modules: Iterable[str]) -> Iterator[Path]:
    for module in modules:
        if module.startswith("tests."):
            path = ROOT / module.replace(".", "/")
            yield from (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())
            if path.is_dir():  # what such a folder holds may be started by its path
                yield from path.rglob("*.py")


def needs(files: Iterable[Path]) -> set[str]:
    """Programs (keys of PACKAGES) and TORCH."""
    open_files = [file for file in files if not file.is_relative_to(ROOT / "tests/unit")]
    if not open_files:
        return set()
    # What pytest reads beside them.
    open_files += [conftest for file in open_files for conftest in file.parent.glob("conftest.py")]
    seen: set[Path] = set()
    words: set[str] = set()
    while open_files:
        file = open_files.pop()
        if file not in seen:
            seen.add(file)
            found, helpers = _read(file)
            words |= found
            open_files += helpers
    return words & {*PACKAGES, TORCH} | ALWAYS


if __name__ == "__main__":
    for need in sorted(needs(selected(sys.argv[1:]))):
        print(need, PACKAGES.get(need, "")) if need != TORCH else print(TORCH)
