"""Where the user is when the ranks of one collective are looked at."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.tui.place import Place


@dataclass(frozen=True)
class ProbePlace(Place):
    """``collective``: the key of its row in the table of sizes."""

    collective: str = ""


def ranks_place(collective: str, label: str) -> ProbePlace:
    return ProbePlace("probes", label=label, collective=collective)
