"""Single lines that report an end: which rows of the tables a line has, and of which process group it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mltop.probes.collect.logs.rows import Fields, Row
from mltop.probes.collect.logs.rows_of_launchers import LAUNCHERS
from mltop.probes.collect.logs.rows_of_ranks import RANKS

ANCHORS: tuple[Row, ...] = (*RANKS, *LAUNCHERS)
THINNED = re.compile(r"\[repeated \d+x across cluster\]")
_GROUP = re.compile(
    r"\[PG(?: ID)? (?P<id>\d+)(?: PG GUID (?P<guid>[^\s(\]]+))?(?: ?\((?P<name>[^()\]]{0,80})\))? Rank (?P<rank>\d+)\]"
)
_OLD_RANK = re.compile(r"\[Rank (\d+)\]")


def events_in(text: str) -> Iterator[tuple[Row, Fields, bool]]:
    """Each anchor once, in the order of the table; of those with the same words the first. Last: whether it ends
    where the text does: a line that was wrapped or cut off there may have lost the end of a number.
    """
    matched = ""
    for anchor in ANCHORS:
        if anchor.holds == matched or anchor.holds not in text:
            continue
        match = anchor.expression.search(text)
        fields = None if match is None else _plausible(anchor, match)
        if match is not None and fields is not None:
            matched = anchor.holds
            yield anchor, fields, match.end() >= len(text.rstrip())


def _plausible(anchor: Row, match: re.Match[str]) -> Fields | None:
    """The fields; None where a number is none that torch or Slurm would write."""
    try:
        fields = anchor.fields(match)
    except (ValueError, OverflowError):  # thousands of digits, several points
        return None
    launched, ended = fields.get("enqueued"), fields.get("completed")
    if isinstance(launched, int) and isinstance(ended, int) and not -1 <= ended <= launched:
        fields = {**fields, "completed": None}  # torch 2.3 and 2.4 print what is in memory, before the first has ended
    figures = [value for value in fields.values() if isinstance(value, (int, float))]
    return fields if all(abs(value) < _LARGEST for value in figures) else None


_LARGEST = 1 << 62


def group_of(text: str) -> Fields:
    """The process group of a line of c10d, and the rank in it."""
    match = _GROUP.search(text)
    if match is None:
        old = _OLD_RANK.search(text)
        return {"group_rank": int(old[1])} if old else {}
    name = match["name"] or ""
    is_default = name.startswith("default") or match["guid"] == "0" or (not name and match["id"] == "0")
    key = "" if is_default else match["guid"] or f"id {match['id']}"
    return {"group": key, "group_name": name, "group_rank": int(match["rank"])}
