"""The pure parts of the screen: sorting, places, problems, the status line, findings of a live view."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mltop.probes.investigate.progress import StackProgress
from mltop.probes.model import Finding, NodeState
from mltop.probes.model.units import bytes_text
from mltop.probes.reach.view import Connection
from mltop.tui.app.judging import HealthWatch, StateWatch, own_boot_id
from mltop.tui.app.navigation import Location, Trail
from mltop.tui.app.session import Investigation
from mltop.tui.filters import Filter
from mltop.tui.render.cells import Column, plain
from mltop.tui.render.rows import Sort, item_rows
from mltop.tui.report.page import Page
from mltop.tui.screens.bars import Notice, dump_line, end_of_dump, notice_line, waiting_for
from mltop.tui.screens.rows import narrowed, next_sort
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import fleet, one_node

COLUMNS = (
    Column("name", "NAME", 6, cell=lambda _: "n1"),
    Column("size", "SIZE", 6, right=True, cell=bytes_text, value=lambda size: size),
)


def test_amounts_sort_by_value_and_unknown_comes_last() -> None:
    sizes = [980 * 2**20, None, 74.2 * 2**30, 2.0**40, 12 * 2**10]
    names = ["980M", "–", "74.2G", "1.0T", "12K"]
    rows = item_rows(COLUMNS, sizes, lambda size: names[sizes.index(size)])
    for reverse, expected in ((True, "1.0T 74.2G 980M 12K –"), (False, "12K 980M 74.2G 1.0T –")):
        found = narrowed(rows, Filter(), Sort("size", reverse), {})
        assert " ".join(row.key for row in found) == expected


def test_sorting_cycles_through_columns_back_to_none() -> None:
    first = next_sort(COLUMNS, 80, None)
    assert first == Sort("name", False)
    second = next_sort(COLUMNS, 80, first)
    assert second == Sort("size", True), "amounts start with the largest"
    assert next_sort(COLUMNS, 80, second) is None


def test_trail_goes_back_and_starts_anew() -> None:
    trail = Trail(Location("overview"))
    assert trail.crumbs() == "overview"
    trail.drill(Location("node", "n1"))
    trail.drill(Location("ranks", "n1"))
    trail.drill(Location("ranks", "n1"))
    assert trail.crumbs() == "n1 > ranks"
    assert trail.back() and trail.here == Location("node", "n1")
    trail.jump(Location("stacks"))
    assert trail.crumbs() == "stacks"
    assert trail.back() and not trail.back()


def test_dump_line_fits_any_width() -> None:
    progress = StackProgress("watching", 2, 3, 37, 64, 4.25)
    assert plain(dump_line(progress, 200)).startswith("stacks: watching  37/64 ranks  ")
    for width in range(30, 120):
        assert len(plain(dump_line(progress, width))) <= width
    assert "0/? ranks" in plain(dump_line(StackProgress("dumping"), 80))


def test_a_cancelled_dump_says_so_before_it_is_over() -> None:
    class Stubborn:
        """Still judges what it has."""

        def cancel(self) -> None: ...

    session = FakeSession()
    session.dump_stacks = lambda *_: Stubborn()  # type: ignore[method-assign]
    investigation = Investigation(session, lambda _: None)
    investigation.start_dump()
    assert not investigation.cancelling
    investigation.cancel_dump()
    assert investigation.dumping and investigation.cancelling
    line = plain(dump_line(StackProgress("judging"), 120, cancelling=investigation.cancelling))
    assert "cancelling" in line and "Esc" not in line
    investigation.start_dump()
    assert not investigation.cancelling
    assert end_of_dump(StackProgress("done")) is None


def test_a_notice_cuts_the_front_of_its_path() -> None:
    path = "/a/long/folder/" * 5 + "2025-11-20T12-00-00"
    notice = Notice("captured to ", "warn", path, ", missing: node07 did not answer")
    text = plain(notice_line(notice, 80))
    assert text.startswith("captured to …") and len(text) == 80
    assert "2025-11-20T12-00-00, missing: node07 did not answer" in text
    narrow = plain(notice_line(notice, 40))
    assert "2025-11-20T12-00-00" in narrow[:40]
    assert plain(notice_line(notice, 200)) == f"captured to {path}, missing: node07 did not answer"
    assert plain(notice_line(Notice("read-only"), 5)) == "read-only"


def test_a_dump_waits_for_nodes_that_are_not_live_and_not_given_up() -> None:
    lost = NodeState("node007", "lost", "reset", 41.0)
    waiting = waiting_for(StackProgress("dumping"), fleet(nodes=9))
    assert waiting == "waiting for node005 (stale) and 1 more"
    given_up = StackProgress("dumping", not_answered=(lost,))
    assert waiting_for(given_up, fleet(nodes=9)) == "waiting for node005 (stale)"
    assert waiting_for(StackProgress("judging"), fleet(nodes=9)) == ""
    assert waiting_for(StackProgress("dumping"), fleet(nodes=4)) == ""


def test_findings_keep_when_they_first_appeared_and_go_when_they_are_over() -> None:
    watch = HealthWatch()
    since = set()
    for tick in range(40):
        findings = watch.findings(one_node(tick))
        assert {finding.subject for finding in findings} == {"GPU 3", "GPU 6"}, f"at {tick} s"
        since |= {finding.since for finding in findings}
    sample = one_node(0).nodes[0].sample
    assert since == {sample.sampled_at, sample.gpus[6].last_seen_at}, "lost since it last answered"
    healthy = one_node(300)
    for gpu in healthy.nodes[0].sample.gpus:  # type: ignore[union-attr]
        gpu.state, gpu.throttle_reasons, gpu.error, gpu.temperature_c = "ok", [], None, 60.0
        gpu.sm_clock_mhz = 1980
    assert watch.findings(healthy) == ()


@pytest.mark.parametrize(
    ("via", "boot_id", "accused"),
    [("ssh", "b", True), ("local", "b", False), ("ssh", own_boot_id(), False)],
    ids=["another machine", "a local agent", "this machine by ssh"],
)
def test_this_machines_own_clock_is_never_off(via: str, boot_id: str, accused: bool) -> None:
    watch = HealthWatch()
    found: tuple[Finding, ...] = ()
    for tick in range(9):
        view = one_node(tick)
        node = replace(view.nodes[0], connection=Connection(via, clock_skew_s=-12.0))
        assert node.sample is not None
        node.sample.boot_id = boot_id
        found = watch.findings(replace(view, nodes=(node,)))
    assert ("time.sync" in [one.id for one in found]) is accused


def test_nodes_that_do_not_answer_are_findings_where_there_are_several() -> None:
    now = 100.0
    watch = StateWatch(lambda: now)
    watch.states(fleet(0, nodes=9))
    for _ in range(20):
        now += 1.0
        found = watch.states(fleet(0, nodes=9))
    assert [(one.node, one.id) for one in found] == [("node005", "node.stale"), ("node007", "node.lost")]
    assert watch.states(fleet(1, nodes=9)) is found, "nothing else is wrong, and since when stays"
    assert watch.states(fleet(2, nodes=6)) == found[:1]
    assert StateWatch().states(one_node()) == ()


def test_a_pause_while_nodes_or_mltop_start_is_no_finding() -> None:
    now = 100.0
    watch = StateWatch(lambda: now)
    live = fleet(0, nodes=4)

    def stale(age_s: float) -> set[str]:
        states = [replace(one, state=NodeState(one.node, "stale", "no sample", age_s)) for one in live.nodes]
        return {one.id for one in watch.states(replace(live, nodes=tuple(states)))}

    assert watch.states(live) == ()
    now += 1.5
    assert stale(6.0) == set(), "they have just answered for the first time"
    for _ in range(12):
        now += 1.5
        watch.states(live)
    assert stale(3.5) == {"node.stale"}
    now += 600.0
    assert stale(603.5) == set(), "mltop was stopped itself"
    now += 1.5
    assert stale(605.0) == set()
    now += 1.5
    assert stale(606.5) == {"node.stale"}


def test_a_node_that_is_silent_from_the_start_is_a_finding_in_the_end() -> None:
    now = 100.0
    watch = StateWatch(lambda: now)
    first = []
    for second in range(20):
        silent = fleet(0, nodes=4)
        states = [replace(one, state=NodeState(one.node, "stale", "", float(second))) for one in silent.nodes]
        if watch.states(replace(silent, nodes=tuple(states))):
            first.append(second)
        now += 1.0
    assert first[0] == 15


def test_a_lemon_list_that_cannot_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_STATE_DIR", str(tmp_path))
    (tmp_path / "lemons.json").write_text("{")
    found = HealthWatch().findings(one_node())
    assert [one.subject for one in found if one.id == "state.lemons"] == ["lemon list"]
    (tmp_path / "lemons.json").unlink()
    assert not [one for one in HealthWatch().findings(one_node()) if one.id == "state.lemons"]


def test_a_page_tells_what_a_finding_explains() -> None:
    xid = Finding("gpu.xid.hw", "critical", "n1", "GPU 3", "Xid 79: GPU 3 fell off the bus")
    lost = Finding("gpu.lost", "critical", "n1", "GPU 3", "GPU 3 lost", explains=[xid])
    lost.folded = ["gpu.xid.hw GPU 3", "… and 12 more"]
    printed = StringIO()
    Page(Console(file=printed, width=120)).finding(lost, verbose=True)
    assert "explains Xid 79: GPU 3 fell off the bus" in printed.getvalue()
    assert "explains … and 12 more" in printed.getvalue() and "gpu.xid.hw" not in printed.getvalue()
    lost.explains, lost.folded = [], ["gpu.xid.hw GPU 3"]
    Page(Console(file=printed, width=120)).finding(lost, verbose=True)
    assert "explains gpu.xid.hw GPU 3" in printed.getvalue(), "what an older version has told"
