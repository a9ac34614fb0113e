"""What a verdict is headed by, how sure it is, in which order several are told, and what one look may claim."""

from __future__ import annotations

import re

import pytest

from mltop.probes.investigate.material import Material, judge
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import RankSample, Sample, Verdict
from mltop.tui.render.cells import plain
from mltop.tui.render.stacks.report import Around, ReportLines
from mltop.tui.render.stacks.verdict import headline
from tests.builders.stack_evidence import (
    START,
    Child,
    Rank,
    Stack,
    all_reduce,
    broadcast,
    compute,
    dataset,
    evidence,
    judge_job,
    loader_wait,
    main_frames,
    spin,
    stack,
    waiters,
    worker_stuck,
)


def culprits(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


@pytest.mark.parametrize(
    ("quiet_s", "kind", "confidence"), [(None, "suspect", "low"), (56.0, "hang", "medium"), (115.0, "hang", "high")]
)
def test_a_rank_that_computes_is_suspected_before_it_is_accused(
    quiet_s: float | None, kind: str, confidence: str
) -> None:
    """It may be evaluating: the others wait for it, and it is right to let them."""
    ranks = {number: Rank(all_reduce(), quiet_s=quiet_s) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(spin, state="R", cpu=0.94)}))
    assert (verdict.kind, verdict.confidence, culprits(verdict)) == (kind, confidence, [2])


def recv() -> Stack:
    return stack(("recv", "torch/distributed/distributed_c10d.py", 2500), *main_frames(), waiting_in="recv")


def send() -> Stack:
    return stack(("send", "torch/distributed/distributed_c10d.py", 2400), *main_frames(), waiting_in="send")


NAMELESS = {
    "all equal": waiters(0, 1, 2, 3),
    "a pipeline": {0: Rank(send()), **{number: Rank(recv()) for number in (1, 2, 3)}},
}


@pytest.mark.parametrize("name", NAMELESS)
def test_a_short_standstill_that_names_nobody_is_no_hang(name: str) -> None:
    verdict = judge_job(evidence(NAMELESS[name], rounds=2, gap_s=1.0))
    assert (verdict.kind, culprits(verdict)) == ("unclear", [])
    assert "a slow step looks the same: take more samples" in verdict.evidence
    assert judge_job(evidence(NAMELESS[name], rounds=4)).kind == "hang"


def test_without_counters_a_standstill_that_names_nobody_is_no_hang() -> None:
    verdict = judge_job(evidence(waiters(0, 1, 2, 3), counters=False))
    assert verdict.kind == "unclear"
    assert "a slow step looks the same: counters would show it, but could not be read" in verdict.evidence


def test_a_standstill_that_is_sure_is_a_hang_whoever_could_not_be_seen() -> None:
    verdict = judge_job(evidence(waiters(*range(8)), world_size=64))
    assert (verdict.kind, culprits(verdict), verdict.confidence) == ("hang", [], "low")


# One look


LOOKS = {
    "outside": {**waiters(0, 1, 3), 2: Rank(dataset())},
    "mismatch": {**waiters(0, 1, 3), 2: Rank(broadcast())},
    "two lines": {**waiters(0, 1, 3), 2: Rank(all_reduce(line=66))},
    "one step ahead": {number: Rank(all_reduce(step=6 if number == 2 else 5)) for number in range(4)},
    "tie": {**waiters(0, 1), 2: Rank(broadcast()), 3: Rank(broadcast())},
    "few wait": {0: Rank(all_reduce()), **{number: Rank(spin, state="R") for number in (1, 2, 3)}},
    "nobody waits": {number: Rank(compute()) for number in range(4)},
    "stopped": {**waiters(0, 1, 3), 2: Rank(all_reduce(), state="T")},
    "a worker": {**waiters(0, 1, 3), 2: Rank(loader_wait(), children=[Child(4711, worker_stuck())])},
    "in the kernel": {**waiters(0, 1, 3), 2: Rank(dataset(), state="D")},
    "gone": {**waiters(0, 1, 3), 2: Rank(None, gone=True)},
    "unreadable": {**waiters(0, 1, 3), 2: Rank(None, error="permission denied")},
    **NAMELESS,
}
# A duration that nobody watched, or a "every" and "all" of one.
CLAIMS = r"\b0(\.0)? s\b|every dump|\b1 dumps"


@pytest.mark.parametrize("quiet_s", [None, 0.0, 40.0])
@pytest.mark.parametrize("name", LOOKS)
def test_one_look_claims_no_standstill(name: str, quiet_s: float | None) -> None:
    """``quiet_s`` is what the samples tell of those that wait."""
    ranks = {number: Rank(**vars(rank)) for number, rank in LOOKS[name].items()}
    for rank in ranks.values():
        rank.quiet_s = quiet_s if isinstance(rank.stack, Stack) and rank.stack.waiting_in else None
    lines = ReportLines(0, report(evidence(ranks, rounds=1)), Around(START), 500).lines()
    text = "\n".join(plain(line.cells) for line in lines)
    assert not re.search(CLAIMS if quiet_s else rf"{CLAIMS}|stuck", text), text


def test_what_the_samples_before_one_look_show_is_said() -> None:
    ranks = {number: Rank(all_reduce(), quiet_s=200.0) for number in (0, 1, 3)}
    verdict = judge_job(evidence({**ranks, 2: Rank(dataset())}, rounds=1))
    assert verdict.evidence[0] == "3 of 4 ranks wait, no progress for 3 min 20 s"


def test_one_look_at_a_job_that_computes_says_so() -> None:
    verdict = judge_job(evidence({number: Rank(compute()) for number in range(4)}, rounds=1))
    assert verdict.evidence[0] == "no rank waits in a collective and most were seen once: take more samples"
    watched = judge_job(evidence({number: Rank(compute()) for number in range(4)}))
    assert watched.evidence[0] == "no rank waits in a collective and most made no progress for 6.0 s"


# Several jobs


def material(jobs: dict[str, tuple[dict[int, Rank], int]]) -> Material:
    """Each job: its ranks, and for how many rounds they were dumped; processes on nodes of their own."""
    made = Material()
    for name, (ranks, rounds) in jobs.items():
        given = evidence(ranks, rounds=rounds)
        for seen in given.roster:
            seen.sample.job = name
        for stacks in given.dumps:
            stacks.job, stacks.node = name, f"node-{name}"
        node = f"node-{name}"
        made.samples[node] = [Sample(node, START, ranks=[seen.sample for seen in given.roster])]
        made.dumps += given.dumps
    return made


def test_the_surest_hang_comes_first_then_the_largest_job() -> None:
    moving = {number: Rank(compute(), switches_per_s=5, syscalls_per_s=100) for number in range(32)}
    jobs = {
        "a-unclear": ({number: Rank(compute()) for number in range(64)}, 4),
        "b-moving": (moving, 4),
        "c-suspect-large": ({**waiters(*range(15)), 15: Rank(spin, state="R")}, 4),
        "d-medium": ({**waiters(*range(7)), 7: Rank(broadcast())}, 4),
        "e-high": ({**waiters(0, 1, 3), 2: Rank(dataset())}, 4),
        "f-high-large": ({**waiters(*range(7)), 7: Rank(dataset())}, 4),
        "g-suspect": ({**waiters(0, 1, 3), 2: Rank(spin, state="R")}, 4),
    }
    assert [made.job[0] for made in judge(material(jobs))] == ["f", "e", "d", "c", "g", "b", "a"]


# Ended


def test_a_job_that_has_ended_says_so() -> None:
    rank = [RankSample(4000 + number, number, world_size=2, job="j", state="S") for number in range(2)]
    ended = Material(samples={"n1": [Sample("n1", 90.0, ranks=rank), Sample("n1", 100.0)]})
    (made,) = judge(ended)
    assert (made.verdict.kind, made.verdict.confidence, made.verdict.ended) == ("unclear", "high", True)
    assert "the job has ended" in headline(made)
    assert "UNCLEAR" not in headline(made)


def test_a_job_that_has_ended_is_not_told_beside_one_that_lives() -> None:
    old = [RankSample(4000 + number, number, world_size=2, job="old", state="S") for number in range(2)]
    new = [RankSample(5000 + number, number, world_size=2, job="new", state="S") for number in range(2)]
    both = Material(samples={"n1": [Sample("n1", 90.0, ranks=old), Sample("n1", 100.0, ranks=new)]})
    assert [made.job for made in judge(both)] == ["new"]


def test_a_job_of_zombies_has_ended_too() -> None:
    given = evidence({number: Rank(None, state="Z", error="zombie: it has exited") for number in range(2)})
    assert judge_job(given).ended
