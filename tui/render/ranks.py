"""A training rank as a table row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from mltop.probes.model import RankSample
from mltop.probes.model.units import UNKNOWN, known, rate
from mltop.tui.render.cells import Column, Row, row_of
from mltop.tui.render.states import state_cell
from mltop.tui.render.trends import EarlierRank
from mltop.tui.render.units import BYTES, CORES, COUNT, TEXT, Unit


class RankLine(NamedTuple):
    """What a row is about. ``before``: the same rank one sample ago, if that is known: rates are made of both."""

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


def _switches(line: RankLine) -> float | None:
    return line.per_s(lambda rank: rank.voluntary_switches)


def _syscalls(line: RankLine) -> float | None:
    return line.per_s(syscalls_of)


def syscalls_of(rank: RankSample) -> int | None:
    """How often it has read or written so far."""
    if rank.read_syscalls is None or rank.write_syscalls is None:
        return None
    return rank.read_syscalls + rank.write_syscalls


def short_command(command: str) -> str:
    """The command line without the folders of the program and of its script: "python3 train.py --config x"."""
    words = command.split(" ")
    for index, word in enumerate(words[:3]):
        if word.startswith("/"):
            words[index] = word.rpartition("/")[2] or word
    return " ".join(words)


def rank_number(rank: int | None) -> str:
    """The number of a rank, "?" where it is lost: of a dead one."""
    return "?" if rank is None else str(rank)


def _command(line: RankLine) -> str:
    return short_command(line.rank.command) or UNKNOWN


def _rank(key: str, title: str, width: int, name: str, unit: Unit = TEXT, **layout: Any) -> Column:
    """A column about the field ``name`` of RankSample."""
    get = attrgetter(name)
    layout = {"cell": lambda line: unit.show(get(line.rank)), "value": lambda line: get(line.rank), **layout}
    return Column(key, title, width, unit=unit, **layout)


RANK_COLUMNS = (
    _rank(
        "rank",
        "RANK",
        4,
        "rank",
        COUNT,
        right=True,
        cell=lambda line: rank_number(line.rank.rank),
        field="rank",
        meaning="the rank's number",
    ),
    Column("node", "NODE", 12, priority=1, cell=lambda line: line.node, value=lambda line: line.node),
    Column(
        "gpus",
        "GPU",
        3,
        right=True,
        cell=lambda line: ",".join(map(str, line.rank.gpus)),
        value=lambda line: min(line.rank.gpus, default=None),
    ),
    _rank("pid", "PID", 7, "pid", right=True, cell=lambda line: str(line.rank.pid)),
    _rank(
        "state",
        "STATE",
        11,
        "state",
        cell=lambda line: state_cell(line.rank.state),
        field="rank_state",
        meaning="R S D T Z as the kernel says",
    ),
    _rank("cpu", "CPU", 5, "cpu_fraction", CORES, right=True, field="rank_cpu", meaning="CPU that it uses"),
    _rank("rss", "RSS", 5, "rss_bytes", BYTES, right=True, priority=3, field="rss", meaning="its resident memory"),
    Column("switches", "SWITCH/S", 8, True, 2, cell=lambda line: rate(_switches(line)), value=_switches),
    Column("syscalls", "SYSCALL/S", 9, True, 4, cell=lambda line: rate(_syscalls(line)), value=_syscalls),
    _rank("job", "JOB", 16, "job", priority=7, field="job", meaning="its job"),
    _rank("launcher", "LAUNCHER", 10, "launcher", priority=8),
    _rank("user", "USER", 8, "user", priority=6, field="user", meaning="whose process it is"),
    _rank(
        "command",
        "COMMAND",
        21,
        "command",
        cell=_command,
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
