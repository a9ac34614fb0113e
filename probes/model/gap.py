"""What could not be read: which values, why, and what would fix it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mltop.probes.model.vocabulary import GapCode, GapKind


@dataclass
class Gap:
    """Something that could not be read: ``what`` (e.g. ``gpu.3.power_w``), ``why``, and ``fix`` (a command or "").

    What it is about, as data: ``fields`` ("power_w", "nvlink.errors"; none: all) of the ``item`` (a GPU's index, a
    port, a PCI address or "{several,of,them}", a node, folded ranks; "*": each of them, "": there is one only) of
    ``source`` (gpu, host, links, pci, ranks, nvml, kernel_log, node, rank, …). Programs go by these and by ``kind`` and
    ``code``, never by the words.
    """

    what: str
    why: str
    fix: str = ""
    kind: GapKind = "unknown"
    code: GapCode = ""
    source: str = ""
    item: str = ""
    fields: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """A recording of an older version has ``what`` alone, or took several PCI addresses for a field; where both are
        there and differ, ``what`` counts.
        """
        is_old = not self.source or any("{" in name for name in self.fields)
        if is_old or self.what != subject_text(self.source, self.item, self.fields):
            self.source, self.item, fields = _subject(self.what[:_LONGEST_SUBJECT])
            self.fields = list(fields)

    @classmethod
    def about(
        cls,
        source: str,
        *fields: str,
        why: str,
        item: str = "",
        fix: str = "",
        kind: GapKind = "unknown",
        code: GapCode = "",
    ) -> Gap:
        return cls(subject_text(source, item, fields), why, fix, kind, code, source, item, list(fields))

    @property
    def items(self) -> list[str]:
        return self.item.strip("{}").split(",")


def subject_text(source: str, item: str, fields: Sequence[str]) -> str:
    """``gpu.3.power_w``; of several fields ``gpu.*.{sm_active,tensor_active}``."""
    whole = f"{source}.{item}" if item else source
    if len(fields) <= 1:
        return ".".join((whole, *fields))
    heads = {name.rpartition(".")[0] for name in fields}
    head = f"{heads.pop()}." if len(heads) == 1 and "" not in heads else ""
    return f"{whole}.{head}{{{','.join(name[len(head) :] for name in fields)}}}"


_LONGEST_SUBJECT = 4_096  # characters: a node may tell any
_PCI_ADDRESS = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\{[0-9a-f:.,]+\})(?:\.(.*))?")
_OF_ALL_PORTS = ("rates", "infiniband", "ethernet")


@lru_cache(maxsize=1024)
def _subject(what: str) -> tuple[str, str, tuple[str, ...]]:
    """(source, item, fields) of ``what``, as ``subject_text`` writes it; "host.a, host.b" has the fields of both."""
    first, _, others = what.partition(", ")
    source, _, rest = first.partition(".")
    item, fields = _item_and_fields(source, rest)
    for other in others.split(", ") if others else ():
        fields += _subject(other)[2]
    return source, item, fields


def _item_and_fields(source: str, rest: str) -> tuple[str, tuple[str, ...]]:
    if source in ("node", "stacks"):
        return rest, ()
    item = ""
    address = _PCI_ADDRESS.fullmatch(rest) if source == "pci" else None
    if address:
        item, rest = address[1], address[2] or ""
    elif source in ("gpu", "rank") or (source == "links" and rest not in _OF_ALL_PORTS):
        item, _, rest = rest.partition(".")
    head, brace, tail = rest.partition("{")
    if brace and tail.endswith("}"):
        return item, tuple(f"{head}{name}" for name in tail[:-1].split(","))
    return item, (rest,) if rest else ()


_ACTIVITY = frozenset(("sm_active", "sm_occupancy", "tensor_active", "dram_active"))
_FLOATING = frozenset(("fp64_active", "fp32_active", "fp16_active"))
# A gap of the first is one of all the others.
_GROUPS = {"activity": _ACTIVITY | _FLOATING, "activity_source": _ACTIVITY | _FLOATING, "sm_active": _FLOATING}


class GpuGaps:
    """Those of a node's gaps that are about one GPU."""

    def __init__(self, gaps: Iterable[Gap], index: int) -> None:
        self.gaps: list[tuple[str, Gap]] = []  # (field, gap); field "" is the whole GPU
        for gap in gaps:
            if gap.source == "gpu" and gap.item in ("*", str(index)):
                self.gaps += [(field, gap) for field in gap.fields or [""]]

    def of(self, field: str) -> Gap | None:
        """The gap that says why ``field`` ("ecc.corrected_volatile") is unknown; one about all of ``ecc`` counts."""
        for missing, gap in self.gaps:
            if not missing or field == missing or field.startswith(f"{missing}.") or field in _GROUPS.get(missing, ()):
                return gap
        return None

    def why(self, field: str) -> str:
        """Why ``field`` is unknown, "" when nobody says."""
        gap = self.of(field)
        return gap.why if gap is not None else ""

    def distinct(self) -> list[Gap]:
        """Each gap once, as they came."""
        return list({id(gap): gap for _, gap in self.gaps}.values())
