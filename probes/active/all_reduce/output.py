"""What ranks print: NCCL's settings and warnings as notes, the last lines of a rank that failed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mltop.probes.active import child
from mltop.probes.active.all_reduce.ranks import Ranks
from mltop.probes.model.probe import ProbeEvent

CHATTER = "[Gloo] Rank "  # how many peers it is connected to
MOST_SETTINGS, MOST_WARNINGS = 200, 50
LAST = 8
# "host:4711:4720 [0] NCCL INFO Channel 00/02 : 0 1": what stands before differs from rank to rank.
_NCCL = re.compile(r"\bNCCL (?P<kind>[A-Z]+) (?P<text>.*)")


class Output:
    """``first_rank``: this node's first, of all ranks. Settings are told of that one: the others' are alike."""

    def __init__(self, first_rank: int, is_nccl: bool) -> None:
        self._first_rank = first_rank
        self._is_nccl = is_nccl
        self._settings: set[str] = set()
        self._warnings: set[str] = set()

    def line(self, local: int, line: str) -> None:
        found = _NCCL.search(line) if self._is_nccl else None
        if found is None:
            return
        rank, text = self._first_rank + local, found["text"]
        if found["kind"] == "INFO":
            if local == 0 and text not in self._settings and len(self._settings) < MOST_SETTINGS:
                self._settings.add(text)
                child.say(ProbeEvent("note", rank=rank, text=line, data={"settings": line}))
        elif text not in self._warnings and len(self._warnings) < MOST_WARNINGS:
            self._warnings.add(text)
            child.say(ProbeEvent("note", rank=rank, text=line))

    def say_last(self, ranks: Ranks, failed: Iterable[int | None]) -> None:
        """The last lines of those of this node's ranks that failed."""
        for local in range(len(ranks)):
            rank = self._first_rank + local
            lines = [line for line in ranks[local].lines if not line.startswith(CHATTER)]
            if rank in failed and lines:
                child.say(ProbeEvent("note", rank=rank, text="\n".join(lines[-LAST:])))
