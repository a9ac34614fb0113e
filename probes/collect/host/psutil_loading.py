"""psutil, imported when it is first needed. It is part of the bundle that agents come with; without it some fields are
unknown and the others go on.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import zipimport
from functools import lru_cache
from typing import Any

from mltop.probes.collect.sysfile import MALFORMED
from mltop.probes.model import Gap
from mltop.probes.system.spawn import memory_file

# What psutil raises on files that are not as expected.
UNREADABLE = (OSError, RuntimeError, AssertionError, *MALFORMED)


class Psutil:
    """psutil's functions for one root: ``root`` is put before /proc, "" is this machine. For one thread."""

    def __init__(self, root: str) -> None:
        self._proc = root + "/proc"

    @property
    def gap(self) -> Gap | None:
        """Why there is no psutil, None where there is one."""
        return load()[1]

    def module(self) -> Any:
        """psutil with its /proc set to ours, None where it cannot be imported."""
        module = load()[0]
        if module is not None:
            module.PROCFS_PATH = self._proc
        return module


@lru_cache(maxsize=1)
def load() -> tuple[Any, Gap | None]:
    """psutil, or why there is none."""
    try:
        import psutil
    except ImportError as error:
        psutil = _from_memory()
        if psutil is None:
            return None, Gap.about(
                "host", why=f"psutil cannot be imported: {error}", fix="python3 -m pip install psutil"
            )
    return psutil, None


def _from_memory() -> Any:
    """psutil with its compiled part loaded through memory: from a zip, or from where nothing may be mapped as a
    program (noexec). None when there is no psutil, or none for this Python.
    """
    spec = importlib.util.find_spec("psutil")
    if spec is None or not isinstance(spec.loader, (zipimport.zipimporter, importlib.machinery.SourceFileLoader)):
        return None
    folder = os.path.dirname(spec.origin or "")
    loaded = []
    for module in ("_psutil_posix", "_psutil_linux"):  # older versions have both
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            try:
                content = spec.loader.get_data(os.path.join(folder, module + suffix))
                loaded.append(_load_extension(f"psutil.{module}", content))
            except (OSError, ImportError):
                continue
            break
    try:
        import psutil
    except ImportError:
        return None
    finally:
        if "psutil" not in sys.modules:
            for name in loaded:
                sys.modules.pop(name, None)
    return psutil


def _load_extension(name: str, content: bytes) -> str:
    """Load a compiled module into ``sys.modules``."""
    loader = importlib.machinery.ExtensionFileLoader(name, memory_file(name, content))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    return name
