"""The bundle's modules in compiled form: one file, which is used only when its hash is right.

Python trusts what it finds in ``__pycache__``, and a full disk or a crash of the machine leaves such files cut off or
zeroed. So they are neither read nor written for the bundle. The file ``compiled-...`` in the bundle's folder has the
sha256 of all that follows, in hex, a newline, and the marshalled {name in the bundle: marshalled code}.

Part of stage 1, and a file of the bundle for what starts without it: NVML's child process, the script ``agent``.
"""

# Importing pathlib takes longer than all that is done here with paths.
# ruff: noqa: PTH118

import hashlib
import marshal
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import Any


def compiled_file(bundle: str) -> str:
    """One for every version of Python's bytecode: nodes that share a home may have several."""
    return os.path.join(bundle, f"compiled-{sys.implementation.cache_tag}-{MAGIC_NUMBER[:2].hex()}")


def read_compiled(bundle: str) -> "dict[str, bytes]":
    """Marshalled code by name in the bundle; {} when there is none, or when it is damaged."""
    try:
        with open(compiled_file(bundle), "rb") as file:
            digest, _, content = file.read().partition(b"\n")
    except OSError:
        return {}
    if hashlib.sha256(content).hexdigest().encode() != digest:
        return {}
    return dict(marshal.loads(content))


def import_from(bundle: str, codes: "dict[str, bytes]") -> None:
    """From now on modules below ``bundle`` come from ``codes``, or from their source, which costs time only."""

    class BundleLoader(SourceFileLoader):
        def get_code(self, fullname: str) -> "CodeType":  # noqa: ARG002 - by its path
            data = codes.pop(self.path[len(bundle) + 1 :], b"")  # popped: it is needed once
            code = marshal.loads(data) if data else self.source_to_code(self.get_data(self.path), self.path)
            assert isinstance(code, CodeType)
            return code

    finder = FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (BundleLoader, SOURCE_SUFFIXES))

    def find_below(path: str) -> "Any":
        if path != bundle and not path.startswith(bundle + "/"):
            raise ImportError("not of the bundle")
        return finder(path)

    sys.path_hooks.insert(0, find_below)
    sys.path_importer_cache.pop(bundle, None)
    if bundle not in sys.path:
        sys.path.append(bundle)
