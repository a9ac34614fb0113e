"""All GPUs that this agent has ever seen, by UUID. A lost one stays, with the time when it was last seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mltop.probes.collect.nvml import words
from mltop.probes.collect.nvml.known import Known
from mltop.probes.model import Gap, GpuSample, KernelEvent

NOWHERE = -1  # nvml_index of a GPU that NVML no longer lists


class Registry:
    """Takes the child's answers, gives samples and gaps. Unix times."""

    def __init__(self) -> None:
        self._known: list[Known] = []
        self._gaps_of: Problems = []
        self._gaps: list[Gap] = []

    def __len__(self) -> int:
        return len(self._known)

    def merge(self, entries: list[dict[str, Any]], at: float, skipped: frozenset[int]) -> None:
        """One answer. GPUs that it leaves out although they were not skipped have vanished."""
        answered: list[Known] = []
        uuids = {known.uuid for known in self._known}
        # Those that are known choose first, then those with a UUID: a board in the place of one that moved is new.
        for entry in sorted(entries, key=lambda entry: (entry["uuid"] is None, entry["uuid"] not in uuids)):
            known = self._find(entry, answered)
            known.nvml_index = entry["index"]
            answered.append(known)
            if "read" in entry:
                known.read(entry["read"], at)
            else:
                call, code = entry["lost"]
                error = words.lost_error(call, code, entry["gone"], known.last_seen_at)
                fault = words.lost_fault(code, entry["gone"])
                denied = entry["lost"] if fault == "no_permission" else None
                known.fail("lost" if entry["gone"] else "error", error, fault, denied)
        for known in self._known:
            is_skipped = known.nvml_index in skipped and known.state == "error"
            if not is_skipped and not any(known is other for other in answered):
                error = words.vanished_error(len(entries) + len(skipped), known.last_seen_at)
                known.fail("lost", error, "vanished")
                known.nvml_index = NOWHERE

    def at_nvml_index(self, nvml_index: int) -> Known:
        """The GPU at NVML's index. One that was never seen is listed from now on."""
        for known in self._known:
            if known.nvml_index == nvml_index:
                return known
        return self._add(nvml_index, None)

    def shown_index(self, nvml_index: int) -> int:
        """How users know the GPU that NVML lists here."""
        for known in self._known:
            if known.nvml_index == nvml_index:
                return known.index
        return nvml_index

    def all(self) -> list[Known]:
        return self._known

    def _find(self, entry: dict[str, Any], answered: list[Known]) -> Known:
        uuid, nvml_index = entry["uuid"], entry["index"]
        free = [known for known in self._known if not any(known is other for other in answered)]
        if uuid is not None:
            for known in free:
                if known.uuid == uuid:
                    return known
            for known in free:
                if known.uuid is None and known.nvml_index == nvml_index:
                    known.uuid = uuid
                    return known
            return self._in_slot(entry, free) or self._add(nvml_index, uuid)
        for known in free:
            if nvml_index in (known.nvml_index, known.index if known.nvml_index == NOWHERE else NOWHERE):
                return known
        # Only one GPU is not accounted for, so it is this one wherever NVML lists it now.
        return free[0] if len(free) == 1 else self._add(nvml_index, None)

    def _in_slot(self, entry: dict[str, Any], free: list[Known]) -> Known | None:
        """The GPU at the bus id of a new one, which takes its place: a board was changed, or got a new UUID."""
        bus_id = entry.get("read", {}).get("static", {}).get("values", {}).get("pci_bus_id")
        for place, known in enumerate(self._known):
            own = known.values.get("static", {}).get("pci_bus_id")
            if bus_id and own == bus_id and any(known is one for one in free):
                self._known[place] = Known(known.index, entry["index"], entry["uuid"])
                return self._known[place]
        return None

    def _add(self, nvml_index: int, uuid: str | None) -> Known:
        taken = {known.index for known in self._known}
        index = nvml_index
        while index in taken:
            index += 1
        known = Known(index, nvml_index, uuid)
        self._known.append(known)
        self._known.sort(key=lambda known: known.index)
        return known

    def event(self, xid: dict[str, Any], at: float) -> KernelEvent:
        """An Xid as the child reports it: ``{"index": NVML's index or None, "code"}``."""
        bus_ids = [
            known.values.get("static", {}).get("pci_bus_id")
            for known in self._known
            if xid["index"] is not None and known.nvml_index == xid["index"]
        ]
        subject = next((bus_id for bus_id in bus_ids if bus_id), "")
        text = words.xid_text(xid["code"], subject)
        return KernelEvent(at, "xid", subject=subject, code=xid["code"], text=text, source="nvml")

    def samples(self) -> list[GpuSample]:
        return [known.sample() for known in self._known]

    def gaps(self) -> list[Gap]:
        """Unknown fields; one gap where all readable GPUs lack a field for the same reason."""
        readable = [(known.index, known.all_problems()) for known in self._known if known.state == "ok"]
        if not is_same(readable, self._gaps_of):
            self._gaps_of, self._gaps = readable, gaps_of(readable)
        return list(self._gaps)

    def denied_gaps(self) -> list[Gap]:
        """GPUs that we may not open: not broken, but not known either."""
        denied = [(known.index, {"": known.denied}) for known in self._known if known.denied is not None]
        gaps = gaps_of(denied) if len(denied) == len(self._known) else [gap for one in denied for gap in gaps_of([one])]
        return [replace(gap, what=gap.what.rstrip(".")) for gap in gaps]


Problems = list[tuple[int, dict[str, Any]]]  # the shown index of a GPU, its problems by field


def is_same(problems: Problems, before: Problems) -> bool:
    """Of the same GPUs the same objects: an object that was made anew may hold the same, but that is rare."""
    return len(problems) == len(before) and all(
        one[0] == other[0] and one[1] is other[1] for one, other in zip(problems, before)
    )


def gaps_of(problems: Problems) -> list[Gap]:
    lacking: dict[tuple[str, str], list[int]] = {}
    examples: dict[tuple[str, str], Any] = {}
    for index, by_field in problems:
        for name, problem in by_field.items():
            key = (name, str(problem))
            lacking.setdefault(key, []).append(index)
            examples[key] = problem
    gaps = []
    for key, indexes in lacking.items():
        folded = len(indexes) == len(problems) > 1
        for which in ["*"] if folded else indexes:
            gaps.append(words.field_gap(f"gpu.{which}.{key[0]}", examples[key]))
    return gaps
