"""The rows of the ranks' pane."""

from __future__ import annotations

from mltop.probes.judge.states import JobStates, States
from mltop.probes.model import GpuProcess, GpuSample, JobKey, NodeState, RankSample, Sample
from mltop.probes.model.incident import Doing
from mltop.probes.model.sample import PlacedJob
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.render.earlier import EarlierRanks
from mltop.tui.screens.tables import RowContext, rank_of, rank_rows

RANKS = [RankSample(pid, number, job="run", uid=5, state="S") for pid, number in ((12, 1), (11, 0))]
NOTEBOOK = RankSample(7, uid=5, state="S", command="python notebook.py")


def node(name: str = "n1", **fields: object) -> NodeView:
    return NodeView(NodeState(name, "live"), Sample(name, 1.0, **fields))  # type: ignore[arg-type]


def context(*nodes: NodeView, states: States | None = None) -> RowContext:
    return RowContext(Picture(FleetView(100.0, nodes), states=states or States()), EarlierRanks(), lambda *_: None)


def test_processes_of_no_job_stand_below_all_ranks() -> None:
    nodes = [node(ranks=RANKS, unassigned=[NOTEBOOK]), node("n2", unassigned=[NOTEBOOK])]
    columns, rows, _ = rank_rows(nodes, context(*nodes))
    assert [row.key for row in rows] == ["n1/11", "n1/12", "n1/7", "n2/7"]
    at = {column.key: index for index, column in enumerate(columns)}
    assert [(row.cells[at["rank"]].text, row.cells[at["job"]].text) for row in rows] == [
        ("0", "run"),
        ("1", "run"),
        ("-", "no job"),
        ("-", "no job"),
    ]
    assert all(len(row.cells) == len(columns) for row in rows)


def test_what_is_narrowed_to_a_jobs_ranks_has_none_of_them() -> None:
    one = node(ranks=RANKS, unassigned=[NOTEBOOK])
    _, rows, _ = rank_rows([one], context(one), (JobKey("run", 5), {1}))
    assert [row.key for row in rows] == ["n1/12"]


def test_one_can_be_opened() -> None:
    assert rank_of(node(ranks=RANKS, unassigned=[NOTEBOOK]), 7) is NOTEBOOK
    assert rank_of(node(ranks=RANKS, unassigned=[NOTEBOOK]), 8) is None


def cells(rows: object, columns: object, key: str) -> list[str]:
    at = [column.key for column in columns].index(key)  # type: ignore[attr-defined]
    return [row.cells[at].text for row in rows]  # type: ignore[attr-defined]


def test_who_holds_a_job_up_stands_above_those_who_wait() -> None:
    ranks = [RankSample(10 + number, number, job="run", uid=5, state="S", started_at=40.0) for number in range(4)]
    ranks[3].state = "Z"
    one = node(ranks=ranks)
    waits, stands = Doing("waits", 60.0, "all_reduce"), Doing("stands", 61.0)
    states = States({PlacedJob("run", 5, ""): JobStates(waits, {2: stands})})
    columns, rows, _ = rank_rows([one], context(one, states=states))
    assert cells(rows, columns, "rank") == ["2", "3", "0", "1"]
    assert cells(rows, columns, "state") == ["stuck", "ended", "waits in all_reduce", "waits in all_reduce"]
    assert cells(rows, columns, "mark") == ["■", "■", "", ""]
    assert cells(rows, columns, "since") == ["39s", "–", "40s", "40s"], "of one that ended it is not known"


def test_a_job_that_stands_comes_before_those_that_are_well_whatever_it_is_called() -> None:
    ranks = [RankSample(10, 0, job="a", uid=5, state="S"), RankSample(20, 0, job="z", uid=5, state="S")]
    one = node(ranks=ranks)
    hung = JobStates(Doing("waits", 60.0, "all_reduce"), {0: Doing("stands", 61.0)})
    known = {PlacedJob("a", 5, ""): JobStates(Doing("works")), PlacedJob("z", 5, ""): hung}
    columns, rows, _ = rank_rows([one], context(one, states=States(known)))
    assert cells(rows, columns, "job") == ["z", "a"]


def test_memory_is_the_processes_own_on_all_its_gpus() -> None:
    gpus = [
        GpuSample(0, processes=[GpuProcess(12, memory_bytes=3 << 30), GpuProcess(99, memory_bytes=9 << 30)]),
        GpuSample(1, processes=[GpuProcess(12, memory_bytes=2 << 30)]),
        GpuSample(2, processes=None),
    ]
    ranks = [RankSample(12, 0, job="run", gpus=[0, 1]), RankSample(13, 1, job="run", gpus=[2])]
    one = node(ranks=ranks, gpus=gpus)
    columns, rows, _ = rank_rows([one], context(one))
    assert cells(rows, columns, "gpumem") == ["5.0G", "–"]


def test_where_nothing_is_known_of_its_job_its_gpus_tell() -> None:
    gpus = [GpuSample(0, sm_active=0.5), GpuSample(1, sm_active=0.0, busy=0.0), GpuSample(2)]
    ranks = [RankSample(10 + number, number, job="run", gpus=[number], state="S") for number in range(3)]
    ranks.append(RankSample(20, 3, job="run", state="S"))
    one = node(ranks=ranks, gpus=gpus)
    columns, rows, _ = rank_rows([one], context(one))
    assert cells(rows, columns, "state") == ["works", "idle", "–", "–"], "unknown is not idle"
