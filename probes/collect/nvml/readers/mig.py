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
from mltop.probes.collect.nvml.device import TEXT_SIZE, Device, Reading, Structure, not_blank
from mltop.probes.collect.nvml.readers import gpm
from mltop.probes.collect.nvml.readers.gpm import Group, Plan, Track

ACTIVITY = Group((gpm.SM, gpm.TENSOR, gpm.DRAM, gpm.OCCUPANCY))
PLAN = Plan(ACTIVITY)
ACTIVITY_FIELDS = tuple(metric.name for metric in PLAN.metrics)
MEMORY_FIELDS = ("memory_used_bytes", "memory_total_bytes")
CALLS_PER_S = 3.0
LARGEST_CREDIT = 30.0
FIRST_CREDIT = 60.0  # the first look may cost more: it is not repeated
RENEW_S = 0.5  # no instance is renewed more often, however often it is asked for
RELIST_S = 20.0  # a new instance shows up within this time; one that is gone at once
_MEMORY = Structure("nvmlDeviceGetMemoryInfo", "c_nvmlMemory_t")
_ATTRIBUTES = Structure("nvmlDeviceGetAttributes_v2", "c_nvmlDeviceAttributes")
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


class Instances:
    """Those of one GPU. ``tracks`` by GPU instance id: compute instances of one GPU instance share its counters."""

    def __init__(self) -> None:
        self.instances: list[_Instance] = []  # by index
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
        self._relist_s = relist_s
        self._calls_per_s = calls_per_s
        self._gpm = gpm.Gpm(calls)

    def read(self, device: Device) -> Reading:
        """``mig_instances``: a list of dicts with the names of MigInstance's fields. Only of a GPU in MIG mode.

        Problems: ``mig_instances`` when there is no list, ``mig_instances.N.FIELD`` of one instance. An instance that
        is gone is no problem: the list is made anew.
        """
        reading = Reading()
        reading.attempt(("mig_instances",), partial(self._read, device, reading))
        return reading

    def catch_up(self, device: Device) -> None:
        """Sample the instances of a GPU a second time, whosever turn it is."""
        for track in device.state(Instances).tracks.values():
            try:
                track.poll(time.monotonic())
            except NvmlError as failure:
                if failure.code not in gpm.STALE:
                    raise

    def _read(self, gpu: Device, reading: Reading) -> dict[str, Any]:
        state = gpu.state(Instances)
        now_s = time.monotonic()
        if state.listed_s is None or now_s - state.listed_s >= self._relist_s:
            self._list(gpu, state, now_s)
        if not self._renew(gpu, state, now_s):
            self._list(gpu, state, now_s)
        return {"mig_instances": [describe(state, instance, reading) for instance in state.instances]}

    def _list(self, gpu: Device, state: Instances, now_s: float) -> None:
        """All MIG devices, by their handles as of now: handles may be reused for other instances (nvml.h)."""
        state.listed_s = None  # until all went well
        before = {instance.device.uuid: instance for instance in state.instances if instance.device.uuid}
        instances: list[_Instance] = []
        most = gpu.uint("nvmlDeviceGetMaxMigDeviceCount")
        for index in range(most):
            device = look_up(gpu, index)
            if device is None:
                continue
            instance = before.get(device.uuid or "")
            if instance is None:
                instance = identify(_Instance(index, device))
            instance.device, instance.index = device, index
            instances.append(instance)
        state.instances = instances
        state.release(keep=frozenset(instance.identity["gpu_instance"] for instance in instances))
        state.without_gpm = self._gpm.why_not(gpu)
        state.listed_s = now_s
        state.credit -= 1 + most + len(instances)

    def _renew(self, gpu: Device, state: Instances, now_s: float) -> bool:
        """As many instances as the credit allows, the oldest first. False when one turned out to be gone."""
        earned = (now_s - state.credited_s) * self._calls_per_s
        state.credit = max(state.credit, min(LARGEST_CREDIT, state.credit + earned))
        state.credited_s = now_s
        cost = 1 if state.without_gpm else 2 + len(ACTIVITY_FIELDS)
        sampled: set[int] = set()
        for instance in sorted(state.instances, key=lambda instance: instance.renewed_s):
            if state.credit < cost or now_s - instance.renewed_s < RENEW_S:
                break
            state.credit -= 1
            instance.renewed_s = now_s
            try:
                instance.memory, instance.problems = read_memory(instance.device)
                if self._sample(gpu, state, instance.identity["gpu_instance"], now_s, sampled):
                    state.credit -= cost - 1
            except NvmlError as failure:
                if failure.code not in gpm.STALE:
                    raise
                instance.memory, instance.problems = {}, dict.fromkeys(MEMORY_FIELDS, failure.reason)
                return False
        return True

    def _sample(self, gpu: Device, state: Instances, gpu_instance: int | None, now_s: float, sampled: set[int]) -> bool:
        """Whether calls were made."""
        if state.without_gpm or gpu_instance is None or gpu_instance in sampled:
            return False
        sampled.add(gpu_instance)
        track = state.tracks.get(gpu_instance)
        if track is None:
            track = state.tracks[gpu_instance] = Track(self._gpm, gpu, PLAN, gpu_instance)
        return track.poll(now_s)


def look_up(gpu: Device, index: int) -> Device | None:
    """A MIG device, None where there is none. Raises NvmlError."""
    name = "nvmlDeviceGetMigDeviceHandleByIndex"
    handle = pynvml.c_nvmlDevice_t()
    code = gpu.code_now(name, c_uint(index), byref(handle))
    if code in gpm.STALE or (code == 0 and not handle):  # NVML dereferences a NULL handle
        return None
    if code:
        raise NvmlError(name, code)
    device = Device(gpu.index, handle, gpu.calls)
    try:
        device.uuid = device.text("nvmlDeviceGetUUID", TEXT_SIZE)
    except NvmlError as failure:
        if failure.code in gpm.STALE:
            return None
        raise
    return device


def identify(instance: _Instance) -> _Instance:
    """What does not change while the instance lives; None for what it does not say. A loss of any kind is raised."""
    device, reading = instance.device, Reading()
    reading.take("gpu_instance", partial(device.uint, "nvmlDeviceGetGpuInstanceId"))
    reading.take("compute_instance", partial(device.uint, "nvmlDeviceGetComputeInstanceId"))
    reading.take("name", partial(device.text, "nvmlDeviceGetName", TEXT_SIZE))
    profile = _PROFILE.search(reading.values.pop("name", None) or "")

    def name_by_attributes() -> str:
        """E.g. "1g.10gb", for drivers whose MIG devices have the GPU's name."""
        attributes = _ATTRIBUTES.read(device)
        return f"{attributes.gpuInstanceSliceCount}g.{-(-attributes.memorySizeMB // 1024)}gb"

    reading.take("name", name_by_attributes if profile is None else lambda: profile[1])
    instance.identity.update({name: reading.values.get(name) for name in ("gpu_instance", "compute_instance", "name")})
    return instance


def read_memory(device: Device) -> tuple[dict[str, Any], dict[str, Reason]]:
    """Used and total bytes. Raises NvmlError when the instance, the GPU or the library is gone."""
    name = "nvmlDeviceGetMemoryInfo"
    try:
        memory = _MEMORY.read(device)
        return dict(zip(MEMORY_FIELDS, (not_blank(name, memory.used), not_blank(name, memory.total)))), {}
    except UnreadError as error:
        if isinstance(error, NvmlError) and (error.is_loss or error.code in gpm.STALE):
            raise
        return {}, dict.fromkeys(MEMORY_FIELDS, error.reason)


def describe(state: Instances, instance: _Instance, reading: Reading) -> dict[str, Any]:
    """One instance as the names of MigInstance; its problems go into ``reading``."""
    where = f"mig_instances.{instance.index}"
    values = {"index": instance.index, **instance.identity, **instance.memory}
    for field, problem in instance.problems.items():
        reading.problems[f"{where}.{field}"] = problem
    track = state.tracks.get(instance.identity["gpu_instance"])
    whole = state.without_gpm or (track.problem if track else gpm.STARTING)
    if whole is not None:
        which = "mig_instances.*" if state.without_gpm else where
        reading.problems[",".join(f"{which}.{field}" for field in ACTIVITY_FIELDS)] = whole
    elif track is not None:
        reading.problems.update({f"{where}.{field}": problem for field, problem in track.problems.items()})
        values.update(track.values)
    return values
