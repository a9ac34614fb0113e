"""MIG instances of a GPU: which there are, their memory, and what each of them does.

An instance costs six calls (memory, one GPM sample, four metrics), a GPU may have seven. So they take turns within a
budget of calls per second: two instances are renewed about every four seconds, seven about every fourteen. Activity is
the average over the time since the instance's turn before.
"""

from __future__ import annotations

import re
import time
from ctypes import byref, c_uint
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml.calls import Calls, NvmlError, UnreadError
from mltop.probes.collect.nvml.codes import Reason
from mltop.probes.collect.nvml.device import TEXT_SIZE, Device, Reading, not_blank
from mltop.probes.collect.nvml.readers import gpm
from mltop.probes.collect.nvml.readers.gpm import Group, Plan, Track

ACTIVITY = Group((gpm.SM, gpm.TENSOR, gpm.DRAM, gpm.OCCUPANCY))
PLAN = Plan((), (ACTIVITY,))
ACTIVITY_FIELDS = tuple(metric.name for metric in PLAN.metrics())
MEMORY_FIELDS = ("memory_used_bytes", "memory_total_bytes")
CALLS_PER_S = 3.0
LARGEST_CREDIT = 30.0
FIRST_CREDIT = 60.0  # the first look may cost more: it is not repeated
RENEW_S = 0.5  # no instance is renewed more often, however often it is asked for
RELIST_S = 20.0  # a new instance shows up within this time; one that is gone at once
# "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG 1c.3g.20gb+me"
_PROFILE = re.compile(r"MIG\s+((?:\d+c\.)?\d+g\.\d+gb\S*)")


class _Instance:
    """One MIG device: its handle, what does not change while it lives, and its newest values."""

    def __init__(self, index: int, device: Device) -> None:
        self.index = index
        self.device = device
        self.identity: dict[str, Any] = {"uuid": device.uuid}
        self.memory: dict[str, Any] = {}
        self.problems: dict[str, Reason] = {}
        self.renewed_s = float("-inf")

    @property
    def gpu_instance(self) -> int | None:
        number: int | None = self.identity.get("gpu_instance")
        return number


class _Parent:
    """A GPU in MIG mode. ``tracks`` by GPU instance id: compute instances of one GPU instance share its counters."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.instances: dict[int, _Instance] = {}
        self.tracks: dict[int, Track] = {}
        self.without_gpm: Reason | None = None
        self.listed_s: float | None = None
        self.credit = FIRST_CREDIT
        self.credited_s = time.monotonic()

    def release(self, keep: frozenset[int | None] = frozenset()) -> None:
        """Free the samples of all GPU instances but these."""
        for gpu_instance in self.tracks.keys() - keep:
            self.tracks.pop(gpu_instance).release()


class MigReader:
    """Lists the instances of GPUs in MIG mode. For one thread. ``relist_s``: how soon a new instance is seen."""

    def __init__(self, calls: Calls, relist_s: float = RELIST_S, calls_per_s: float = CALLS_PER_S) -> None:
        self._calls = calls
        self._relist_s = relist_s
        self._calls_per_s = calls_per_s
        self._gpm = gpm.Gpm(calls)
        self._parents: dict[int, _Parent] = {}

    def read(self, device: Device) -> Reading:
        """``mig_instances``: a list of dicts with the names of MigInstance's fields. Only of a GPU in MIG mode.

        Problems: ``mig_instances`` when there is no list, ``mig_instances.N.FIELD`` of one instance. An instance that
        is gone is no problem: the list is made anew. Raises NvmlError when the GPU or the library is gone.
        """
        reading = Reading()
        reading.attempt(("mig_instances",), partial(self._read, device, reading))
        return reading

    def catch_up(self, device: Device) -> None:
        """Sample the instances of a GPU a second time, whosever turn it is."""
        parent = self._parents.get(device.index)
        for track in parent.tracks.values() if parent is not None and parent.device is device else ():
            try:
                track.poll(time.monotonic())
            except NvmlError as failure:
                if failure.code not in gpm.STALE:
                    raise

    def forget(self, device: Device) -> None:
        """Free what is kept for a GPU that is gone or has left MIG mode, without a call on it."""
        parent = self._parents.pop(device.index, None)
        if parent is not None:
            parent.release()

    def shut_down(self) -> None:
        """Free all samples, before the library is shut down."""
        for parent in list(self._parents.values()):
            self.forget(parent.device)

    def _read(self, device: Device, reading: Reading) -> dict[str, Any]:
        parent = self._parents.get(device.index)
        if parent is None or parent.device is not device:
            self.forget(device)
            parent = self._parents[device.index] = _Parent(device)
        now_s = time.monotonic()
        if parent.listed_s is None or now_s - parent.listed_s >= self._relist_s:
            self._list(parent, now_s)
        if not self._renew(parent, now_s):
            self._list(parent, now_s)
        return {"mig_instances": [describe(parent, entry, reading) for entry in sorted_by_index(parent)]}

    def _list(self, parent: _Parent, now_s: float) -> None:
        """All MIG devices, by their handles as of now: handles may be reused for other instances (nvml.h)."""
        parent.listed_s = None  # until all went well
        before = {entry.device.uuid: entry for entry in parent.instances.values() if entry.device.uuid}
        instances: dict[int, _Instance] = {}
        places = parent.device.uint("nvmlDeviceGetMaxMigDeviceCount")
        for index in range(places):
            device = self._look_up(parent.device, index)
            if device is None:
                continue
            known = before.get(device.uuid or "")
            if known is not None:
                known.device, known.index = device, index
                instances[index] = known
            else:
                instances[index] = identify(_Instance(index, device))
        parent.instances = instances
        parent.release(keep=frozenset(entry.gpu_instance for entry in instances.values()))
        parent.without_gpm = self._gpm.why_not(parent.device)
        parent.listed_s = now_s
        parent.credit -= 1 + places + len(instances)

    def _look_up(self, parent: Device, index: int) -> Device | None:
        """None where there is none. Raises NvmlError."""
        name = "nvmlDeviceGetMigDeviceHandleByIndex"
        handle = pynvml.c_nvmlDevice_t()
        code = parent.code_now(name, c_uint(index), byref(handle))
        if code in gpm.STALE or (code == 0 and not handle):  # NVML dereferences a NULL handle
            return None
        if code:
            raise NvmlError(name, code)
        device = Device(parent.index, handle, self._calls, parent.buffers)
        try:
            device.uuid = device.text("nvmlDeviceGetUUID", TEXT_SIZE)
        except NvmlError as failure:
            if failure.code in gpm.STALE:
                return None
            raise
        return device

    def _renew(self, parent: _Parent, now_s: float) -> bool:
        """As many instances as the credit allows, the oldest first. False when one turned out to be gone."""
        earned = (now_s - parent.credited_s) * self._calls_per_s
        parent.credit = max(parent.credit, min(LARGEST_CREDIT, parent.credit + earned))
        parent.credited_s = now_s
        cost = 1 if parent.without_gpm else 2 + len(ACTIVITY_FIELDS)
        sampled: set[int] = set()
        for instance in sorted(parent.instances.values(), key=lambda entry: entry.renewed_s):
            if parent.credit < cost or now_s - instance.renewed_s < RENEW_S:
                break
            parent.credit -= 1
            instance.renewed_s = now_s
            try:
                instance.memory, instance.problems = read_memory(instance.device)
                if self._sample(parent, instance, now_s, sampled):
                    parent.credit -= cost - 1
            except NvmlError as failure:
                if failure.code not in gpm.STALE:
                    raise
                instance.memory, instance.problems = {}, dict.fromkeys(MEMORY_FIELDS, failure.reason)
                return False
        return True

    def _sample(self, parent: _Parent, instance: _Instance, now_s: float, sampled: set[int]) -> bool:
        """Whether calls were made."""
        gpu_instance = instance.gpu_instance
        if parent.without_gpm or gpu_instance is None or gpu_instance in sampled:
            return False
        sampled.add(gpu_instance)
        track = parent.tracks.get(gpu_instance)
        if track is None:
            track = parent.tracks[gpu_instance] = Track(self._gpm, parent.device, PLAN, gpu_instance)
        return track.poll(now_s)


def sorted_by_index(parent: _Parent) -> list[_Instance]:
    return [parent.instances[index] for index in sorted(parent.instances)]


def identify(instance: _Instance) -> _Instance:
    """What does not change while the instance lives; None for what it does not say. A loss of any kind is raised."""
    device, told = instance.device, Reading()
    told.take("gpu_instance", partial(device.uint, "nvmlDeviceGetGpuInstanceId"))
    told.take("compute_instance", partial(device.uint, "nvmlDeviceGetComputeInstanceId"))
    told.take("name", partial(device.text, "nvmlDeviceGetName", TEXT_SIZE))
    profile = _PROFILE.search(told.values.pop("name", None) or "")
    if profile is not None:
        told.values["name"] = profile[1]
    else:
        told.take("name", partial(profile_by_attributes, device))
    instance.identity.update({name: told.values.get(name) for name in ("gpu_instance", "compute_instance", "name")})
    return instance


def profile_by_attributes(device: Device) -> str:
    """E.g. "1g.10gb", for drivers whose MIG devices have the GPU's name."""
    attributes = pynvml.c_nvmlDeviceAttributes()
    device.call("nvmlDeviceGetAttributes_v2", byref(attributes))
    gigabytes = -(-attributes.memorySizeMB // 1024)
    return f"{attributes.gpuInstanceSliceCount}g.{gigabytes}gb"


def read_memory(device: Device) -> tuple[dict[str, Any], dict[str, Reason]]:
    """Used and total bytes. Raises NvmlError when the instance, the GPU or the library is gone."""
    name = "nvmlDeviceGetMemoryInfo"
    try:
        memory = device.memory()
        return dict(zip(MEMORY_FIELDS, (not_blank(name, memory.used), not_blank(name, memory.total)))), {}
    except UnreadError as error:
        if isinstance(error, NvmlError) and (error.is_loss or error.code in gpm.STALE):
            raise
        return {}, dict.fromkeys(MEMORY_FIELDS, error.reason)


def describe(parent: _Parent, instance: _Instance, reading: Reading) -> dict[str, Any]:
    """One instance as the names of MigInstance; its problems go into ``reading``."""
    where = f"mig_instances.{instance.index}"
    values = {"index": instance.index, **instance.identity, **instance.memory}
    for field, problem in instance.problems.items():
        reading.problems[f"{where}.{field}"] = problem
    if parent.without_gpm is not None:
        reading.problems[activity_of("mig_instances.*")] = parent.without_gpm
        return values
    track = parent.tracks.get(instance.gpu_instance) if instance.gpu_instance is not None else None
    whole = track.problem if track else gpm.STARTING
    if whole is not None:
        reading.problems[activity_of(where)] = whole
    elif track is not None:
        reading.problems.update({f"{where}.{field}": problem for field, problem in track.problems.items()})
        values.update(track.values)
    return values


def activity_of(where: str) -> str:
    """All its fields of activity."""
    return ",".join(f"{where}.{field}" for field in ACTIVITY_FIELDS)
