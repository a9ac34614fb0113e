"""Why a value of one GPU is not known: its gaps by field."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mltop.probes.model import Gap

_OF_A_GPU = re.compile(r"gpu\.(?P<index>\*|\d+)(?:\.(?P<field>.+))?")
_ACTIVITY = frozenset(("sm_active", "sm_occupancy", "tensor_active", "dram_active"))
_FLOATING = frozenset(("fp64_active", "fp32_active", "fp16_active"))
# A gap of the first is one of all the others.
_GROUPS = {"activity": _ACTIVITY | _FLOATING, "activity_source": _ACTIVITY | _FLOATING, "sm_active": _FLOATING}


class GpuGaps:
    """Of all gaps of a node those of one GPU: ``gpu.3.ecc``, ``gpu.*.{fabric,nvlink}``, ``gpu.3``."""

    def __init__(self, gaps: Iterable[Gap], index: int) -> None:
        self.gaps: list[tuple[str, Gap]] = []  # (field, gap); field "" is the whole GPU
        for gap in gaps:
            match = _OF_A_GPU.fullmatch(gap.what)
            if match and match["index"] in ("*", str(index)):
                self.gaps += [(field, gap) for field in _fields(match["field"] or "")]

    def of(self, field: str) -> Gap | None:
        """The gap that says why ``field`` ("ecc.corrected_volatile") is unknown; one about all of ``ecc`` counts."""
        for missing, gap in self.gaps:
            if not missing or field == missing or field.startswith(f"{missing}.") or field in _GROUPS.get(missing, ()):
                return gap
        return None

    def why(self, field: str) -> str:
        """In words, "" when nobody says."""
        gap = self.of(field)
        return gap.why if gap is not None else ""

    def distinct(self) -> list[Gap]:
        """Each once, as they came."""
        return list({id(gap): gap for _, gap in self.gaps}.values())


def _fields(text: str) -> list[str]:
    """ "{a,b}" are two."""
    return text[1:-1].split(",") if text.startswith("{") and text.endswith("}") else [text]
