"""What mltop said of a case, held against what is true of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from tests.bench.cases.data import CAUSES, Case, place
from tests.bench.cases.stage import Seen

# right: who it is, or that nothing is wrong. unnamed: nobody was accused though somebody is at fault, or there is a job
# and nothing was said of it. suspected: a well job's rank was called suspect, with low confidence. WRONG: somebody or
# something else was accused. ACCUSED: a well job's rank was.
Outcome = Literal["right", "unnamed", "suspected", "WRONG", "ACCUSED", "not played"]
BAD: tuple[Outcome, ...] = ("WRONG", "ACCUSED")

_WHERE = re.compile(r"(?P<function>[\w.<>]+) \((?P<file>[^():]*):(?P<line>\d+)\)")
_KILLED = re.compile(r"killed [^ ]+ \((?P<pid>\d+)\) for lack of memory")


@dataclass
class Row:
    """One line of the table. ``place``: whether the function, file and line of the fault were told, ``cause``: whether
    the headline says how a rank ended; None: there is nothing to tell.

    Seconds count from the fault: until "stalled?", until the incident from outside alone, and until the one with stacks
    that were taken at once; ``stacks_s`` is what these took. ``watched``: else the first three are not known.
    """

    case: Case
    outcome: Outcome
    kind: str = ""
    ranks: tuple[int, ...] = ()
    confidence: str = ""
    headline: str = ""
    place: bool | None = None
    cause: bool | None = None
    quiet_s: float | None = None
    incident_s: float | None = None
    with_stacks_s: float | None = None
    stacks_s: float | None = None
    watched: bool = False


def judge(case: Case, seen: Seen) -> Row:
    if seen.problem:
        return Row(case, "not played", headline=seen.problem)
    everything = accusations(case, seen)
    said = everything[0] if everything else {}
    accusing = [one for one in everything if one["kind"] in ACCUSING[case.truth]]
    ranks = tuple(sorted({rank_of(culprit, case, seen) for one in accusing for culprit in one["culprits"]}))
    told_cause = cause_told(case, headline_of(said), seen.pid) if ranks else None
    return Row(
        case,
        outcome(case, said.get("kind", ""), ranks, told_cause),
        said.get("kind") or "nothing",
        ranks,
        said.get("confidence", ""),
        headline_of(said),
        place_told(case, [culprit for one in accusing for culprit in one["culprits"]]),
        told_cause,
        since(seen, seen.quiet_at),
        first_incident_s(seen, seen.incidents),
        first_incident_s(seen, seen.with_stacks),
        seen.stacks_s,
        seen.watched,
    )


def accusations(case: Case, seen: Seen) -> list[dict[str, Any]]:
    """All that was said of jobs, what accuses somebody first: incidents of the watcher and of the stacks, verdicts."""
    verdicts = [report["verdict"] for report in seen.stacks.get("jobs", [])]
    if case.truth == "straggler":
        verdicts = [{**one, "culprits": one["culprits"] or one["stragglers"]} for one in verdicts]
    every = (*seen.with_stacks, *seen.stacks.get("incidents", []), *seen.incidents)
    incidents = [one for one in every if one["kind"] not in OF_NODES]
    told = sorted((*incidents, *verdicts), key=lambda said: ORDER.get(said["kind"], 9))
    named = [said for said in told if said["culprits"] and said["kind"] in ACCUSING[case.truth]]
    return [*named, *(said for said in told if said not in named)]


ORDER = {"crash": 0, "hang": 1, "suspect": 2, "straggler": 3, "stopped": 4, "unclear": 5, "moving": 6}
OF_NODES = ("node", "starved")
_HANGS = ("hang", "suspect", "crash", "stopped")
ACCUSING = {
    "hang": _HANGS,
    "crash": _HANGS,
    "straggler": ("straggler", "slow", *_HANGS),
    "healthy": _HANGS,
}


def outcome(case: Case, kind: str, ranks: tuple[int, ...], cause: bool | None) -> Outcome:
    """Who ends otherwise than is said was not understood: that is as wrong as another rank."""
    if case.truth == "healthy":
        if kind not in ACCUSING["healthy"]:
            return "right" if kind or case.no_job else "unnamed"
        return "suspected" if kind == "suspect" else "ACCUSED"
    if case.nobody and not ranks:
        return "right" if kind in (*ACCUSING["hang"], "unclear") else "unnamed"
    if not ranks or kind not in ACCUSING[case.truth]:
        return "unnamed"
    return "right" if ranks == (case.culprit,) and cause is not False else "WRONG"


def rank_of(culprit: dict[str, Any], case: Case, seen: Seen) -> int:
    """-1: no number, and not the process whose fault it is."""
    if culprit["rank"] is not None:
        return int(culprit["rank"])
    return case.culprit if culprit["pid"] is not None and culprit["pid"] == seen.pid else -1


def place_told(case: Case, culprits: list[dict[str, Any]]) -> bool | None:
    wanted = place(case.fault)
    if wanted is None or case.truth != "hang" or case.nobody:
        return None
    return any(
        match["function"].rpartition(".")[2] == wanted.function
        and match["file"].rpartition("/")[2] == wanted.file
        and int(match["line"]) in wanted.lines
        for culprit in culprits
        for match in _WHERE.finditer(f"{culprit['where']} {culprit['reason']}")
    )


def cause_told(case: Case, headline: str, pid: int | None) -> bool | None:
    """None: nothing is to be told. Want of memory is told of no other case, nor of another process."""
    of_memory = re.search(CAUSES["oom"], headline) is not None
    killed = _KILLED.search(headline)
    if of_memory and (case.cause != CAUSES["oom"] or (killed and int(killed["pid"]) != pid)):
        return False
    return re.search(case.cause, headline) is not None if case.cause else None


def headline_of(said: dict[str, Any]) -> str:
    """An incident's own; of a verdict what its culprits do, else its first evidence."""
    if not said:
        return "no job was found"
    if "headline" in said:
        return str(said["headline"])
    culprits = [f"rank {one['rank']} {one['reason']} at {one['where']}" for one in said["culprits"]]
    return "; ".join(culprits or said["evidence"][:1]) or (said.get("gaps") or [{"why": "nothing"}])[0]["why"]


def since(seen: Seen, at: float | None) -> float | None:
    return None if at is None or seen.moment is None else at - seen.moment


def first_incident_s(seen: Seen, incidents: list[dict[str, Any]]) -> float | None:
    times = [one["first_at"] for one in incidents if one["kind"] not in OF_NODES]
    return since(seen, min(times, default=None))
