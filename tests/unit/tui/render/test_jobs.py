"""The nodes of a fleet by job: the gravest first, inside by name, and what each does in words."""

from __future__ import annotations

import pytest

from mltop.probes.judge.states import JobStates, States
from mltop.probes.model import GpuSample, JobKey, JobMotion, NodeState, RankSample, Sample
from mltop.probes.model.incident import Doing
from mltop.probes.model.sample import PlacedJob
from mltop.probes.model.vocabulary import WorkState
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.render.answer import answer_of
from mltop.tui.render.cells import plain, row_of
from mltop.tui.render.fleet.heat import METRICS
from mltop.tui.render.fleet.jobs import NO_JOB, Group, Grouping
from mltop.tui.render.fleet.map import node_lines
from mltop.tui.render.fleet.nodes import NODE_COLUMNS, NodeLine
from mltop.tui.render.states import doing_cell


def node(name: str, *jobs: str, uid: int = 5, at: float = 1.0) -> NodeView:
    """A rank of each of these jobs."""
    ranks = [RankSample(100 + place, place, job=job, uid=uid) for place, job in enumerate(jobs)]
    return NodeView(NodeState(name, "live"), Sample(name, at, gpus=[GpuSample(0)], ranks=ranks))


def states(**jobs: WorkState) -> States:
    return States({PlacedJob(job, 5, ""): JobStates(Doing(state, 60.0)) for job, state in jobs.items()})


def shape(groups: list[Group]) -> list[tuple[str, list[str]]]:
    return [(group.title, [view.node for view in group.nodes]) for group in groups]


VIEWS = [node("n10", "b"), node("n9", "b"), node("n2", "a"), node("n3"), node("n1", "c"), node("n4", "c", "c", "a")]


def test_the_gravest_job_comes_first_and_inside_it_names_are_in_order() -> None:
    found = Grouping().of(VIEWS, states(a="works", b="waits", c="starved"))
    assert shape(found) == [("c", ["n1", "n4"]), ("b", ["n9", "n10"]), ("a", ["n2"]), (NO_JOB, ["n3"])]
    assert [group.job for group in found] == [JobKey("c", 5), JobKey("b", 5), JobKey("a", 5), None]
    assert [group.still_since for group in found] == [None, 60.0, None, None]


def test_a_job_with_a_culprit_comes_before_one_that_only_waits() -> None:
    known = states(a="waits", b="waits").known
    hung = JobStates(Doing("waits", 60.0), {0: Doing("stands", 60.0)}, {("n9", 100): Doing("stands", 60.0)})
    found = Grouping().of(VIEWS, States({**known, PlacedJob("b", 5, ""): hung}))
    assert [group.title for group in found][:2] == ["b", "a"]


def test_what_job_a_silent_node_has_is_not_known() -> None:
    away = NodeView(NodeState("n7", "connecting"))
    assert shape(Grouping().of([away, node("n3")], States())) == [(NO_JOB, ["n3"]), ("no answer", ["n7"])]


def test_jobs_of_one_name_on_nodes_of_their_own_and_of_others_stand_apart() -> None:
    here = States({PlacedJob("run", 5, name): JobStates(Doing("works")) for name in ("n1", "n2")})
    found = Grouping().of([node("n1", "run"), node("n2", "run")], here)
    assert shape(found) == [("run", ["n1"]), ("run", ["n2"])]
    others = Grouping().of([node("n1", "run"), node("n2", "run", uid=6)], States())
    assert [group.job for group in others] == [JobKey("run", 5), JobKey("run", 6)]


@pytest.mark.parametrize(
    ("known", "words", "style"),
    [
        (JobStates(Doing("works")), "2 ranks work", "dim"),
        (JobStates(Doing("waits", 60.0)), "2 ranks wait", "waits"),
        (JobStates(Doing("stalled", 60.0)), "2 ranks are stuck", "waits"),
        (JobStates(Doing("starting")), "2 ranks start", "dim"),
        (JobStates(Doing("starved")), "2 ranks starved", "warn"),
        (JobStates(Doing("unknown")), "2 ranks", "dim"),
        (None, "2 ranks", "dim"),
    ],
)
def test_what_a_job_does_in_words(known: JobStates | None, words: str, style: str) -> None:
    made = States({} if known is None else {PlacedJob("b", 5, ""): known})
    (group,) = Grouping().of([node("n10", "b"), node("n9", "b")], made)
    assert plain(group.about).rstrip() == f"2 nodes  {words}"
    assert group.about[1].style == style


def test_a_job_that_may_have_stalled_is_named_as_on_line_1() -> None:
    known = States({PlacedJob("b", 5, ""): JobStates(Doing("quiet", 60.0))})
    (group,) = Grouping().of([node("n10", "b"), node("n9", "b")], known, 72.4)
    assert plain(group.about) == "2 nodes  STALLED? 12s  2 ranks make no progress"
    motion = JobMotion("b", 5, phase="quiet", since=60.0, ranks_seen=2)
    view = FleetView(72.4, ())
    assert plain(answer_of(Picture(view, motions=(motion,))).line(120)).startswith("▲ STALLED? 12s")


def test_so_are_its_nodes() -> None:
    still = doing_cell(Doing("quiet", 60.0), 72.4)
    view = node("n9", "b")
    assert "no progress 12s" in row_of(NODE_COLUMNS, NodeLine(view, still=still), "n9").text
    assert "no progress 12s" in plain(node_lines(view, METRICS[0], 120, still=still)[0])


def test_who_holds_it_up_is_counted_apart() -> None:
    waits = JobStates(Doing("waits", 60.0), {0: Doing("stands", 60.0), 1: Doing("waits", 60.0), 7: Doing("ended", 1.0)})
    (group,) = Grouping().of([node("n1", *["b"] * 8)], States({PlacedJob("b", 5, ""): waits}))
    assert plain(group.about) == "1 node  6 ranks wait, 1 stuck, 1 ended"
    assert [cell.style for cell in group.about if cell.text.startswith("1 ")] == ["dim", "crit", "crit"]


def test_a_node_keeps_its_group_within_a_sample_and_changes_with_the_next() -> None:
    grouping = Grouping()
    assert grouping.of([node("n1", "a")], States())[0].title == "a"
    assert grouping.of([node("n1", "b", at=2.0)], States())[0].title == "b"


@pytest.mark.parametrize(
    ("known", "stands"),
    [
        (JobStates(Doing("works")), False),
        (JobStates(Doing("waits", 1.0)), True),
        (JobStates(Doing("quiet", 1.0)), True),
        (JobStates(Doing("works"), gpus={("n1", 0): Doing("alone")}), True),
    ],
)
def test_what_lies_over_the_map_is_only_what_stands(known: JobStates, stands: bool) -> None:
    made = States({PlacedJob("a", 5, ""): known})
    assert (Grouping().standing(node("n1", "a"), made) is known) == stands
    assert Grouping().standing(node("n1", "x"), made) is None and Grouping().standing(node("n1"), made) is None


def test_by_name_all_are_one_group() -> None:
    group = Grouping().all_by_name(VIEWS)
    assert [view.node for view in group.nodes] == ["n1", "n2", "n3", "n4", "n9", "n10"] and group.title == ""
