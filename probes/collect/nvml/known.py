"""One GPU as the agent knows it: what its child has read of it, tier by tier, as one GpuSample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mltop.probes.collect.nvml import words
from mltop.probes.model import (
    Ecc,
    Fabric,
    GpuProcess,
    GpuSample,
    MigInstance,
    Nvlink,
    NvlinkLink,
    Pcie,
    Remap,
    RemapBanks,
)

IDENTITY = ("name", "pci_bus_id", "driver", "cuda", "gsp_firmware", "vbios", "serial")
# A field in two tiers has the value of the later one. Those that are not named come in between.
FIRST_TIERS = ("static",)
LAST_TIERS = ("fast", "activity")
PARTS = {"ecc": Ecc, "remap": Remap, "pcie": Pcie, "nvlink": Nvlink, "fabric": Fabric}
_NOTHING: tuple[Any, ...] = (None, [], {})
_TRAFFIC = ("rx_bytes_per_s", "tx_bytes_per_s")


@dataclass
class Known:
    """One GPU. ``index`` is what users see and never changes; ``nvml_index`` is where NVML has it now."""

    index: int
    nvml_index: int
    uuid: str | None = None
    state: str = "ok"
    error: str | None = None
    last_seen_at: float | None = None
    values: dict[str, dict[str, Any]] = field(default_factory=dict)  # tier -> field -> value
    problems: dict[str, dict[str, Any]] = field(default_factory=dict)  # tier -> field -> problem

    def read(self, tiers: dict[str, Any], at: float) -> None:
        """Tiers that were read again take the place of what they said before."""
        for tier, reading in tiers.items():
            self.values[tier] = with_objects(reading["values"])
            self.problems[tier] = reading["problems"]
        remotes = self.values.get("static", {}).get("nvlink.remotes")
        if remotes and ("nvlink" in tiers or "nvlink_calls" in tiers):
            for link in self.all_values().get("nvlink.links", ()):
                link.remote = remotes[link.index] if link.index < len(remotes) else None
        self.state, self.error, self.last_seen_at = "ok", None, at

    def fail(self, state: str, error: str) -> None:
        """Unreadable from now on: what it is stays known, what it measured does not."""
        self.state, self.error = state, error
        static = self.values.get("static", {})
        self.values = {"static": {name: static[name] for name in IDENTITY if name in static}}
        self.problems = {}

    def sample(self) -> GpuSample:
        """Objects of slow tiers are the same in every sample until they are read again: nobody changes them."""
        return GpuSample(
            index=self.index,
            uuid=self.uuid,
            state=self.state,
            error=self.error,
            last_seen_at=self.last_seen_at,
            **in_parts(self.all_values()),
        )

    def all_values(self) -> dict[str, Any]:
        """By field, of all tiers."""
        merged: dict[str, Any] = {}
        for tier in order(self.values):
            merged.update(self.values[tier])
        for link, ways in (merged.pop("activity_rates", None) or {}).items():
            merged.update({f"{link}.{name}": rate for name, rate in zip(_TRAFFIC, ways) if rate is not None})
        merged.pop("nvlink.remotes", None)
        return merged

    def all_problems(self) -> dict[str, Any]:
        """By field, of all tiers; a field that some tier knows is no problem. Parts that do not exist are one."""
        values = self.all_values()
        found: dict[str, Any] = {}
        for tier in order(self.problems):
            found.update(self.problems[tier])
        found = {name: problem for name, problem in found.items() if values.get(name) in _NOTHING}
        for part in PARTS:
            found = as_one(part, found, values)
        return found


def order(tiers: dict[str, Any]) -> list[str]:
    between = [tier for tier in tiers if tier not in FIRST_TIERS and tier not in LAST_TIERS]
    wanted = (*FIRST_TIERS, *between, *LAST_TIERS)
    return [tier for tier in wanted if tier in tiers]


def with_objects(values: dict[str, Any]) -> dict[str, Any]:
    """Lists of dicts as lists of the model's objects, made once."""
    made = dict(values)
    for name, kind in (("processes", GpuProcess), ("nvlink.links", NvlinkLink), ("mig_instances", MigInstance)):
        if made.get(name) is not None:
            made[name] = [kind(**entry) for entry in made[name]]
    return made


def in_parts(values: dict[str, Any]) -> dict[str, Any]:
    """From "ecc.enabled" and "remap.banks.max" to GpuSample's parts."""
    whole: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    banks: dict[str, Any] = {}
    for name, value in values.items():
        part, _, inner = name.partition(".")
        if not inner:
            whole[name] = value
        elif inner.startswith("banks."):
            banks[inner[len("banks.") :]] = value
        else:
            parts.setdefault(part, {})[inner] = value
    if banks:
        parts.setdefault("remap", {})["banks"] = RemapBanks(**banks)
    whole.update({part: PARTS[part](**inner) for part, inner in parts.items()})
    return whole


def as_one(part: str, problems: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Where nothing of a part is known and all of it is unsupported, that is one problem: of the part."""
    prefix = f"{part}."
    names = [name for name in problems if name == part or name.startswith(prefix)]
    if len(names) < 2 or any(value not in _NOTHING for name, value in values.items() if name.startswith(prefix)):
        return problems
    if not all(words.is_unsupported(problems[name]) for name in names):
        return problems
    rest = {name: problem for name, problem in problems.items() if name not in names}
    rest[part] = problems[part] if part in problems else problems[names[0]]
    return rest
