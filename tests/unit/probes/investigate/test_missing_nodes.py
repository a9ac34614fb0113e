"""Nodes that did not answer: folded, grouped by reason, and what that means for a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.investigate.material import Material, judge
from mltop.probes.judge.hang.evidence import evidence_by_job
from mltop.probes.judge.hang.verdict import report as report_of
from mltop.probes.judge.nodes import by_reason, folded, nameless, sentences
from mltop.probes.model import Gap, NodeState, RankSample, Sample


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["h7"], "h7"),
        (["h03", "h01", "h02"], "h[01-03]"),
        (["a1.example.org", "a2.example.org"], "a[1-2].example.org"),
        (["h1", "h1"], "h1"),
        (["@all", "n1"], "@all,n1"),
    ],
)
def test_names_fold(names: list[str], text: str) -> None:
    assert folded(names) == text


def test_names_that_do_not_fold_are_cut_with_their_number() -> None:
    text = folded([f"host-{number * 7919:x}q" for number in range(1, 500)], most_chars=100)
    assert len(text) < 120
    assert text.endswith(f"and {499 - text.count(',') - 1} more")


def test_one_line_for_each_reason() -> None:
    states = [
        NodeState("h01", "lost", "cannot reach h01: no route"),
        NodeState("h07", "refused", "wrong key"),
        NodeState("h02", "lost", "cannot reach h02: no route"),
    ]
    assert by_reason(states)[0] == ("lost", "cannot reach the node: no route", ["h01", "h02"])
    assert sentences(states) == ["h[01-02] lost: cannot reach the node: no route", "h07 refused: wrong key"]


def test_one_node_keeps_its_name_and_others_are_not_mistaken_for_it() -> None:
    assert sentences([NodeState("h1", "lost", "ssh h1 once")]) == ["h1 lost: ssh h1 once"]
    assert nameless("h1 is not h10 nor ah1 nor h1.local", "h1") == "the node is not h10 nor ah1 nor the node.local"


def seen(node: str, first: int, world: int = 8) -> Sample:
    ranks = [
        RankSample(100 + rank, rank, rank - first, world, 2, job="j", state="S") for rank in range(first, first + 2)
    ]
    return Sample(node, 1000.0, ranks=ranks)


def test_ranks_that_nobody_has_seen_may_be_on_the_nodes_that_did_not_answer() -> None:
    missing = [NodeState("h03", "lost", "connection refused"), NodeState("h04", "lost", "connection refused")]
    samples = {"h01": [seen("h01", 0)], "h02": [seen("h02", 2)]}
    gaps = {gap.what: gap.why for gap in judge(Material(samples=samples, not_answered=missing))[0].verdict.gaps}
    assert gaps["rank.4-7"] == "ranks 4-7 have not answered: they may be on h[03-04]"
    assert gaps["node.h[03-04]"] == "lost: connection refused; their ranks are unknown"
    assert "node.h03" not in gaps


def test_ranks_that_the_dumped_nodes_do_not_have_may_be_on_the_others() -> None:
    def gaps(partial: bool) -> dict[str, Gap]:
        samples = {"h01": [seen("h01", 0)], "h02": [seen("h02", 2)]}
        return {gap.what: gap for gap in judge(Material(samples=samples, partial=partial))[0].verdict.gaps}

    watched = gaps(partial=False).pop("rank.4-7")
    assert (watched.why, watched.fix) == ("ranks 4-7 are not on the watched nodes", "add their nodes with -w")
    dumped = gaps(partial=True).pop("rank.4-7")
    assert (dumped.why, dumped.fix) == ("ranks 4-7 are not on the nodes that were dumped", "dump all nodes")
    assert gaps(partial=True) | {"rank.4-7": watched} == gaps(partial=False)


def test_of_some_nodes_and_one_that_did_not_answer_both_are_named() -> None:
    silent = [NodeState("h02", "lost", "connection refused")]
    report = report_of(evidence_by_job([seen("h01", 0)], [], {}, silent, partial=True)[0])
    gaps = {gap.what: gap for gap in report.verdict.gaps}
    assert gaps["rank.2-7"].why == ("ranks 2-7 have not answered: they may be on h02 or on nodes that were not dumped")
    assert gaps["rank.2-7"].fix == "dump all nodes"


def test_a_complete_job_does_not_care_about_nodes_that_did_not_answer() -> None:
    samples = {"h01": [seen("h01", 0, 4)], "h02": [seen("h02", 2, 4)]}
    material = Material(samples=samples, not_answered=[NodeState("h09", "lost", "gone")])
    assert not [gap for gap in judge(material)[0].verdict.gaps if gap.what.startswith(("node.", "rank."))]


def test_a_command_for_several_nodes_names_one_that_can_be_typed() -> None:
    def denied(node: str) -> NodeState:
        fix = f"ssh -l al {node} once by hand; ssh-add -l"
        return NodeState.because(node, "refused", "login refused (publickey)", fix)

    assert sentences([denied("h01"), denied("h02")]) == [
        "h[01-02] refused: login refused (publickey) (e.g. ssh -l al h01 once by hand; ssh-add -l)"
    ]
    said = [NodeState(node, "lost", f"ssh: connect to host {node} port 22: x") for node in ("h01", "h02")]
    assert sentences(said) == ["h[01-02] lost: ssh: connect to host the node port 22: x"]


def test_ranks_that_a_lost_node_named_before_are_said() -> None:
    missing = [NodeState("h02", "lost", "no route"), NodeState("h03", "lost", "no route")]
    samples = {"h01": [seen("h01", 0)], "h02": [seen("h02", 2)], "h03": [seen("h03", 4)]}
    verdict = judge(Material(samples=samples, not_answered=missing))[0].verdict
    gaps = {gap.what: gap.why for gap in verdict.gaps}
    assert gaps["node.h[02-03]"] == "lost: no route; their ranks (ranks 2-5) are unknown"
    assert "ranks 2-5 on h02, h03 gave no stack" in " ".join(verdict.evidence)


def test_a_reason_that_is_replaced_alone_is_the_whole_why() -> None:
    states = [NodeState.because(f"h{n}", "stale", "no sample for 8 s", "wait", 8.0) for n in range(3)]
    late = [replace(state, reason="answered 3 of 8 ranks within 30 s", fix="") for state in states]
    assert sentences(late) == ["h[0-2] stale: answered 3 of 8 ranks within 30 s"]
    assert [(state.why, state.fix) for state in late] == [("answered 3 of 8 ranks within 30 s", "")] * 3
