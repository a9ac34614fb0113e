"""What travels to a node that has nothing of ours: stage 1, the bundle of the agent's files, py-spy.

``opening()`` goes to every node; ``file_for`` makes the frames that a node asks for; ``loader()`` imports from what has
been installed. The bundle is a zip without anything that depends on when or where it was made: that of one machine type
is the same bytes on every computer that has the same versions of mltop, pynvml and psutil, so its hash names it in the
nodes' caches.

A node's cache also holds it with compiled modules (``agent/bootstrap/cache.py``), which no hash that is known here can
vouch for: each version of Python makes another. What carries the hash of ``compiled_key()`` was made by an agent of
ours; every user of mltop has one, kept with their state.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import secrets
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mltop import probes
from mltop.probes.agent import bootstrap
from mltop.probes.agent.bootstrap import zipped
from mltop.probes.agent.protocol import Request
from mltop.probes.reach.bundle import wheels
from mltop.probes.system import blobs, writable
from mltop.probes.system.files import BadFile, Folder, ensure_own, state_folder

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest that zip knows
_REGULAR_FILE_0600 = 0o100600 << 16
OURS = (
    *("model", "system", "agent", "collect", "active", "version.py"),
    *(f"judge/{name}" for name in ("__init__.py", "health", "stall", "deaths.py", "nodes.py", "values.py")),
)
_NOT_NEEDED_THERE = (
    "agent/bootstrap/",  # sent as text
    *(f"judge/health/{name}.py" for name in ("fleet", "folding")),
    *(f"judge/stall/{name}.py" for name in ("droop", "job", "motions", "odd", "rhythm", "surroundings")),
)
_KEY_NAME = "compiled-key"
_KEY_BYTES = 32
# Not sent: imports between the parts, and comments on lines of their own.
_LEFT_OUT = re.compile(
    r"^(from mltop\.probes\.(?:agent\.bootstrap|system)\b[^(\n]*(?:\([^)]*\))?|\s*#.*)\n", re.MULTILINE
)
_GZIP = 31  # zlib's name for it; the header it writes has no time of making
_BEST, _QUICK = 9, 3  # py-spy, 8 MB: 0.13 s and 3.0 MB at 3; 1.2 s and 2.8 MB at 9


@dataclass(frozen=True)
class Archive:
    """``sha256``: of the content, it names the bundle."""

    content: bytes
    sha256: str


def pack(files: Mapping[str, bytes]) -> Archive:
    """A zip of ``files``, by their names. Stored, because it travels gzipped as a whole and is imported as it is."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, also where it is made on another system
            info.external_attr = _REGULAR_FILE_0600
            archive.writestr(info, data)
    content = buffer.getvalue()
    return Archive(content, sha256(content))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def bundle(machine: str) -> Archive:
    """The bundle for ``machine`` (platform.machine() of the node), "" for one that no psutil is at hand for."""
    psutil = wheels.psutil_files(machine) if machine else {}
    return pack({"mltop/__init__.py": b"", **_our_files(), **_pynvml(), **psutil})


def loader() -> bytes:
    """The code that imports the bundle in a cache folder. It stands in command lines."""
    return _text(Path(blobs.__file__), Path(zipped.__file__)).encode()


def without_docstrings(text: str) -> str:
    """Python source without its docstrings: a quarter of what would be sent."""
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


def _our_files() -> dict[str, bytes]:
    root = Path(probes.__file__).parent
    paths = [root / "__init__.py"]
    for name in OURS:
        paths += [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py"))
    named = {path.relative_to(root).as_posix(): path for path in paths}
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


@cache
def compiled_key() -> str:
    """The user's key in hex; "" where it cannot be kept: nodes then compile what they use at every start, for 0.2 s."""
    path = state_folder()
    if path is None:
        return ""
    with contextlib.suppress(OSError, BadFile), ensure_own(path) as folder:
        if not _kept_key(folder):
            folder.write(_KEY_NAME, secrets.token_hex(_KEY_BYTES).encode())
        return _kept_key(folder)
    return ""


def _kept_key(folder: Folder) -> str:
    """The key in the folder; "" for none, and for a file that others may know or have put there."""
    try:
        fd = folder.open_file(_KEY_NAME)
    except FileNotFoundError:
        return ""
    with open(fd, encoding="ascii", errors="replace") as file:
        status = os.fstat(fd)
        is_ours = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        text = file.read(2 * _KEY_BYTES + 1) if is_ours else ""
    return text if len(text) == 2 * _KEY_BYTES and all(letter in "0123456789abcdef" for letter in text) else ""


# Stage 0 reads byte by byte up to the NUL; this little program reads the rest as a whole.
_LOADER = """import os, zlib
text = b""
while len(text) < {size}:
    part = os.read(0, {size} - len(text))
    if not part:
        os._exit(98)
    text += part
exec(zlib.decompress(text))
\0"""


@cache
def opening(read_only: bool = False) -> bytes:
    """The first bytes for every node's stdin: ends exactly where frames may begin. ``read_only``: no key is made."""
    key = "" if read_only else compiled_key()
    packed = zlib.compress(f"{source()}main(json.loads({json.dumps(table())!r}), {key!r})\n".encode(), 9)
    return _LOADER.format(size=len(packed)).encode() + packed


_MAKER = ThreadPoolExecutor(1, thread_name_prefix="mltop-bundle")


def opening_soon(read_only: bool = False) -> Callable[[], bytes]:
    """``opening``, made in a thread from now on: it takes 50 ms, in which nodes can be connected to."""
    return _MAKER.submit(opening, read_only).result


def source() -> str:
    """The text of stage 1."""
    folder = Path(bootstrap.__file__).parent
    return _text(Path(writable.__file__), Path(blobs.__file__), *(folder / part for part in bootstrap.PARTS))


def _text(*parts: Path) -> str:
    return "".join(without_docstrings(_LEFT_OUT.sub("", part.read_text(encoding="utf-8"))) for part in parts)


def table() -> dict[str, str]:
    """Machine type, "" for any other, to the bundle's sha256."""
    return {machine: bundle(machine).sha256 for machine in ("", *wheels.machines_with_psutil())}


def file_for(name: str, machine: str) -> Request:
    """The frame for a node of this machine type (platform.machine()): ``name`` is "bundle" or "py-spy".

    args: sha256 (of the unpacked bytes) and data (base64 of gzip); or error and fix, when there is none. Takes 0.1 to
    0.3 s, and nothing is kept: the caller keeps the frame when it has many such nodes.
    """
    if name not in ("bundle", "py-spy"):
        return Request("file", op=name, args={"error": f"there is no file {name!r}"})
    if name == "bundle":
        content, level = bundle(machine if machine in wheels.machines_with_psutil() else "").content, _BEST
    else:
        program, level = wheels.py_spy(machine), _QUICK
        if program is None:
            error = f"no py-spy for {machine} at hand to send there"
            return Request("file", op=name, args={"error": error, "fix": wheels.how_to_get(machine)})
        content = program
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP)
    packed = base64.b64encode(compressor.compress(content) + compressor.flush()).decode()
    return Request("file", op=name, args={"sha256": sha256(content), "data": packed})


@cache
def py_spy_sha256(machine: str) -> str:
    """The SHA-256 of the py-spy that ``file_for`` has for this machine type, "" when it has none."""
    program = wheels.py_spy(machine)
    return sha256(program) if program else ""
