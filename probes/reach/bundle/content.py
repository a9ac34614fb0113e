"""Which files the bundle of one machine type has: our own that run on a node, pynvml, psutil.

"mltop_compiled.py" is ``agent/bootstrap/compiled.py``: it must run before any package can be imported.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from mltop import probes
from mltop.probes.agent.bootstrap import compiled
from mltop.probes.reach.bundle import wheels
from mltop.probes.reach.bundle.archive import Archive, pack

_OURS = ("model", "agent", "collect", "active", "paths.py", "spawn.py", "writable.py", "as_root.py", "version.py")
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
    """What imports from a bundle that lies in a cache folder; started by its text."""
    return Path(compiled.__file__).read_bytes()


def machines() -> list[str]:
    """The machine types that have a bundle with psutil."""
    return wheels.machines_with_psutil()


def _our_files() -> dict[str, bytes]:
    root = Path(probes.__file__).parent
    found = [root / "__init__.py"]
    for name in _OURS:
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
