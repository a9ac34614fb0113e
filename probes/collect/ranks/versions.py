"""Which versions of Python, torch, NCCL, CUDA and their like a rank runs with, without asking it.

The libraries that it has mapped tell where its packages lie; beside them stand folders that are called
``torch-2.8.0.dist-info`` (PEP 376). Some libraries have their version in their file's name.

All of it is read by one thread of its own, and whoever asks never waits for it: the folder of packages may be on a file
server that does not answer. Source: proc_pid_maps(5), proc_pid_root(5).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from itertools import islice
from queue import SimpleQueue

from mltop.probes.collect.ranks.procfs import read_maps

OFTEN, SELDOM = 10, 10  # the first looks are all made, then every so many: libraries come when they are needed
_MOST_FOLDERS, _MOST_ENTRIES = 4, 20_000
_MOST_KNOWN = 256  # folders, of all ranks
_PACKAGES = re.compile(rb" (/[^\n]*?/(?:site|dist)-packages)/([^/\n]+)/")
_PYTHON = re.compile(rb"/(?:libpython|lib/python)(3\.\d{1,3})[./]")
# Libraries outside of Python's packages whose files are called after their version.
_LIBRARIES = re.compile(rb"/lib(nccl|cudart|cudnn)\.so\.(\d{1,4}(?:\.\d{1,4}){1,3})(?: \(deleted\))?\n")
_DISTRIBUTION = re.compile(r"([A-Za-z0-9_.]{1,64})-(\d[0-9A-Za-z.+!_]{0,39})\.dist-info")
# What a distribution is called here, and the package that has to be mapped: "" tells that it need not be.
_DISTRIBUTIONS = {
    "torch": ("torch", "torch"),
    "nvidia_nccl_cu11": ("nccl", "nvidia"),
    "nvidia_nccl_cu12": ("nccl", "nvidia"),
    "nvidia_nccl_cu13": ("nccl", "nvidia"),
    "nvidia_cuda_runtime_cu11": ("cuda", "nvidia"),
    "nvidia_cuda_runtime_cu12": ("cuda", "nvidia"),
    "nvidia_cuda_runtime": ("cuda", "nvidia"),
    "nvidia_cudnn_cu12": ("cudnn", "nvidia"),
    "nvidia_cudnn_cu13": ("cudnn", "nvidia"),
    "jax": ("jax", "jaxlib"),
    "jaxlib": ("jaxlib", "jaxlib"),
    "deepspeed": ("deepspeed", ""),
    "megatron_core": ("megatron_core", ""),
    "transformer_engine": ("transformer_engine", ""),
    "flash_attn": ("flash_attn", ""),
}
_NAMES = {b"nccl": "nccl", b"cudart": "cuda", b"cudnn": "cudnn"}
_SEARCHED = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Versions:
    """Those of one process. ``newest``: what is known so far."""

    def __init__(self, root: str, pid: int) -> None:
        self._root, self._pid = root, pid
        self._image: object = None
        self._looks = 0
        self._waits = False
        self.newest: dict[str, str] = {}

    def look(self, image: object) -> None:
        """Have it looked at by and by. ``image``: another one after an exec."""
        if image != self._image:
            self._image, self._looks, self.newest = image, 0, {}
        self._looks += 1
        is_complete = {"torch", "nccl"} <= self.newest.keys() or "jaxlib" in self.newest
        due = not is_complete and (self._looks <= OFTEN or self._looks % SELDOM == 0)
        if due and not self._waits:
            self._waits = True
            _READER.ask(self)

    def read(self) -> None:
        """In the reader's thread."""
        image = self._image
        try:
            found = versions_of(self._root, self._pid)
        except OSError:
            found = {}  # it has ended, is somebody else's, or its memory does not answer
        if found and image == self._image:
            self.newest = found
        self._waits = False


class _Reader:
    """The thread that reads, from the first question on."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Versions] = SimpleQueue()
        self._pid = 0

    def ask(self, versions: Versions) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            threading.Thread(target=self._run, name="versions", daemon=True).start()
        self._asked.put(versions)

    def _run(self) -> None:
        while True:
            self._asked.get().read()


_READER = _Reader()


def versions_of(root: str, pid: int) -> dict[str, str]:
    """Of the process ``pid`` below the /proc ``root``. Raises OSError."""
    maps = read_maps(root, pid)
    packages: dict[bytes, set[bytes]] = {}  # by folder, what of it is mapped
    for folder, package in set(_PACKAGES.findall(maps)):
        packages.setdefault(folder, set()).add(package)
    found: dict[str, str] = {}
    python = _PYTHON.search(maps)
    if python is not None:
        found["python"] = python[1].decode()
    for folder in sorted(packages, key=lambda folder: (-len(packages[folder]), folder))[:_MOST_FOLDERS]:
        mapped = {package.decode("utf-8", "replace") for package in packages[folder]}
        for name, version in _installed(f"{root}/{pid}/root", os.fsdecode(folder)).items():
            called, needs = _DISTRIBUTIONS[name]
            if not needs or needs in mapped:
                found.setdefault(called, version)
    # What is loaded counts more than what is installed beside it.
    found.update({_NAMES[name]: version.decode() for name, version in _LIBRARIES.findall(maps)})
    return {name: found[name] for name in sorted(found)}


_known: dict[tuple[int, int, int], dict[str, str]] = {}


def _installed(root: str, folder: str) -> dict[str, str]:
    """The versions of known distributions in a folder of packages; {} of one that cannot be listed. Each is listed once
    and again when it changes. No symbolic link is followed: the path is a stranger's.
    """
    try:
        descriptor = _opened(root, folder)
    except OSError:
        return {}
    try:
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if key not in _known:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            with os.scandir(descriptor) as entries:
                _known[key] = distributions(entry.name for entry in islice(entries, _MOST_ENTRIES))
        return _known[key]
    except OSError:
        return {}
    finally:
        os.close(descriptor)


def _opened(root: str, folder: str) -> int:
    """A descriptor of the folder as the process sees it. Raises OSError."""
    descriptor = os.open(root, _SEARCHED)
    parts = [part for part in folder.split("/") if part]
    for place, part in enumerate(parts, 1):
        how = _SEARCHED if place < len(parts) else os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            if part == "..":
                raise NotADirectoryError(folder)
            below = os.open(part, how | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def distributions(names: Iterable[str]) -> dict[str, str]:
    """By distribution its version, of the names in a folder of packages; only known ones."""
    matches = filter(None, (_DISTRIBUTION.fullmatch(name) for name in names if name.endswith(".dist-info")))
    found = {match[1].lower().replace(".", "_"): match[2] for match in matches}
    return {name: version for name, version in found.items() if name in _DISTRIBUTIONS}
