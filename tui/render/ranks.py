"""A training rank as a table row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mltop.probes.model import RankSample
from mltop.probes.model.incident import UNKNOWN_DOING, Doing
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import UNKNOWN, known, rate, seconds
from mltop.probes.model.vocabulary import WorkState
from mltop.tui.render.cells import Cell, Column, EitherCell, Row, row_of
from mltop.tui.render.earlier import EarlierRank
from mltop.tui.render.states import doing_cell, mark_cell, state_cell
from mltop.tui.render.units import BYTES, CORES, COUNT


class RankLine(NamedTuple):
    """What a row of RANK_COLUMNS is about. ``before``: the same rank one sample ago, if known: rates need both.
    ``doing``: what it does, at the time ``now`` (unix s); ``gpu_bytes``: that it holds on GPUs.
    """

    node: str
    rank: RankSample
    before: EarlierRank | None = None
    doing: Doing = UNKNOWN_DOING
    now: float = 0.0
    gpu_bytes: int | None = None

    def per_s(self, count: Callable[[RankSample | EarlierRank], int | None]) -> float | None:
        """Events per second; unknown when a counter is missing or went backwards, or no time passed."""
        elapsed_s = self.before.elapsed_s if self.before is not None else 0.0
        before = count(self.before) if self.before is not None else None
        now = count(self.rank)
        if before is None or now is None or now < before or elapsed_s <= 0 or not known(elapsed_s):
            return None
        return (now - before) / elapsed_s

    @property
    def since_s(self) -> float | None:
        """For how long it does what it does; of one that simply works, for how long it runs."""
        since = self.doing.since
        if since is None and self.doing.state != "ended":
            since = self.rank.started_at
        return None if since is None or not self.now else max(0.0, self.now - since)

    @property
    def mark(self) -> str:
        return "stands" if self.doing.state in ("stands", "ended") else ""

    @property
    def switches_per_s(self) -> float | None:
        return self.per_s(lambda rank: rank.voluntary_switches)

    @property
    def syscalls_per_s(self) -> float | None:
        return self.per_s(_syscalls)


def _syscalls(rank: RankSample | EarlierRank) -> int | None:
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


def _command(command: str) -> Cell:
    """Where it is too long without its interpreter and that one's switches, which are the same everywhere."""
    text = short_command(command)
    program, *words = text.split(" ")
    while words and words[0] in _SWITCHES:
        words = words[1:]
    is_script = program.startswith("python") and bool(words)
    return EitherCell(text or UNKNOWN, "", " ".join(words) if is_script else text)


_SWITCHES = ("-u", "-B", "-E", "-I", "-O", "-OO", "-P", "-s", "-S")  # of Python, those that take no word


def is_unassigned(rank: RankSample) -> bool:
    """Whether it is a process of no job; a dead rank whose number is lost has its job's name."""
    return rank.rank is None and not rank.job


NO_JOB = "no job"
OF_NO_JOB = "Python processes of no job"
AXES = ("tp", "pp", "dp", "cp", "ep")


def layout_cell(parallel: Mapping[str, int]) -> str:
    """A rank's place on each axis: "tp1 pp0 dp3"; "" where it is not known."""
    return " ".join(f"{axis}{parallel[axis]}" for axis in AXES if axis in parallel)


def layout_words(parallel: Mapping[str, int]) -> str:
    """The same with the sizes: "tp 1 of 4, pp 0 of 2"."""
    places = [(axis, parallel[axis], parallel.get(f"{axis}_size")) for axis in AXES if axis in parallel]
    return ", ".join(f"{axis} {place}" + (f" of {size}" if size else "") for axis, place, size in places)


def _indexes(gpus: Sequence[int]) -> str:
    return str(Ranges.of(gpus))


def rank_number(rank: int | None) -> str:
    """The number of a rank, "?" where it is not known."""
    return "?" if rank is None else str(rank)


# The gravest first: what a table of ranks begins with, and is sorted by.
ORDER_OF_STATES: tuple[WorkState, ...] = (
    *("stands", "ended", "lost", "error", "alone", "starved", "throttled", "waits", "stalled", "quiet"),
    *("starting", "unknown", "idle", "no_process", "works"),
)


def _doing(line: RankLine) -> Cell:
    return doing_cell(line.doing, line.now, where=True)


_of = Column.of
RANK_COLUMNS = (
    Column("mark", "", 1, cell=lambda line: mark_cell(line.mark), gap=0),
    _of(
        "rank",
        "RANK",
        4,
        "rank.rank",
        cell=lambda line: "-" if is_unassigned(line.rank) else rank_number(line.rank.rank),
        unit=COUNT,
        right=True,
        field="rank",
        meaning="the rank's number",
    ),
    _of("node", "NODE", 12, "node", priority=1),
    _of("gpus", "GPU", 3, "rank.gpus", _indexes, right=True, value=lambda line: min(line.rank.gpus, default=None)),
    _of("pid", "PID", 7, "rank.pid", str, right=True),
    _of("user", "USER", 8, "rank.user", priority=4, field="user", meaning="whose process it is"),
    Column("state", "STATE", 19, cell=_doing, value=lambda line: ORDER_OF_STATES.index(line.doing.state)),
    _of(
        "process",
        "PROCESS",
        11,
        "rank.state",
        state_cell,
        priority=9,
        field="rank_state",
        meaning="R S D T Z as the kernel says",
    ),
    _of("cpu", "CPU", 5, "rank.cpu_fraction", unit=CORES, right=True, field="rank_cpu", meaning="CPU that it uses"),
    _of(
        "rss",
        "RSS",
        5,
        "rank.rss_bytes",
        unit=BYTES,
        right=True,
        priority=5,
        field="rss",
        meaning="its resident memory",
    ),
    _of(
        "gpumem",
        "GPUMEM",
        6,
        "gpu_bytes",
        unit=BYTES,
        right=True,
        priority=2,
        field="rank_gpumem",
        meaning="GPU memory that it holds",
    ),
    _of("since", "SINCE", 6, "since_s", seconds, right=True, priority=1),
    _of("switches", "SWITCH/S", 8, "switches_per_s", rate, right=True, priority=6),
    _of("syscalls", "SYSCALL/S", 9, "syscalls_per_s", rate, right=True, priority=7),
    _of(
        "layout",
        "LAYOUT",
        11,
        "rank.parallel",
        lambda parallel: layout_cell(parallel) or UNKNOWN,
        value=lambda line: layout_cell(line.rank.parallel),
        priority=8,
    ),
    _of("job", "JOB", 16, "rank.job", lambda job: job or NO_JOB, priority=7, field="job", meaning="its job"),
    _of("launcher", "LAUNCHER", 10, "rank.launcher", priority=8),
    _of(
        "command",
        "COMMAND",
        12,
        "rank.command",
        cell=lambda line: _command(line.rank.command),
        priority=3,
        stretch=True,
        field="command",
        meaning="its command line",
    ),
)

RATES = ("switches", "syscalls")  # what needs the sample before
LAST = 99  # the priority of what goes before anything else


def rank_columns(ranks: Collection[RankSample], nodes: int) -> tuple[Column, ...]:
    """RANK_COLUMNS for these ranks of so many nodes: of several jobs, the job tells two ranks 0 apart; what is known of
    none has no column.
    """
    absent = set() if any(rank.parallel for rank in ranks) else {"layout"}
    if ranks and all(map(is_unassigned, ranks)):
        absent |= {"rank", "layout", "job", "launcher"}
    shown = [column for column in RANK_COLUMNS if column.key not in absent]
    if nodes < 2:
        shown = [replace(column, priority=LAST) if column.key == "node" else column for column in shown]
    if len({rank.job_key for rank in ranks}) < 2 and ("job" in absent or not any(map(is_unassigned, ranks))):
        return tuple(shown)
    changed: dict[str, dict[str, Any]] = {
        # The end of a name tells most: a port, a number.
        "job": {"width": 10, "priority": 1, "stretch": True, "most": 24, "tail": True},
        "node": {"priority": 1 if nodes > 1 else LAST},
        "since": {"priority": 2},
        **({"user": {"priority": 2}, "since": {"priority": 4}} if len({rank.user for rank in ranks}) > 1 else {}),
    }
    return tuple(replace(column, **changed.get(column.key, {})) for column in shown)


def rank_row(line: RankLine, columns: Sequence[Column] = RANK_COLUMNS) -> Row:
    """One row of RANK_COLUMNS, or of some of them; key "node/pid".

    Rates need ``before`` to know its age (``EarlierRanks.rank`` gives it); otherwise they are unknown.
    """
    return row_of(columns, line, f"{line.node}/{line.rank.pid}")
