"""Which GPUs a rank has where NVML lists no process of it: in a container, under MIG, without permission.

The devices that it has open tell it, unless it opened all that it may use, as torch does to count them: then, and
where they cannot be seen, CUDA_VISIBLE_DEVICES and the rank's number on its node. What these numbers count from depends
on who may use which devices: a container and Slurm with ConstrainDevices number anew. Where two readings are possible
neither is reported.

Sources: /proc/PID/fd (proc_pid_fd(5)), /proc/PID/environ, CUDA C++ Programming Guide "CUDA Environment Variables",
NVIDIA Container Toolkit (NVIDIA_VISIBLE_DEVICES), gres.conf(5) and srun(1) of Slurm.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mltop.probes.collect.ranks.access import named, permission_gap
from mltop.probes.collect.ranks.procfs import read_variables
from mltop.probes.collect.sysfile import read_link
from mltop.probes.collect.timing import Pace
from mltop.probes.model import Gap, GpuSample, RankSample
from mltop.probes.model.sample import unplaced
from mltop.probes.model.units import counted
from mltop.probes.system import paths

_DEVICE = re.compile(r"/dev/nvidia(\d{1,3})")
_MOST_LINKS = 2048  # of a process; a context opens its devices before the files of data come
_MOST_DESCRIPTORS = 65536
_PAUSES_S = (2.0, 5.0, 15.0, 60.0)  # between looks: a rank opens its devices when it starts
_NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
)
_OUTSIDE = "run mltop on the host, or start the container with --pid=host"


@dataclass
class Claim:
    """What is known of one rank: its number on the node, the minor numbers of the devices that it has open (None: they
    cannot be seen), its variables. ``has_own``: no other rank of its job on this node has the same
    CUDA_VISIBLE_DEVICES, and there are others. ``is_apart``: in a container.
    """

    local_rank: int | None = None
    opened: frozenset[int] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    has_own: bool = False
    is_apart: bool = False

    @property
    def visible(self) -> str | None:
        return self.environ.get("CUDA_VISIBLE_DEVICES")


@dataclass
class _Watched:
    started_at: float | None
    pace: Pace
    claim: Claim


class GpuDevices:
    """Keep one object. ``root``: another /proc, for copied trees and tests."""

    def __init__(self, root: str | None = None) -> None:
        self._root = paths.proc() if root is None else root
        self._watched: dict[int, _Watched] = {}

    def fill(self, ranks: Sequence[RankSample], gpus: Sequence[GpuSample], now: float) -> list[Gap]:
        """Set ``gpus`` and ``gpus_by`` of the ranks that NVML says nothing of. ``now``: seconds of any one clock.

        Returns gaps about those whose devices cannot be seen, and about processes on GPUs that may be any rank's.
        """
        unlisted = []
        for rank in ranks:
            if rank.gpus:
                rank.gpus_by = "nvml"
            elif gpus and rank.state != "Z":
                unlisted.append(rank)
        self._watched = {rank.pid: self._look(rank, now) for rank in unlisted}
        of_job = Counter(rank.job_key for rank in unlisted)
        claims = {rank.pid: self._watched[rank.pid].claim for rank in unlisted}
        alike = Counter((rank.job_key, claims[rank.pid].visible) for rank in unlisted)
        for rank in unlisted:
            claim = claims[rank.pid]
            claim.local_rank = rank.local_rank
            claim.has_own = alike[rank.job_key, claim.visible] == 1 < of_job[rank.job_key]
            rank.gpus, rank.gpus_by = gpus_of(claim, gpus)
        hidden = [rank for rank in unlisted if not rank.gpus and claims[rank.pid].opened is None]
        why = f"the open devices of {counted(len(hidden), 'rank')}{named(rank.user for rank in hidden)} cannot be read"
        gaps = [permission_gap("gpus", why=f"{why}, and NVML lists no process of theirs")] if hidden else []
        foreign = {process.pid for gpu in gpus for process in unplaced(gpu, ranks)}
        if foreign:
            why = f"{counted(len(foreign), 'GPU process id')} cannot be matched with a process: another PID namespace"
            gaps.append(Gap.about("gpu processes", why=why, fix=_OUTSIDE))
        return gaps

    def _look(self, rank: RankSample, now: float) -> _Watched:
        watched = self._watched.get(rank.pid)
        if watched is None or watched.started_at != rank.started_at:
            folder, own = f"{self._root}/{rank.pid}", f"{self._root}/self"
            is_apart = read_link(f"{folder}/ns/mnt") != read_link(f"{own}/ns/mnt")
            environ = read_variables(self._root, rank.pid, _NAMES)
            watched = _Watched(rank.started_at, Pace(*_PAUSES_S), Claim(environ=environ, is_apart=is_apart))
        if watched.pace.is_due(now):
            watched.pace.done(now)
            watched.claim.opened = _opened(f"{self._root}/{rank.pid}/fd")
        return watched


def _opened(folder: str) -> frozenset[int] | None:
    try:
        if os.stat(folder).st_size > _MOST_DESCRIPTORS:
            return None
        names = sorted((name for name in os.listdir(folder) if name.isdigit()), key=int)
    except OSError:
        return None
    links = (read_link(f"{folder}/{name}") for name in names[:_MOST_LINKS])
    return frozenset(int(found[1]) for link in links if link is not None and (found := _DEVICE.fullmatch(link)))


def gpus_of(claim: Claim, gpus: Sequence[GpuSample]) -> tuple[list[int], str]:
    """Indexes of its GPUs, and how they are known (as in RankSample.gpus_by); nothing where nothing proves it. Pure."""
    if claim.opened == frozenset():
        return [], ""  # what it might use is no proof that it does
    of_minor = {gpu.minor: gpu.index for gpu in gpus if gpu.minor is not None}
    opened = sorted(of_minor[minor] for minor in claim.opened or () if minor in of_minor)
    if len(opened) == 1:
        return opened, "open devices"
    usable = _usable(claim, opened, gpus)
    visible = _visible(claim, opened, usable, gpus)
    named = _by_environment(claim, visible)
    if named and (not opened or set(named) <= set(opened)):
        return named, "environment"
    most = usable if visible is None else visible
    if opened and most is not None and set(opened) < set(most):
        return opened, "open devices"  # several, but not all that it may use
    return [], ""


def _by_environment(claim: Claim, visible: list[int] | None) -> list[int]:
    """What its variables and its number on the node say."""
    if visible is None or len(visible) == 1 or claim.has_own:
        return visible or []
    number = claim.local_rank
    return [visible[number]] if number is not None and number < len(visible) else []


def _visible(claim: Claim, opened: list[int], usable: list[int] | None, gpus: Sequence[GpuSample]) -> list[int] | None:
    """The GPUs that CUDA numbers from 0 for it, in its order; None: unknown."""
    text = claim.visible
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if text is not None and not all(_is_number(word) for word in words):
        named = [_named(word, gpus) for word in words]
        return (
            None if None in named or len(set(named)) < len(named) else [index for index in named if index is not None]
        )
    if len({gpu.name for gpu in gpus}) > 1 and claim.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return None  # CUDA counts the fastest first
    if text is None or usable is None:
        return usable
    numbers = [int(word) for word in words]
    among = [usable[number] for number in numbers if number < len(usable)]
    of_all = [number for number in numbers if number in usable and not claim.is_apart]
    readings = [found for found in (among, of_all) if len(set(found)) == len(numbers)]
    if len(readings) == 2 and among != of_all:
        readings = [found for found in readings if opened and set(found) <= set(opened)]
    return readings[0] if readings and all(found == readings[0] for found in readings) else None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 4


def _named(word: str, gpus: Sequence[GpuSample]) -> int | None:
    """Of a GPU's UUID, or the head of it, or of a MIG instance's (MIG-UUID; of old drivers MIG-GPU-UUID/1/0)."""
    if len(word) < 8 or not word.startswith(("GPU-", "MIG-")):
        return None
    whole = word[len("MIG-") :].partition("/")[0] if word.startswith("MIG-GPU-") else word
    found = {
        gpu.index
        for gpu in gpus
        if (gpu.uuid or "").startswith(whole) or any((part.uuid or "") == word for part in gpu.mig_instances)
    }
    return found.pop() if len(found) == 1 else None


def _usable(claim: Claim, opened: list[int], gpus: Sequence[GpuSample]) -> list[int] | None:
    """The GPUs that the rank may use, ascending; None: unknown."""
    everything = sorted(gpu.index for gpu in gpus)
    if not claim.is_apart:
        given = claim.environ.get("SLURM_STEP_GPUS") or claim.environ.get("SLURM_JOB_GPUS")
        return _listed(given, everything, gpus) if given else everything
    given = claim.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    return everything if given == "all" else _listed(given, everything, gpus) or opened or None


def _listed(words: str, everything: list[int], gpus: Sequence[GpuSample]) -> list[int] | None:
    """ "0,2-3" of Slurm; numbers and UUIDs of a container."""
    indexes: set[int] = set()
    for word in words.split(","):
        first, _, last = word.strip().partition("-")
        index = None if _is_number(first) else _named(word.strip(), gpus)
        if _is_number(first):
            indexes.update(range(int(first), int(last if _is_number(last) else first) + 1))
        elif index is None:
            return None
        else:
            indexes.add(index)
    return sorted(indexes) if indexes and indexes <= set(everything) else None
