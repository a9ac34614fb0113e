"""Recordings of faults, judged as `mltop check --recording` does: one cause is one incident, from beginning to end."""

from __future__ import annotations

import itertools
from functools import cache, partial

import pytest

from mltop.probes.judge.health.folding import BEATS
from mltop.probes.model import Finding, Sample
from tests.builders import fault_recordings
from tests.builders.fault_recordings import BROKE_AT, Change, Told, hangs, judged
from tests.builders.faults import (
    FAULTS,
    KILLED,
    NO_LINK,
    SILENT_SERVER,
    WHOLE_FAULTS,
    blocked,
    card,
    line,
    links_of,
)

EVERY_S = 5.0  # the rules need no more samples, and to judge each takes its time
recording = partial(fault_recordings.recording, every_s=EVERY_S)

every_fault = pytest.mark.parametrize("name", list(FAULTS))


@cache
def told_of(name: str) -> Told:
    return judged(recording(*FAULTS[name][0]))


@every_fault
def test_one_cause_is_one_incident(name: str) -> None:
    _, kind, cause, loss, named = FAULTS[name]
    (incident,) = told_of(name).incidents
    assert incident.kind == kind
    assert incident.headline.startswith(cause) and loss in incident.headline
    if named is not None:
        assert (incident.culprits[0].rank, incident.culprits[0].gpu) == (named, named)
    assert incident.until is None


@pytest.mark.parametrize("name", list(WHOLE_FAULTS))
def test_a_fault_with_all_its_symptoms_is_one_line(name: str) -> None:
    changes, nodes, headline, action = WHOLE_FAULTS[name]
    told = judged(recording(*changes, nodes=nodes))
    (incident,) = told.incidents
    assert incident.headline.startswith(headline.removeprefix("n0: ") if nodes == 1 else headline)
    assert incident.action.startswith(action)
    assert "Xid lines" not in incident.action
    assert (incident.suffers.gpu_hours > 0) == (incident.kind == "hang")
    shown = texts(incident.findings)
    assert all(any(one.message in text for text in shown) for one in told.findings if one.severity != "info")


def test_a_process_that_was_killed_while_the_job_went_on_did_not_stop_it() -> None:
    of_job, of_node = judged(recording(hangs(3), line(KILLED, delay_s=-200.0))).incidents
    assert (of_job.kind, of_job.causes, of_node.kind) == ("hang", [], "node")


@every_fault
def test_no_text_is_lost(name: str) -> None:
    told = told_of(name)
    in_incidents = {text for incident in told.incidents for text in texts(incident.findings)}
    assert in_incidents >= texts(finding for finding in told.findings if finding.severity != "info")


def texts(findings: object) -> set[str]:
    return {one.message for finding in findings for one in (finding, *finding.explains)}  # type: ignore[attr-defined]


@every_fault
def test_no_advice_contradicts_another(name: str) -> None:
    for incident in told_of(name).incidents:
        for one in incident.findings:
            for other in incident.findings:
                assert not (about(one) & about(other) and other.remedy in BEATS.get(one.remedy, ()))


def about(finding: Finding) -> set[tuple[str, str]]:
    return {(finding.node, subject) for subject in (finding.subject, *finding.about)}


@every_fault
def test_it_keeps_its_id_and_its_beginning(name: str) -> None:
    """From the first word to the last."""
    told = told_of(name)
    (last,) = told.incidents
    seen = [each for _, incidents in told.on_the_way for each in incidents if each.id == last.id]
    began = [each.since for each in seen if each.since is not None]
    assert began == sorted(began, reverse=True)
    assert all(abs(since - BROKE_AT) <= 2 * EVERY_S for since in began)
    first = next(incidents for _, incidents in told.on_the_way if incidents)
    assert last.id in {each.id for each in first}


@every_fault
def test_the_headline_reads_well(name: str) -> None:
    for incident in told_of(name).incidents:
        words = incident.headline.split()
        assert all(one != other for one, other in itertools.pairwise(words))
        assert ", since" not in incident.headline and "  " not in incident.headline
        assert incident.act or incident.action
        assert "mltop explain" not in incident.action + incident.next


def test_what_peers_complain_of_belongs_to_the_port_before_a_job_stands() -> None:
    told = told_of("a port is down, peers complain")
    assert {len(incidents) for at, incidents in told.on_the_way if at >= BROKE_AT} <= {0, 1}


def over_after(seconds: float, *changes: Change) -> tuple[Change, ...]:
    """The same, and all is well again."""

    def until(change: Change) -> Change:
        def do(node: int, after_s: float, sample: Sample) -> None:
            change(node, after_s if after_s < seconds else -1.0, sample)

        return do

    return tuple(map(until, changes))


def test_what_is_over_is_one_incident_too() -> None:
    """The job trains again: what was wrong is told with its end, its causes with theirs, and not twice."""
    told = judged(recording(*over_after(120.0, hangs(3), links_of(3, up=16)), lasts_s=400.0))
    (incident,) = told.incidents
    assert (incident.kind, incident.headline[:22]) == ("hang", "n0: GPU 3: 16 of 18 NV")
    assert incident.until is not None
    assert 120.0 <= incident.until - BROKE_AT <= 220.0  # rules about jobs end after three times their hold
    assert [finding.until is None for finding in incident.causes] == [False]


def test_ports_of_other_names_or_times_are_each_their_own() -> None:
    def later(node: int, after_s: float, sample: Sample) -> None:
        card("mlx5_5", 1, **NO_LINK)(node, after_s - 100.0, sample)

    for other in (card("mlx5_6", 1, **NO_LINK), later):
        told = judged(recording(card("mlx5_5", 0, **NO_LINK), other, nodes=3))
        assert sorted(incident.headline[:3] for incident in told.incidents) == ["n0:", "n1:"]
        assert all(incident.action.startswith("reseat") for incident in told.incidents)


def test_what_comes_again_has_a_name_of_its_own() -> None:
    def twice(node: int, after_s: float, sample: Sample) -> None:
        hangs(3)(node, after_s if after_s < 120.0 or after_s > 360.0 else -1.0, sample)

    told = judged(recording(twice, lasts_s=500.0))
    assert [(each.kind, each.until is None) for each in told.incidents] == [("hang", True), ("hang", False)]
    assert len({each.id for each in told.incidents}) == 2
    now, before = told.incidents
    assert now.since is not None and before.until is not None and now.since > before.until


def test_two_jobs_on_one_node_suffer_from_one_fault() -> None:
    """Half of the GPUs each."""

    def halves(node: int, after_s: float, sample: Sample) -> None:
        for each in sample.ranks:
            if each.gpus[0] >= 4:
                each.job, each.rank, each.world_size = "eval", (each.rank or 0) - 4 - 4 * node, 8

    told = judged(recording(blocked, *SILENT_SERVER, halves))
    (incident,) = told.incidents
    assert (incident.kind, incident.suffers.gpus) == ("hang", 16)
    assert {"1042", "eval"} <= {incident.job, *(each.text.partition(":")[0] for each in incident.evidence)}


def test_the_other_job_is_left_alone() -> None:
    def apart(node: int, after_s: float, sample: Sample) -> None:
        if node == 1:
            for each in sample.ranks:
                each.job, each.world_size, each.rank = "eval", 8, (each.rank or 0) - 8
        else:
            for each in sample.ranks:
                each.world_size = 8

    def stands(node: int, after_s: float, sample: Sample) -> None:
        if node == 0:
            hangs(3)(node, after_s, sample)

    (incident,) = judged(recording(stands, apart)).incidents
    assert (incident.job, str(incident.suffers.ranks)) == ("1042", "0-7")
    assert incident.headline.startswith("1042: rank 3 (n0 GPU 3)")


def test_a_node_that_does_not_answer_any_more() -> None:
    samples = [each for each in recording(hangs()) if each.node == "n0" or each.sampled_at < BROKE_AT]
    (incident,) = judged(samples).incidents
    assert incident.kind == "hang"
