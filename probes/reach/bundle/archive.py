"""The bundle's bytes: a zip without compression and without anything that depends on when or where it was made."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

MANIFEST = "MANIFEST"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest that zip knows
_REGULAR_FILE_0600 = 0o100600 << 16


@dataclass(frozen=True)
class Archive:
    """``sha256``: of the content, it names the bundle; ``manifest_sha256``: of the list of its files' hashes."""

    content: bytes
    sha256: str
    manifest_sha256: str


def pack(files: Mapping[str, bytes]) -> Archive:
    """``files`` by their names in the zip. Stored, because it travels gzipped as a whole and is imported as it is."""
    manifest = "".join(f"{sha256(files[name])} {name}\n" for name in sorted(files)).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (*sorted(files.items()), (MANIFEST, manifest)):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, also where it is made on another system
            info.external_attr = _REGULAR_FILE_0600
            archive.writestr(info, data)
    content = buffer.getvalue()
    return Archive(content, sha256(content), sha256(manifest))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
