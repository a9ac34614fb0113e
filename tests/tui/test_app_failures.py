"""What a node says may find a bug: that costs its row or its part of a pane, is said once, and never ends the screen.

The nodes here say what nothing lets through: words where numbers belong. So whatever draws them fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from mltop.probes.judge.health.rule import FAILED
from mltop.probes.model import GpuSample, KernelEvent, LinkSample, PciDevice, Sample
from mltop.probes.reach.view import FleetView, NodeView, Received
from mltop.tui.render.cells import Cell, Row
from mltop.tui.render.guarded import FAILURES, Failures, guarded
from mltop.tui.render.rows import LazyRows
from tests.builders.evaluated import evaluate
from tests.tui import fake_views
from tests.tui.fake_session import FakeSession
from tests.tui.opened import Opened, opened

WORDS: Any = "no number"
IDENTITIES = ("index", "pid", "uuid", "state", "node", "sampled_at", "interval_s", "device", "bus_id", "ranks", "gpus")


@pytest.fixture(autouse=True)
def _none_from_before() -> None:
    FAILURES.forget()


def spoil(record: Any) -> None:
    """Words in place of everything below ``record`` that names nothing."""
    for item in fields(record):
        value = getattr(record, item.name)
        if is_dataclass(value):
            spoil(value)
        elif item.name not in IDENTITIES and not isinstance(value, list):
            setattr(record, item.name, WORDS)


def bad_gpu(sample: Sample) -> None:
    spoil(sample.gpus[2])


def bad_rank(sample: Sample) -> None:
    spoil(sample.ranks[1])


def bad_host(sample: Sample) -> None:
    spoil(sample.host)


def bad_links(sample: Sample) -> None:
    sample.links = [LinkSample("mlx5_0"), LinkSample("mlx5_1")]
    sample.pci = [PciDevice("0000:9b:00.0"), PciDevice("0000:9c:00.0")]
    sample.links[0].counters = WORDS
    sample.links[0].rate_bits_per_s = WORDS
    sample.pci[0].aer = WORDS


def bad_events(sample: Sample) -> None:
    sample.kernel_events = [KernelEvent(fake_views.T0, "xid", code=WORDS, text=WORDS), KernelEvent(WORDS, "oom")]
    sample.kernel_events[0].kind = WORDS


def bad_gaps(sample: Sample) -> None:
    sample.gaps = [None]  # type: ignore[list-item]


BAD: list[Callable[[Sample], None]] = [bad_gpu, bad_rank, bad_host, bad_links, bad_events, bad_gaps]


def spoilt(view: FleetView, node: int, spoiled: Callable[[Sample], None]) -> FleetView:
    """The view with one bad node; what is known at a glance of it stays as it was."""
    nodes = list(view.nodes)
    sample = nodes[node].sample
    assert sample is not None
    whole = deepcopy(sample)
    spoiled(sample)
    nodes[node] = replace(nodes[node], newest=Received(whole, make=lambda: sample))
    return replace(view, nodes=tuple(nodes))


class Unpolished(FakeSession):
    """Its views are handed out as they are."""

    def view(self) -> FleetView:
        return self._views[self._at]


def session(make: Callable[[int], FleetView], node: int, spoiled: Callable[[Sample], None]) -> Unpolished:
    views = [make(0), spoilt(make(1), node, spoiled), replace(spoilt(make(2), node, spoiled), serial=2), make(3)]
    return Unpolished([replace(view, serial=at) for at, view in enumerate(views)])


async def walk(screen: Opened) -> None:
    """Through all panes, sorts, a filter, the timelines, a GPU, a rank."""
    for keys in ("1", "2", "3", "4", "5", "6", "7", "1", "2 T T", "3 s s S", "/ s m escape escape", "2 enter escape"):
        await screen.press(*keys.split())


def fleet(tick: int) -> FleetView:
    return fake_views.fleet(tick, nodes=6)


@pytest.mark.parametrize("make", [fake_views.one_node, fleet], ids=["node", "fleet"])
@pytest.mark.parametrize("spoiled", BAD)
async def test_no_pane_ends_the_screen(make: Callable[[int], FleetView], spoiled: Callable[[Sample], None]) -> None:
    async with opened(session(make, 0, spoiled), size=(120, 40)) as screen:
        await screen.step()
        await walk(screen)
        await screen.step()
        await screen.shows("? help")
        assert screen.app.is_running
        assert screen.app._exception is None
    assert FAILURES.all() or a_rule_failed(make, spoiled), "nothing failed: this test tests nothing"


def a_rule_failed(make: Callable[[int], FleetView], spoiled: Callable[[Sample], None]) -> bool:
    """Which is said as a finding of its own."""
    sample = spoilt(make(1), 0, spoiled).nodes[0].sample
    assert sample is not None
    return any(finding.id == FAILED for finding in evaluate([sample]))


async def test_one_bad_gpu_costs_its_row_and_is_said_once() -> None:
    async with opened(session(fake_views.one_node, 0, bad_gpu), size=(140, 40)) as screen:
        await screen.step()
        text = await screen.shows("this row failed")
        assert "please report" in text
        rows = [line for line in text.split("\n") if line.strip().startswith(tuple("01234567")) and "MHz" not in line]
        assert sum("failed" in row for row in rows) == 1
        assert len(rows) >= 8, "the other GPUs, and the ranks"
        await screen.press("escape")
        await screen.step()
        notices = [line for line in screen.lines()[-3:] if "failed" in line]
        assert notices == [], "it was said before"


async def test_one_bad_node_of_a_fleet_costs_the_others_nothing() -> None:
    async with opened(session(fleet, 1, bad_gpu), size=(140, 40)) as screen:
        await screen.step()
        await screen.press("v")
        text = await screen.shows("node001", "node003", "node006")
        assert "node002" in text


class Broken(FakeSession):
    """Its third view fails, the others are there."""

    def view(self) -> FleetView:
        if self._at == 2:
            raise RuntimeError("no view")
        return super().view()


async def test_a_view_that_cannot_be_taken_leaves_the_last_one(capsys: pytest.CaptureFixture[str]) -> None:
    views = [replace(fake_views.one_node(tick), serial=tick) for tick in range(5)]
    async with opened(Broken(views), size=(120, 40)) as screen:
        await screen.step()
        screen.session._at = 2
        screen.app.feed.poke()
        await screen.until(FAILURES.all, "the failure")
        await screen.shows("node01")
        screen.session._at = 2
        await screen.step()
        await screen.shows("taking a view failed: RuntimeError: no view")


async def test_an_action_that_fails_costs_what_it_was_to_do() -> None:
    async with opened(size=(120, 40)) as screen:
        screen.app.session, session = None, screen.app.session  # type: ignore[assignment]
        await screen.press("R")
        await screen.shows("this key failed")
        screen.app.session = session
        await screen.press("2")
        await screen.until(lambda: screen.app.current_mode == "node", "the node pane")


def test_a_row_that_fails_is_a_row_that_says_so() -> None:
    def make(index: int) -> Row:
        if index == 1:
            raise KeyError("x")
        return Row(str(index), (Cell("fine"),))

    rows: Sequence[Row] = LazyRows(["0", "1", "2"], make)
    assert [row.key for row in rows] == ["0", "1", "2"]
    assert "KeyError: 'x' (please report)" in rows[1].text
    assert rows[2].text == "fine"


def test_what_fails_at_one_place_is_said_once() -> None:
    failures = Failures()

    def fail(number: int) -> None:
        try:
            raise ValueError(number)
        except ValueError as error:
            failures.take(f"row {number}", error)

    for number in range(3):
        fail(number)
    assert failures.unsaid() == "row 0 failed: ValueError: 0 (please report)"
    assert failures.unsaid() == ""
    assert len(failures.all()) == 1


def test_spared_gives_what_stands_for_it() -> None:
    assert guarded("a part", lambda: 1, 2) == 1
    assert guarded("a part", lambda: int("x"), 2) == 2
    assert "a part failed: ValueError" in FAILURES.unsaid()


def test_what_is_used() -> None:
    """Names of the fakes above that the views must have for the test to mean anything."""
    view: NodeView = fake_views.one_node().nodes[0]
    assert view.sample is not None
    assert len(view.sample.gpus) == 8
    assert isinstance(view.sample.gpus[2], GpuSample)
    assert len(view.sample.ranks) == 4
