"""The table's lines, for a terminal and as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import median

from tests.bench.cases.data import Case
from tests.bench.cases.judged import Row

TIMES = ("stalled?", "incident", "with stacks", "stacks took")
GOAL_PERCENT = 97.0
HEADLINE_CHARS = 120

HEAD = """# What mltop says of jobs that hang, crash or are well

Made by `python -m tests.bench cases --watch --at-once 3 --python PATH --markdown tests/bench/CASES.md`: each row is
a real job on one machine without a GPU (gloo, MPI), disturbed at a marked line of its script
(`tests/bench/cases/jobs/`), and looked at as a user would. PATH is the Python of an environment with
`tests/bench/cases/requirements.txt`; Open MPI comes from the system (`openmpi-bin`). Cases can be played in several
runs (`--keep DIR NAME…`) and judged together (`--kept DIR`).

*Culprit*: the rank with the fault. *mltop said*: the kind of the incident or verdict, whom it names, its confidence,
and the headline; *place*: whether function, file and line are those of the fault; *cause*: whether the headline says
how the rank ended. *Outcome*: right; unnamed (somebody is at fault, nobody was named); WRONG (somebody or something
else was); of jobs that are well: right, suspected (stacks name a suspect, with low confidence: no incident comes of
that), ACCUSED. Seconds since the fault: until "stalled?", until the incident that is told from outside alone, and until
the one with stacks that are taken at "stalled?"; *stacks took*: these, or `mltop stacks`. "–" is nothing to tell:

- A job that is well, or only slow, is not asked about; one that a death has ended does not are stuck.
- Crashes are played in the machine's first namespaces, where the kernel tells how a process ends; others' jobs would be
  stopped for stacks there.
- A rank that computes alone (f) may evaluate: it is asked about after a minute, and told from outside after three.
- MPI's waits compute, and its data moves without a call: what was never seen to step is told from outside after five
  minutes, where a rank sleeps meanwhile, and not where all compute (mpi4py skip). Its stacks are those of the end.

Two cores for three cases at a time and for others' work: dumps take longer than on an idle node, and adapt to it.

"""
_CLOCK, _PORT, _PID = re.compile(r"\b\d\d:\d\d:\d\d\b"), re.compile(r"\b[\d.]+:\d{4,5}\b"), re.compile(r"\bppid:\d+\b")


def line(row: Row) -> str:
    times = " ".join(f"{name} {seconds:.0f} s" for name, seconds in times_of(row) if seconds is not None)
    return f"{row.outcome:<10} {row.case.name:<26} {said(row)}{place(row)}  {times}\n           {short(row.headline)}"


def said(row: Row) -> str:
    return " ".join(word for word in (row.kind, ranks(row.ranks), row.confidence) if word)


def ranks(numbers: Sequence[int]) -> str:
    return ("rank " + ",".join("?" if number < 0 else str(number) for number in numbers)) if numbers else ""


def place(row: Row) -> str:
    told = {None: "", True: ", place right", False: ", place not told"}[row.place]
    return told + {None: "", True: ", cause right", False: ", cause WRONG"}[row.cause]


def times_of(row: Row) -> list[tuple[str, float | None]]:
    return list(zip(TIMES, (row.quiet_s, row.incident_s, row.with_stacks_s, row.stacks_s), strict=True))


def short(headline: str) -> str:
    text = " ".join(headline.split())
    return text if len(text) <= HEADLINE_CHARS else text[: HEADLINE_CHARS - 1] + "…"


def lasting(headline: str) -> str:
    """Without what differs from run to run: times, ports, numbers of launchers."""
    return _PID.sub("ppid:N", _PORT.sub("ADDRESS:PORT", _CLOCK.sub("HH:MM:SS", headline)))


def truth(case: Case) -> str:
    if case.truth == "healthy":
        return "none (well)"
    return "none of those seen" if case.nobody else f"rank {case.culprit}"


def summary(rows: Sequence[Row]) -> str:
    played = [row for row in rows if row.outcome != "not played"]
    at_fault = [row for row in played if row.case.truth != "healthy"]
    count = Counter(row.outcome for row in played)
    right = sum(row.outcome == "right" for row in at_fault)
    percent = 100.0 * right / len(at_fault) if at_fault else 0.0
    places = [row.place for row in at_fault if row.place is not None]
    well = [row for row in played if row.case.truth == "healthy"]
    suspects = sum(row.outcome == "right" and row.kind == "suspect" for row in at_fault)
    lines = [
        f"culprit right in {right} of {len(at_fault)} ({percent:.0f} %; goal: at least {GOAL_PERCENT:.0f} %)",
        f"of these as a suspect, with low confidence: {suspects}",
        f"wrong: {count['WRONG']} (goal: 0), unnamed: {count['unnamed']}",
        f"jobs that are well: {len(well)}, accused: {count['ACCUSED']} (goal: 0), suspected: {count['suspected']}",
        f"line of the fault told in {sum(places)} of {len(places)}",
        *(usual_times(truth, [row for row in played if row.case.truth == truth]) for truth in ("hang", "crash")),
    ]
    left_out = [row.case.name for row in rows if row.outcome == "not played"]
    return "\n".join([*lines, *([f"not played: {', '.join(left_out)}"] if left_out else [])])


def usual_times(truth: str, rows: Sequence[Row]) -> str:
    """Medians, and the longest, of those rows that have one."""
    told = []
    for column, name in enumerate(TIMES):
        seconds = [value for row in rows if (value := times_of(row)[column][1]) is not None]
        if seconds:
            told.append(f"{name} {median(seconds):.0f} s (longest {max(seconds):.0f}; {len(seconds)} of {len(rows)})")
    return f"median of each {truth}: {', '.join(told) or 'not watched'}"


COLUMNS = (
    *("case", "framework", "ranks", "culprit", "mltop said", "outcome"),
    *(f"{name} s" for name in TIMES),
)


def markdown(rows: Sequence[Row]) -> str:
    table = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for row in rows:
        nothing = "–" if row.watched or row.outcome == "not played" else "not watched"
        seconds = [nothing if value is None else f"{value:.0f}" for _, value in times_of(row)]
        told = f"{said(row)}{place(row)}: {short(lasting(row.headline))}".replace("|", "\\|")
        cells = [row.case.name, row.case.framework, str(row.case.ranks), truth(row.case), told, row.outcome, *seconds]
        table.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(table) + "\n\n" + "\n".join(f"- {one}" for one in summary(rows).splitlines()) + "\n"
