"""Stage 1 as it is sent: the text of ``agent/bootstrap`` and the hashes of the bundles."""

from __future__ import annotations

import json
import re
import zlib
from functools import cache
from pathlib import Path

from mltop.probes import writable
from mltop.probes.agent import bootstrap
from mltop.probes.reach.bundle.content import bundle, machines, without_docstrings
from mltop.probes.reach.bundle.key import compiled_key

# Not sent: imports between the parts, and comments on lines of their own.
_LEFT_OUT = re.compile(r"^(from mltop\.probes\.(?:agent\.bootstrap|writable)\b.*|\s*#.*)\n", re.MULTILINE)
# Stage 0 reads byte by byte up to the NUL; this little program reads the rest as a whole.
# Empty lines first: a `read` in a shell's start-up file takes the first line of stdin.
_LOADER = """







import os, zlib
text = b""
while len(text) < {size}:
    part = os.read(0, {size} - len(text))
    if not part:
        os._exit(98)
    text += part
exec(zlib.decompress(text))
\0"""


@cache
def opening() -> bytes:
    """The first bytes for every node's stdin: ends exactly where frames may begin."""
    packed = zlib.compress(f"{source()}main(json.loads({json.dumps(table())!r}), {compiled_key()!r})\n".encode(), 9)
    return _LOADER.format(size=len(packed)).encode() + packed


def source() -> str:
    """Stage 1's text."""
    folder = Path(bootstrap.__file__).parent
    parts = [Path(writable.__file__), *(folder / part for part in bootstrap.PARTS)]
    return "".join(without_docstrings(_LEFT_OUT.sub("", part.read_text(encoding="utf-8"))) for part in parts)


def table() -> dict[str, list[str]]:
    """Machine type, "" for any other, to the bundle's sha256 and its MANIFEST's."""
    archives = {machine: bundle(machine) for machine in ("", *machines())}
    return {machine: [archive.sha256, archive.manifest_sha256] for machine, archive in archives.items()}
