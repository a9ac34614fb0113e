"""Which files the bundle of one machine type has: our own that run on a node, pynvml, psutil.

"mltop_compiled.py" is ``agent/bootstrap/compiled.py``: it runs before any package can be imported, by its text.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

from mltop import probes
from mltop.probes.agent.bootstrap import compiled
from mltop.probes.reach.bundle import wheels
from mltop.probes.reach.bundle.archive import Archive, pack

OURS = (
    *("model", "agent", "collect", "active", "paths.py", "spawn.py", "version.py"),
    *("plausible.py", "nvml_fields.py", "writable.py", "as_root.py"),
)
_NOT_NEEDED_THERE = ("agent/bootstrap/",)  # sent as text


@cache
def bundle(machine: str) -> Archive:
    """For ``machine`` (platform.machine() of the node), "" for one that no psutil is at hand for."""
    files = {
        compiled.LOADER: loader(),
        "mltop/__init__.py": b"",
        **_our_files(),
        **_pynvml(),
    }
    if machine:
        files.update(wheels.psutil_files(machine))
    return pack(files)


def loader() -> bytes:
    """What imports from a bundle that lies in a cache folder. It stands in command lines."""
    return without_docstrings(Path(compiled.__file__).read_text(encoding="utf-8")).encode()


def without_docstrings(text: str) -> str:
    """A quarter of what would be sent."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for entry in body if isinstance(body, list) and len(body) > 1 else ():
            if (
                isinstance(entry, ast.Expr)
                and isinstance(entry.value, ast.Constant)
                and isinstance(entry.value.value, str)
            ):
                left_out.update(range(entry.lineno, (entry.end_lineno or entry.lineno) + 1))
    lines = enumerate(text.splitlines(keepends=True), 1)
    return "".join(line for number, line in lines if number not in left_out and line.strip())


def machines() -> list[str]:
    """The machine types that have a bundle with psutil."""
    return wheels.machines_with_psutil()


def _our_files() -> dict[str, bytes]:
    root = Path(probes.__file__).parent
    found = [root / "__init__.py"]
    for name in OURS:
        found += [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py"))
    named = {path.relative_to(root).as_posix(): path for path in found}
    return {
        f"mltop/probes/{name}": path.read_bytes()
        for name, path in named.items()
        if not name.startswith(_NOT_NEEDED_THERE)
    }


def _pynvml() -> dict[str, bytes]:
    """nvidia-ml-py is one module; the older package of that name is a folder."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        return {}
    module = Path(spec.origin)
    if module.name != "__init__.py":
        return {module.name: module.read_bytes()}
    return {f"pynvml/{path.name}": path.read_bytes() for path in sorted(module.parent.glob("*.py"))}
