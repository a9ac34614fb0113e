"""What changes seldom about a rank: its limits, open files, cgroup, settings and versions. Read every half minute.

Source: /proc/PID/{limits,fd,cgroup,environ} (proc_pid_limits(5) and its neighbours).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from queue import SimpleQueue
from typing import Any

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.access import named, permission_gap
from mltop.probes.collect.ranks.procfs import read_maps
from mltop.probes.collect.ranks.table import Process
from mltop.probes.collect.redaction.process import settings_of
from mltop.probes.collect.redaction.values import without_tokens
from mltop.probes.collect.sysfile import read_known, read_text
from mltop.probes.collect.timing import Pace
from mltop.probes.model import UNLIMITED, Gap, RankSample
from mltop.probes.model.units import counted

# Which versions of Python, torch, NCCL, CUDA and their like a rank runs with, without asking it. The libraries that it
# has mapped tell where its packages lie; beside them stand folders that are called ``torch-2.8.0.dist-info`` (PEP
# 376). Some libraries have their version in their file's name. All of it is read by one thread of its own, and whoever
# asks never waits for it: the folder of packages may be on a file server that does not answer. Source:
# proc_pid_maps(5), proc_pid_root(5).

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
            _start_reader(os.getpid())
            _asked.put(self)

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


_asked: SimpleQueue[Versions] = SimpleQueue()


@cache
def _start_reader(_own_pid: int) -> None:
    """The thread that reads, from the first question on; another one after a fork."""
    threading.Thread(target=_read_on, name="versions", daemon=True).start()


def _read_on() -> None:
    while True:
        _asked.get().read()


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


RECHECK_S = 30.0
# Version 1 of cgroups has one hierarchy per controller: jobs are told apart best by memory's, then by the processors'.
_FIRST_CHOICES = ("memory", "cpu", "")
_FIELDS = {
    "memlock_limit_bytes": "the limit of locked memory",
    "open_files_limit": "the limit of open files",
    "open_files": "the number of open files",
    "cgroup": "the cgroup",
}


class Details:
    """The details of one rank. ``root``: the /proc to read."""

    def __init__(self, root: str, pid: int) -> None:
        self._root = root
        self._values: dict[str, Any] = {**dict.fromkeys(_FIELDS), "settings": {}}  # of fields of RankSample
        self._image: tuple[bytes, bytes, bytes] | None = None  # at the last look
        self._settings_of: tuple[bytes, bytes, bytes] | None = None  # the image that they were read of
        self._versions = Versions(root, pid)
        # The second time at another moment for each, so that no tick reads them all.
        self._pace = Pace(RECHECK_S * (1 + pid % 30) / 30, RECHECK_S)

    def add_to(self, sample: RankSample, process: Process, now: float) -> None:
        """Fill in the newest known. ``now``: seconds of one clock."""
        if self._pace.is_due(now) or self._image != process.image:
            self._image = process.image
            self._pace.done(now)
            if not process.dead:
                self._read(process.pid)
                self._versions.look(process.image)
        vars(sample).update(self._values, versions=self._versions.newest)

    def _read(self, pid: int) -> None:
        folder = f"{self._root}/{pid}"
        limits, cgroup = read_known(f"{folder}/limits") or b"", read_text(f"{folder}/cgroup")
        self._values["memlock_limit_bytes"] = soft_limit(limits, b"\nMax locked memory")
        self._values["open_files_limit"] = soft_limit(limits, b"\nMax open files")
        self._values["open_files"] = None
        with suppress(OSError):
            counts = _size_counts(self._root)
            self._values["open_files"] = os.stat(f"{folder}/fd").st_size if counts else len(os.listdir(f"{folder}/fd"))
        self._values["cgroup"] = None if cgroup is None else without_tokens(cgroup_of(cgroup))
        if self._settings_of != self._image:
            # Once after each exec: nothing else changes them, but a title may be written over them later.
            with suppress(OSError):
                self._values["settings"] = settings_of(procfs.read_environ(self._root, pid))
                self._settings_of = self._image


@cache
def _size_counts(root: str) -> bool:
    """Since Linux 6.2 the size of the folder is the number of open files: no need to list ten thousand of them."""
    return root == "/proc" and os.stat("/proc/self/fd").st_size > 0


def cgroup_paths(text: str) -> dict[str, str]:
    """/proc/PID/cgroup (cgroups(7)): path by controller, version 2's only hierarchy under ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and path.startswith("/"):
            for name in controllers.split(","):
                paths.setdefault(name, path)
    return paths


def cgroup_of(text: str) -> str:
    """Its path below /sys/fs/cgroup or, in version 1, below /sys/fs/cgroup/memory; "/" when the text names none."""
    paths = cgroup_paths(text)
    return next((paths[name] for name in _FIRST_CHOICES if name in paths), "/")


def soft_limit(data: bytes, label: bytes) -> int | None:
    """A limit in /proc/PID/limits: a number, UNLIMITED, or None when the line is missing or not as expected."""
    at = (b"\n" + data).find(label)
    if at < 0:
        return None
    words = data[at + len(label) - 1 : at + len(label) + 80].split(None, 1)
    if words and words[0] == b"unlimited":
        return UNLIMITED
    return int(words[0]) if words and words[0].isdigit() else None


def missing_details(samples: Sequence[RankSample]) -> Iterator[Gap]:
    """One gap for each of these details that some living rank lacks."""
    for name, words in _FIELDS.items():
        without = [sample for sample in samples if getattr(sample, name) is None and sample.state not in ("Z", "X")]
        if without:
            who = f"{counted(len(without), 'rank')}{named(sample.user for sample in without)}"
            yield permission_gap(name, why=f"{words} of {who} cannot be read")
