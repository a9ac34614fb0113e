"""Line 1: what it says of every picture, at any width; never that all is fine while something cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.cells import cell_len

from mltop.probes.model import (
    Culprit,
    Finding,
    Gap,
    GpuSample,
    Incident,
    JobMotion,
    NodeState,
    Sample,
    Suffers,
)
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_time
from mltop.probes.model.vocabulary import IncidentKind, Severity
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.render.answer import Answer, answer_of
from mltop.tui.render.cells import plain

NOW = 2000.0
CULPRIT = Culprit(229, "sim030", 42, "stands", "read (data.py:1)", gpu=5, how="stands")
HEADLINE = "train-70b: rank 229 (sim030 GPU 5) never reached all_reduce, 455 ranks wait"


def live(*gpus: GpuSample, name: str = "n1", **fields: object) -> NodeView:
    made = Sample(name, NOW, gpus=list(gpus), **fields)  # type: ignore[arg-type]
    return NodeView(NodeState(name, "live", age_s=0.4), made)


def view(*nodes: NodeView) -> FleetView:
    return FleetView(NOW, nodes or (live(GpuSample(0, sm_active=0.9), GpuSample(1, sm_active=0.0, busy=0.0)),))


def incident(kind: IncidentKind = "hang", severity: Severity = "critical", **fields: object) -> Incident:
    made = Incident("1", kind, severity, HEADLINE, job="train-70b", since=NOW - 390, culprits=[CULPRIT])
    return replace(made, **fields)  # type: ignore[arg-type]


def finding(severity: Severity = "critical", node: str = "n1", **fields: object) -> Finding:
    made = Finding("gpu.hot", severity, node, "GPU 1", "GPU 1 is too hot", since=NOW - 125)
    return replace(made, **fields)  # type: ignore[arg-type]


def motion(phase: str, job: str = "a", **fields: object) -> JobMotion:
    made = JobMotion(job, 0, phase=phase, at=NOW, since=NOW - 9.7, ranks_seen=4)  # type: ignore[arg-type]
    return replace(made, **fields)  # type: ignore[arg-type]


def pictured(
    shown: FleetView,
    incidents: Sequence[Incident] = (),
    findings: Sequence[Finding] = (),
    motions: Sequence[JobMotion] = (),
    not_judged: int = 0,
    calm_since: float | None = None,
) -> Picture:
    """``not_judged``: so many nodes; ``calm_since``: when the last finding ended."""
    over = () if calm_since is None else (finding(until=calm_since), finding(until=calm_since - 9))
    late = frozenset(node.node for node in shown.nodes[:not_judged])
    return Picture(shown, tuple(findings), late, over, incidents=tuple(incidents), motions=tuple(motions))


def said(answer: Answer) -> tuple[str, str, str, str]:
    return answer.mark, answer.word, answer.age, answer.style


HUNG = ("■", "HUNG", "6m30s", "chip-crit")


@pytest.mark.parametrize(
    ("kind", "severity", "expected"),
    [
        ("hang", "critical", HUNG),
        ("crash", "critical", ("■", "DIED", "6m30s", "chip-crit")),
        ("straggler", "warning", ("▲", "SLOW", "6m30s", "chip-warn")),
        ("starved", "warning", ("▲", "STARVED", "6m30s", "chip-warn")),
        ("slow", "warning", ("▲", "SLOW", "6m30s", "chip-warn")),
        ("slow", "critical", ("▲", "SLOW", "6m30s", "chip-crit")),
        ("stopped", "warning", ("▲", "ENDED", "6m30s", "chip-warn")),
        ("node", "critical", ("▲", "1 CRIT", "6m", "chip-crit")),
        ("node", "warning", ("▲", "1 WARN", "6m", "chip-warn")),
    ],
)
def test_every_kind_of_incident(kind: IncidentKind, severity: Severity, expected: tuple[str, ...]) -> None:
    answer = answer_of(pictured(view(), [incident(kind, severity)]))
    assert said(answer) == expected
    assert answer.headline == HEADLINE and answer.opens
    assert answer.over == {"chip-crit": "line-crit", "chip-warn": "line-warn"}[expected[-1]]


WAITING = Suffers(Ranges.of(range(4)), 4, 0.1, Ranges.of([0, 1, 3]), "all_reduce")
WHERE = Culprit(2, "n1", 7, "stands", "ShardDataset.__getitem__ (job/data.py:53)", gpu=2, how="stands")
SINCE = clock_time(NOW - 390)
SAID = f"rank 2 (GPU 2) is stuck in ShardDataset.__getitem__ (job/data.py:53), 3 ranks wait in all_reduce since {SINCE}"


@pytest.mark.parametrize(
    ("width", "headline"),
    [
        (200, SAID),
        (120, f"rank 2 (GPU 2) is stuck, 3 ranks wait in all_reduce since {SINCE}"),
        (90, "rank 2 (GPU 2) is stuck, 3 ranks wait in all_reduce"),
        (76, "rank 2 (GPU 2) is stuck, 3 wait in all_reduce"),
        (58, "rank 2 is stuck, 3 ranks wait"),
        (53, "rank 2 is stuck, 3 wait"),
    ],
)
def test_who_waits_and_in_what_is_told_before_where_in_the_code(width: int, headline: str) -> None:
    hung = incident(headline=SAID, culprits=[WHERE], suffers=WAITING)
    text = plain(answer_of(pictured(view(), [hung])).line(width, "8", "lists all"))
    assert text.startswith(f"■ HUNG 6m30s   {headline}  ")
    assert text.endswith("8 lists all"), "a letter alone says nothing"


def test_of_a_death_who_and_how_comes_before_who_waits() -> None:
    dead = Culprit(2, "n1", 7, "killed by SIGKILL", "", gpu=2, how="dead")
    told = answer_of(pictured(view(), [incident(headline="x" * 300, culprits=[dead], suffers=WAITING)]))
    assert told.briefer[0] == f"rank 2 (GPU 2) died (killed by SIGKILL), 3 ranks wait in all_reduce since {SINCE}"
    cause = finding(message="GPU 2 fell off the bus")
    told = answer_of(pictured(view(), [incident(culprits=[dead], suffers=WAITING, causes=[cause])]))
    assert told.briefer[0] == "GPU 2 fell off the bus; rank 2 died, 3 ranks wait in all_reduce"


def test_the_first_of_several_incidents_and_how_many_more() -> None:
    answer = answer_of(pictured(view(), [incident(), incident("slow", "warning"), incident(until=NOW)]))
    assert said(answer) == HUNG and answer.headline == f"{HEADLINE} (+1 incident)"
    assert answer.title == f"■ HUNG 6m30s {answer.headline}"


def test_what_is_over_or_only_worth_knowing_is_fine() -> None:
    over = [incident(until=NOW - 5), incident("stopped", "info")]
    answer = answer_of(pictured(view(), over, [finding("info"), finding(until=NOW - 1)], calm_since=NOW - 400))
    assert said(answer) == ("●", "fine", "", "ok")
    assert answer.headline == "1 of 2 GPUs work" and answer.aside == "no finding in 6m"
    assert not answer.opens and answer.over == ""


def test_findings_are_counted_once() -> None:
    first, second = finding(), finding("warning", node="n2")
    of_node = incident("node", causes=[first], headline="GPU 1 of n1 is too hot")
    answer = answer_of(pictured(view(), [of_node], [first, second, finding("info")]))
    assert said(answer) == ("▲", "1 CRIT 1 WARN", "", "chip-crit")
    assert answer.headline == "GPU 1 of n1 is too hot"
    alone = answer_of(pictured(view(), [], [second]))
    assert (alone.word, alone.age, alone.headline) == ("1 WARN", "2m", "n2: GPU 1 is too hot")


def test_the_gravest_is_told_whether_or_not_it_is_an_incident_yet() -> None:
    slow = incident("node", "warning", causes=[finding("warning")], headline="GPU 1 runs hotter than its siblings")
    told = answer_of(pictured(view(), [slow], [finding("warning"), finding("critical", node="n2", subject="GPU 2")]))
    assert told.headline == "n2: GPU 1 is too hot" and told.word == "1 CRIT 1 WARN"


def test_a_standstill_that_no_incident_tells_of_yet() -> None:
    quiet = answer_of(pictured(view(), motions=[motion("quiet"), motion("moving", "b")], findings=[finding()]))
    assert said(quiet) == ("▲", "STALLED?", "9.0s", "chip-warn")
    stalled = answer_of(pictured(view(), motions=[motion("quiet"), motion("stalled", "b", since=NOW - 60)]))
    assert said(stalled) == ("■", "STALLED", "1m00s", "chip-crit")
    assert stalled.headline.startswith("job b: 4 ranks stuck, culprit not known yet") and stalled.key == (
        "t",
        "dumps stacks",
    )
    assert quiet.headline == "job a: 4 ranks: no progress"


def test_of_jobs_that_stopped_the_largest_is_named() -> None:
    lost = incident("node", job="", culprits=[], causes=[finding()])
    hung = incident(suffers=Suffers(gpus=8, ranks=Ranges.of(range(8))))
    small, large = motion("quiet"), motion("quiet", "b", ranks_seen=456)
    assert answer_of(pictured(view(), [hung, lost], motions=[small])).word == "HUNG"
    answer = answer_of(pictured(view(), [hung, lost], motions=[small, large]))
    assert said(answer) == ("▲", "STALLED?", "9.0s", "chip-warn")
    assert answer.headline == "job b: 456 ranks: no progress (+2 incidents)"
    assert answer_of(pictured(view(), [lost], motions=[small])).headline.startswith("job a: 4 ranks")
    assert answer_of(pictured(view(), [hung], motions=[motion("stalled", "train-70b", uid=None)])).word == "HUNG"


def away(name: str, state: str, reason: str = "", age_s: float | None = None) -> NodeView:
    return NodeView(NodeState(name, state, reason, age_s))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("picture", "word", "headline"),
    [
        (None, "starting", "waiting for the first sample"),
        (pictured(view(away("n1", "connecting"))), "connecting", "to n1"),
        (
            pictured(view(away("n1", "stale", "no sample for 9 s", 9.0))),
            "STALE",
            "n1 does not answer: no sample for 9 s",
        ),
        (pictured(view(away("n1", "lost", "", 60.0))), "LOST", "n1 does not answer"),
        (pictured(view(away("n1", "refused", "no agent"))), "REFUSED", "n1 does not answer: no agent"),
        (pictured(view(live(), away("n2", "connecting"))), "connecting", "1 of 2 nodes have answered"),
        (pictured(view(live(), away("n2", "stale"), away("n3", "lost"))), "2 AWAY", "2 of 3 nodes do not answer"),
        (pictured(view(live(), live(name="n2")), not_judged=1), "starting", "checking: 1 of 2 nodes"),
        (pictured(view(), not_judged=1), "starting", "checking: 0 of 1 node"),
        (
            pictured(view(live(gaps=[Gap("nvml", "the driver is not loaded", "load it")]))),
            "GPUs unknown",
            "the driver is not loaded",
        ),
        (
            pictured(view(live(gaps=[Gap("nvml", "no driver", code="no_driver")]))),
            "no GPU seen",
            "no driver",
        ),
    ],
)
def test_it_is_not_fine_while_something_cannot_be_told(picture: Picture | None, word: str, headline: str) -> None:
    answer = answer_of(picture)
    assert (answer.word, answer.headline) == (word, headline)
    assert answer.style != "ok" and answer.mark != "●"
    if picture is not None:
        worse = answer_of(replace(picture, findings=[finding()]))
        away_alone = word if word in ("LOST", "REFUSED") else ""  # then all else is of before
        assert worse.word == (away_alone or "1 CRIT"), "what is known to be wrong comes first"


@pytest.mark.parametrize(
    ("gpus", "headline"),
    [
        ([GpuSample(0, sm_active=0.9), GpuSample(1, busy=0.5)], "2 of 2 GPUs work"),
        ([GpuSample(0, sm_active=0.0, busy=1.0)], "1 of 1 GPU work"),
        ([GpuSample(0, sm_active=0.9), GpuSample(1)], "1 of 2 GPUs work; of 1 GPU it is not known whether they work"),
        ([GpuSample(0), GpuSample(1)], "of 2 GPUs it is not known whether they work"),
        ([], ""),
    ],
)
def test_what_is_fine_says_how_much_works_and_unknown_is_not_none(gpus: list[GpuSample], headline: str) -> None:
    assert answer_of(pictured(view(live(*gpus)))).headline == headline


@pytest.mark.parametrize(
    ("motions", "words"),
    [
        ([motion("moving", since=None)], "job a runs"),
        ([motion("starting")], "job a starts"),
        ([motion("unknown")], "job a"),
        ([motion("moving", "")], "one job has run since"),
        ([motion("moving"), motion("moving", "b")], "2 jobs run"),
        ([motion("moving"), motion("unknown", "b"), motion("starting", "c")], "1 of 3 jobs run"),
    ],
)
def test_what_is_fine_says_of_jobs_only_what_is_known(motions: list[JobMotion], words: str) -> None:
    headline = answer_of(pictured(view(), motions=motions)).headline
    assert headline.startswith(f"1 of 2 GPUs work; {words}")
    assert headline.endswith(words) or "since" in words


SITUATIONS = [
    None,
    pictured(view()),
    pictured(view(), motions=[motion("moving")], calm_since=NOW - 4000),
    pictured(view(), [incident()]),
    pictured(view(), [incident(since=NOW - 90000, culprits=[replace(CULPRIT, rank=n) for n in range(0, 40, 2)])]),
    pictured(view(), [incident(headline="日本語" * 20, culprits=[]), incident()]),
    pictured(view(), [], [finding(), finding("warning", node="n2")]),
    pictured(view(away("a-node-with-a-long-name", "lost", "ssh: Connection reset by peer", 9.0))),
    pictured(view(), motions=[motion("stalled")]),
]


@pytest.mark.parametrize("picture", SITUATIONS)
def test_it_fits_at_every_width_and_says_where_it_is_cut(picture: Picture | None) -> None:
    answer = answer_of(picture)
    for width in range(4, 201):
        for key, does in (("Enter", "opens it"), ("8", "lists all"), ("", "")):
            line = answer.line(width, key, does)
            text = plain(line)
            assert cell_len(text) <= width, (width, text)
            if width >= 24 and answer.headline:
                whole = (answer.headline, *answer.briefer)
                begins = any(way[:6] in text for way in whole)
                assert not begins or "…" in text or any(way in text for way in whole), (width, text)
            if width >= 80 and answer.opens and key:
                assert text.rstrip().endswith((key, does)) and "keys" in {cell.style for cell in line}


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (4, "■"),
        (6, "■ HUNG"),
        (9, "■ HUNG 6m"),
        (14, "■ HUNG r229 6m"),
        (20, "■ HUNG r229 6m"),
        (28, "■ HUNG r229 6m"),
    ],
)
def test_the_smallest_screen_says_who_and_since_when(width: int, text: str) -> None:
    assert plain(answer_of(pictured(view(), [incident()])).line(width, "Enter", "opens it")) == text


@pytest.mark.parametrize(
    ("width", "start", "end"),
    [
        (120, f"■ HUNG 6m30s   {HEADLINE}", "Enter opens it"),
        (84, "■ HUNG 6m30s   train-70b: rank 229 (sim030 GPU 5) never reached all_reduce…  ", "  Enter"),
        (40, "■ HUNG 6m30s   train-70b: rank 229", ""),
    ],
)
def test_the_headline_gives_way_to_state_age_and_key(width: int, start: str, end: str) -> None:
    text = plain(answer_of(pictured(view(), [incident()])).line(width, "Enter", "opens it"))
    assert text.startswith(start) and text.endswith(end)


def test_ranks_of_a_rank_without_a_number_are_named_by_their_node() -> None:
    nameless = incident(culprits=[replace(CULPRIT, rank=None)])
    assert plain(answer_of(pictured(view(), [nameless])).line(20)) == "■ HUNG sim030 6m"
    assert plain(answer_of(pictured(view(), [incident(culprits=[])])).line(20)) == "■ HUNG 6m"
