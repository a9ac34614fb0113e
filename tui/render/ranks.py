"""A training rank as a table row."""

from __future__ import annotations

from mltop.probes.model import RankSample
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.states import STATE_STYLE, state_word
from mltop.tui.render.trends import EarlierRank
from mltop.tui.render.units import UNKNOWN, bytes_text, known, percent, rate

RANK_COLUMNS = (
    Column("rank", "RANK", 4, right=True),
    Column("node", "NODE", 12, priority=1),
    Column("gpus", "GPU", 3, right=True),
    Column("pid", "PID", 7, right=True),
    Column("state", "STATE", 11),
    Column("cpu", "CPU", 5, right=True),
    Column("rss", "RSS", 5, right=True, priority=3),
    Column("switches", "SWITCH/S", 8, right=True, priority=2),
    Column("syscalls", "SYSC/S", 6, right=True, priority=4),
    Column("job", "JOB", 16, priority=7),
    Column("launcher", "LAUNCHER", 10, priority=8),
    Column("user", "USER", 8, priority=6),
    Column("command", "COMMAND", 24, priority=5, stretch=True),
)

LAST = 99  # the priority of what goes before anything else


def rank_columns(jobs: int, nodes: int) -> tuple[Column, ...]:
    """RANK_COLUMNS for ranks of so many jobs and nodes: of several jobs, the job tells two ranks 0 apart."""
    if jobs < 2:
        return RANK_COLUMNS
    changed = {
        # The end of a name tells most: a port, a number.
        "job": Column("job", "JOB", 10, priority=1, stretch=True, most=24, tail=True, marked=True),
        "node": Column("node", "NODE", 12, priority=1 if nodes > 1 else LAST),
    }
    return tuple(changed.get(column.key, column) for column in RANK_COLUMNS)


def rank_row(node: str, rank: RankSample, previous: RankSample | None = None) -> Row:
    """One row of RANK_COLUMNS, key "node/pid".

    Rates need ``previous`` to know its age (``Trends.previous_rank`` gives it); otherwise they are unknown.
    """
    elapsed_s = previous.elapsed_s if isinstance(previous, EarlierRank) else 0.0
    before = previous or RankSample(rank.pid)
    switches = _per_s(before.voluntary_switches, rank.voluntary_switches, elapsed_s)
    syscalls = _per_s(_syscalls(before), _syscalls(rank), elapsed_s)
    style = STATE_STYLE.get(rank.state[:1], "")
    cells = (
        Cell("?" if rank.rank is None else str(rank.rank)),
        Cell(node),
        Cell(",".join(map(str, rank.gpus))),
        Cell(str(rank.pid)),
        Cell(state_word(rank.state), style),
        Cell(percent(rank.cpu_fraction)),
        Cell(bytes_text(rank.rss_bytes)),
        Cell(rate(switches)),
        Cell(rate(syscalls)),
        Cell(rank.job or UNKNOWN),
        Cell(rank.launcher or UNKNOWN),
        Cell(rank.user or UNKNOWN),
        Cell(short_command(rank.command) or UNKNOWN),
    )
    return Row(f"{node}/{rank.pid}", cells)


def short_command(command: str) -> str:
    """The command line without the folders of the program and of its script: "python3 train.py --config x"."""
    words = command.split(" ")
    for index, word in enumerate(words[:3]):
        if word.startswith("/"):
            words[index] = word.rpartition("/")[2] or word
    return " ".join(words)


def _syscalls(rank: RankSample) -> int | None:
    if rank.read_syscalls is None or rank.write_syscalls is None:
        return None
    return rank.read_syscalls + rank.write_syscalls


def _per_s(before: int | None, now: int | None, elapsed_s: float) -> float | None:
    """Events per second; unknown when a counter is missing or went backwards, or no time passed."""
    if before is None or now is None or now < before or elapsed_s <= 0 or not known(elapsed_s):
        return None
    return (now - before) / elapsed_s
