"""All GPUs that this agent has ever seen, by UUID, with what its child has read of them, tier by tier.

A lost one stays, with the time when it was last seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from mltop.probes.collect.nvml import codes, faults
from mltop.probes.collect.nvml.codes import Failure, Reason, is_unsupported, reason_of
from mltop.probes.model import (
    Ecc,
    Fabric,
    Fault,
    Gap,
    GpuProcess,
    GpuSample,
    KernelEvent,
    MigInstance,
    Nvlink,
    NvlinkLink,
    Pcie,
    Remap,
    RemapBanks,
)
from mltop.probes.model.units import counted

IDENTITY = ("name", "pci_bus_id", "minor", "driver", "cuda", "gsp_firmware", "vbios", "serial")
# Read at every poll. A field in two tiers has the value of the later one: static, any other, these in this order.
LAST_TIERS = ("fast", "activity")
PARTS = {"ecc": Ecc, "remap": Remap, "pcie": Pcie, "nvlink": Nvlink, "fabric": Fabric}
_NOTHING: tuple[Any, ...] = (None, [], {})
_Kind = TypeVar("_Kind")


@dataclass(eq=False)
class SlowTiers:
    """What the tiers that are read now and then say together: kept until one of them says something else."""

    values: dict[str, Any]
    fields: dict[str, Any]  # all of GpuSample's, parts as objects
    problems: dict[str, Reason]


@dataclass
class FastTiers:
    """What the last tiers say together, up to the next poll."""

    values: dict[str, Any]
    whole: dict[str, Any]  # fields of GpuSample
    inner: dict[str, dict[str, Any]]  # part -> field -> value


@dataclass(eq=False)
class KnownGpu:
    """One GPU. ``index`` is what users see and never changes; ``nvml_index`` is where NVML has it now."""

    index: int
    nvml_index: int
    uuid: str | None = None
    state: str = "ok"
    error: str | None = None
    error_code: Fault | None = None
    denied: Failure | None = None  # the call that we may not make
    last_seen_at: float | None = None
    values: dict[str, dict[str, Any]] = field(default_factory=dict)  # tier -> field -> value
    problems: dict[str, dict[str, Reason]] = field(default_factory=dict)  # tier -> field -> problem
    _slow: SlowTiers | None = None
    _fast: FastTiers | None = None
    _merged_problems: tuple[tuple[Any, ...], dict[str, Reason]] | None = (
        None  # the newest problems and what they were made of
    )

    def read(self, tiers: dict[str, Any], at: float) -> None:
        """Tiers that were read again take the place of what they said before."""
        for tier, reading in tiers.items():
            self.values[tier] = reading["values"] if tier in LAST_TIERS else with_objects(reading["values"])
            self.problems[tier] = {name: reason_of(fields) for name, fields in reading["problems"].items()}
        self._fast = None
        if not tiers.keys() <= set(LAST_TIERS):
            self._slow = None
        remotes = self.values.get("static", {}).get("nvlink.remotes")
        if remotes and "nvlink" in tiers:
            for link in self.slow().values.get("nvlink.links", ()):
                link.remote = remotes[link.index] if link.index < len(remotes) else None
        self.state, self.error, self.error_code, self.denied, self.last_seen_at = "ok", None, None, None, at

    def fail(self, state: str, error: str, code: Fault = "failed", denied: Failure | None = None) -> None:
        """Unreadable from now on: what it is stays known, what it measured does not."""
        self.state, self.error, self.error_code, self.denied = state, error, code, denied
        static = self.values.get("static", {})
        self.values = {"static": {name: static[name] for name in IDENTITY if name in static}}
        self.problems = {}
        self._slow = self._fast = None

    @property
    def pci_bus_id(self) -> str | None:
        bus_id: str | None = self.values.get("static", {}).get("pci_bus_id")
        return bus_id

    def sample(self) -> GpuSample:
        """Objects of slow tiers are the same in every sample until they are read again: nobody changes them."""
        base, fast = self.slow().fields, self.fast()
        fields = {**base, **fast.whole}
        for part, added in fast.inner.items():
            fields[part] = with_fields(PARTS[part], {**vars(base[part]), **added})
        fields.update(
            index=self.index,
            uuid=self.uuid,
            state=self.state,
            error=self.error,
            error_code=self.error_code or "",
            last_seen_at=self.last_seen_at,
        )
        return with_fields(GpuSample, fields)

    def slow(self) -> SlowTiers:
        """What all tiers but the last ones say."""
        if self._slow is None:
            values = merged(self.values)
            values.pop("nvlink.remotes", None)
            whole, inner = in_parts(values)
            parts = {part: PARTS[part](**fields) for part, fields in inner.items()}
            self._slow = SlowTiers(values, vars(GpuSample(self.index, **whole, **parts)), merged(self.problems))
        return self._slow

    def fast(self) -> FastTiers:
        """What the last tiers say."""
        if self._fast is None:
            values: dict[str, Any] = {}
            for tier in LAST_TIERS:
                values.update(self.values.get(tier, {}))
            self._fast = FastTiers(values, *in_parts(values))
        return self._fast

    def all_problems(self) -> dict[str, Reason]:
        """All tiers' problems by field; a field that some tier knows is no problem. Parts that do not exist are one.

        The same object as before while nothing changes.
        """
        slow, fast = self.slow(), self.fast().values
        last = [self.problems.get(tier, {}) for tier in LAST_TIERS]
        named = {**slow.problems, **last[0], **last[1]}
        solved = [name for name in named if fast.get(name) not in _NOTHING]
        made_of = (slow, solved, *last)
        if self._merged_problems is not None and self._merged_problems[0] == made_of:
            return self._merged_problems[1]
        with_value = {name for values in (slow.values, fast) for name, value in values.items() if value not in _NOTHING}
        problems = {name: problem for name, problem in named.items() if name not in with_value}
        for part in PARTS:
            problems = as_one(part, problems, with_value)
        self._merged_problems = (made_of, problems)
        return problems


def with_fields(kind: type[_Kind], fields: dict[str, Any]) -> _Kind:
    """An object of the model from all of its fields. Its own __init__ takes ten times as long, each second."""
    record = object.__new__(kind)
    record.__dict__ = fields
    return record


def merged(tiers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """By field, of all tiers but the last ones."""
    by_field = dict(tiers.get("static", {}))
    for tier, fields in tiers.items():
        if tier != "static" and tier not in LAST_TIERS:
            by_field.update(fields)
    return by_field


def with_objects(values: dict[str, Any]) -> dict[str, Any]:
    """Lists of dicts as lists of the model's objects, made once."""
    objects = dict(values)
    for name, kind in (("processes", GpuProcess), ("nvlink.links", NvlinkLink), ("mig_instances", MigInstance)):
        if objects.get(name) is not None:
            objects[name] = [kind(**entry) for entry in objects[name]]
    return objects


def in_parts(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """From "busy", "ecc.enabled" and "remap.banks.max" to fields of GpuSample and fields of its parts."""
    whole: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    banks: dict[str, Any] = {}
    for name, value in values.items():
        if "." not in name:
            whole[name] = value
            continue
        part, _, inner = name.partition(".")
        if inner.startswith("banks."):
            banks[inner[len("banks.") :]] = value
        else:
            parts.setdefault(part, {})[inner] = value
    if banks:
        parts.setdefault("remap", {})["banks"] = RemapBanks(**banks)
    return whole, parts


def as_one(part: str, problems: dict[str, Reason], with_value: set[str]) -> dict[str, Reason]:
    """Where nothing of a part is known and all of it is unsupported, that is one problem: of the part."""
    prefix = f"{part}."
    names = [name for name in problems if name == part or name.startswith(prefix)]
    if len(names) < 2 or any(name.startswith(prefix) for name in with_value):
        return problems
    if not all(is_unsupported(problems[name]) for name in names):
        return problems
    rest = {name: problem for name, problem in problems.items() if name not in names}
    rest[part] = problems[part] if part in problems else problems[names[0]]
    return rest


NOWHERE = -1  # nvml_index of a GPU that NVML no longer lists
Problems = list[tuple[int, dict[str, Reason]]]  # the shown index of a GPU, its problems by field (or several: "a,b")


class Registry:
    """Takes the child's answers, gives samples and gaps. Unix times."""

    def __init__(self) -> None:
        self.gpus: list[KnownGpu] = []
        self._gaps_of: Problems = []
        self._gaps: list[Gap] = []

    def merge(self, entries: list[dict[str, Any]], at: float, skipped: frozenset[int]) -> None:
        """Takes in one answer. GPUs that it leaves out although they were not skipped have vanished."""
        answered: list[KnownGpu] = []
        uuids = {gpu.uuid for gpu in self.gpus}
        # Those that are known choose first, then those with a UUID: a board in the place of one that moved is new.
        for entry in sorted(entries, key=lambda entry: (entry["uuid"] is None, entry["uuid"] not in uuids)):
            gpu = self._find(entry, answered)
            gpu.nvml_index = entry["index"]
            answered.append(gpu)
            if "read" in entry:
                gpu.read(entry["read"], at)
                continue
            failure = Failure(*entry["lost"])
            error = faults.lost_error(failure, entry["gone"], gpu.last_seen_at)
            fault = codes.fault(failure.code)
            if entry["gone"] and fault in ("blocked", "failed"):  # a handle that cannot be had is a lost GPU
                fault = "lost"
            denied = failure if fault == "no_permission" else None
            gpu.fail("lost" if entry["gone"] else "error", error, fault, denied)
        for gpu in self.gpus:
            is_skipped = gpu.nvml_index in skipped and gpu.state == "error"
            if not is_skipped and gpu not in answered:
                listed = counted(len(entries) + len(skipped), "GPU")
                seen = faults.last_seen(gpu.last_seen_at)
                gpu.fail("lost", f"GPU is lost: the driver now lists {listed} without it{seen}", "vanished")
                gpu.nvml_index = NOWHERE

    def at_nvml_index(self, nvml_index: int) -> KnownGpu:
        """The GPU at NVML's index. One that was never seen is listed from now on."""
        return next((gpu for gpu in self.gpus if gpu.nvml_index == nvml_index), None) or self._add(nvml_index, None)

    def _find(self, entry: dict[str, Any], answered: list[KnownGpu]) -> KnownGpu:
        uuid, nvml_index = entry["uuid"], entry["index"]
        free = [gpu for gpu in self.gpus if gpu not in answered]
        if uuid is not None:
            for gpu in free:
                if gpu.uuid == uuid:
                    return gpu
            for gpu in free:
                if gpu.uuid is None and gpu.nvml_index == nvml_index:
                    gpu.uuid = uuid
                    return gpu
            return self._in_slot(entry, free) or self._add(nvml_index, uuid)
        for gpu in free:
            if nvml_index in (gpu.nvml_index, gpu.index if gpu.nvml_index == NOWHERE else NOWHERE):
                return gpu
        # Only one GPU is not accounted for, so it is this one wherever NVML lists it now.
        return free[0] if len(free) == 1 else self._add(nvml_index, None)

    def _in_slot(self, entry: dict[str, Any], free: list[KnownGpu]) -> KnownGpu | None:
        """The GPU at the bus id of a new one, which takes its place: a board was changed, or got a new UUID."""
        bus_id = entry.get("read", {}).get("static", {}).get("values", {}).get("pci_bus_id")
        for position, gpu in enumerate(self.gpus):
            if bus_id and gpu.pci_bus_id == bus_id and gpu in free:
                self.gpus[position] = KnownGpu(gpu.index, entry["index"], entry["uuid"])
                return self.gpus[position]
        return None

    def _add(self, nvml_index: int, uuid: str | None) -> KnownGpu:
        taken = {gpu.index for gpu in self.gpus}
        index = nvml_index
        while index in taken:
            index += 1
        gpu = KnownGpu(index, nvml_index, uuid)
        self.gpus.append(gpu)
        self.gpus.sort(key=lambda gpu: gpu.index)
        return gpu

    def event(self, xid: dict[str, Any], at: float) -> KernelEvent:
        """An Xid as the child reports it: ``{"index": NVML's index or None, "code"}``."""
        listed = [gpu for gpu in self.gpus if xid["index"] is not None and gpu.nvml_index == xid["index"]]
        subject = next((gpu.pci_bus_id for gpu in listed if gpu.pci_bus_id), "")
        text = f"NVML reports Xid {xid['code']}" + (f" of the GPU at {subject}" if subject else "")
        return KernelEvent(at, "xid", subject=subject, code=xid["code"], text=text, source="nvml")

    def samples(self) -> list[GpuSample]:
        return [gpu.sample() for gpu in self.gpus]

    def gaps(self) -> list[Gap]:
        """Unknown fields; one gap where all readable GPUs lack a field for the same reason."""
        readable = [(gpu.index, gpu.all_problems()) for gpu in self.gpus if gpu.state == "ok"]
        # One that was made anew may hold the same, but that is rare.
        known = [(index, id(by_field)) for index, by_field in readable]
        if known != [(index, id(by_field)) for index, by_field in self._gaps_of]:
            self._gaps_of, self._gaps = readable, gaps_of(readable)
        return list(self._gaps)

    def denied_gaps(self) -> list[Gap]:
        """GPUs that we may not open: not broken, but not known either."""
        denied: Problems = [(gpu.index, {"": gpu.denied}) for gpu in self.gpus if gpu.denied is not None]
        is_all = len(denied) == len(self.gpus)
        return gaps_of(denied) if is_all else [gap for one in denied for gap in gaps_of([one])]


def gaps_of(problems: Problems) -> list[Gap]:
    """Returns one gap for all GPUs where all lack a field for the same reason, otherwise one for each."""
    lacking: dict[tuple[str, Reason], list[int]] = {}
    for index, by_field in problems:
        for name, reason in by_field.items():
            lacking.setdefault((name, reason), []).append(index)
    gaps = []
    for (name, reason), indexes in lacking.items():
        for which in ["*"] if len(indexes) == len(problems) > 1 else indexes:
            gaps.append(faults.field_gap(name.split(",") if name else (), str(which), reason))
    return gaps
