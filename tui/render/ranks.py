"""A training rank as a table row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mltop.probes.model import RankSample
from mltop.probes.model.units import UNKNOWN, known, rate
from mltop.tui.render.cells import Column, Row, row_of
from mltop.tui.render.states import state_cell
from mltop.tui.render.trends import EarlierRank
from mltop.tui.render.units import BYTES, CORES, COUNT


class RankLine(NamedTuple):
    """What a row of RANK_COLUMNS is about. ``before``: the same rank one sample ago, if known: rates need both."""

    node: str
    rank: RankSample
    before: RankSample | None = None

    def per_s(self, count: Callable[[RankSample], int | None]) -> float | None:
        """Events per second; unknown when a counter is missing or went backwards, or no time passed."""
        elapsed_s = self.before.elapsed_s if isinstance(self.before, EarlierRank) else 0.0
        before = count(self.before) if self.before is not None else None
        now = count(self.rank)
        if before is None or now is None or now < before or elapsed_s <= 0 or not known(elapsed_s):
            return None
        return (now - before) / elapsed_s

    @property
    def switches_per_s(self) -> float | None:
        return self.per_s(lambda rank: rank.voluntary_switches)

    @property
    def syscalls_per_s(self) -> float | None:
        return self.per_s(_syscalls)


def _syscalls(rank: RankSample) -> int | None:
    """How often it has read or written so far."""
    reads, writes = rank.read_syscalls, rank.write_syscalls
    return None if reads is None or writes is None else reads + writes


def short_command(command: str) -> str:
    """The command line without the folders of the program and its script: "python3 train.py --config x"."""
    words = command.split(" ")
    for index, word in enumerate(words[:3]):
        if word.startswith("/"):
            words[index] = word.rpartition("/")[2] or word
    return " ".join(words)


def _command(command: str) -> str:
    return short_command(command) or UNKNOWN


def _indexes(gpus: Sequence[int]) -> str:
    return ",".join(map(str, gpus))


def rank_number(rank: int | None) -> str:
    """The number of a rank, "?" of a dead one whose number is lost."""
    return "?" if rank is None else str(rank)


_of = Column.of
RANK_COLUMNS = (
    _of("rank", "RANK", 4, "rank.rank", rank_number, unit=COUNT, right=True, field="rank", meaning="the rank's number"),
    _of("node", "NODE", 12, "node", priority=1),
    _of("gpus", "GPU", 3, "rank.gpus", _indexes, right=True, value=lambda line: min(line.rank.gpus, default=None)),
    _of("pid", "PID", 7, "rank.pid", str, right=True),
    _of("state", "STATE", 11, "rank.state", state_cell, field="rank_state", meaning="R S D T Z as the kernel says"),
    _of("cpu", "CPU", 5, "rank.cpu_fraction", unit=CORES, right=True, field="rank_cpu", meaning="CPU that it uses"),
    _of(
        "rss",
        "RSS",
        5,
        "rank.rss_bytes",
        unit=BYTES,
        right=True,
        priority=3,
        field="rss",
        meaning="its resident memory",
    ),
    _of("switches", "SWITCH/S", 8, "switches_per_s", rate, right=True, priority=2),
    _of("syscalls", "SYSCALL/S", 9, "syscalls_per_s", rate, right=True, priority=4),
    _of("job", "JOB", 16, "rank.job", priority=7, field="job", meaning="its job"),
    _of("launcher", "LAUNCHER", 10, "rank.launcher", priority=8),
    _of("user", "USER", 8, "rank.user", priority=6, field="user", meaning="whose process it is"),
    _of(
        "command",
        "COMMAND",
        21,
        "rank.command",
        _command,
        priority=5,
        stretch=True,
        field="command",
        meaning="its command line",
    ),
)

RATES = ("switches", "syscalls")  # what needs the sample before
LAST = 99  # the priority of what goes before anything else


def rank_columns(jobs: int, nodes: int) -> tuple[Column, ...]:
    """RANK_COLUMNS for ranks of so many jobs and nodes: of several jobs, the job tells two ranks 0 apart."""
    if jobs < 2:
        return RANK_COLUMNS
    changed: dict[str, dict[str, Any]] = {
        # The end of a name tells most: a port, a number.
        "job": {"width": 10, "priority": 1, "stretch": True, "most": 24, "tail": True, "marked": True},
        "node": {"priority": 1 if nodes > 1 else LAST},
    }
    return tuple(replace(column, **changed.get(column.key, {})) for column in RANK_COLUMNS)


def rank_row(
    node: str, rank: RankSample, previous: RankSample | None = None, columns: Sequence[Column] = RANK_COLUMNS
) -> Row:
    """One row of RANK_COLUMNS, or of some of them; key "node/pid".

    Rates need ``previous`` to know its age (``Trends.previous_rank`` gives it); otherwise they are unknown.
    """
    return row_of(columns, RankLine(node, rank, previous), f"{node}/{rank.pid}")
