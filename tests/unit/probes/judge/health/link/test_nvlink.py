"""NVLink rules: how many links should be up, how fast, and which errors matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.health.link.nvlink import _sums
from mltop.probes.model import GpuSample, Nvlink, Sample
from tests.builders.health_links import board, judge, nvlinks, only, over, told
from tests.builders.health_samples import gpu, sample

H100_PCIE = "NVIDIA H100 PCIe"
HALF = 13_281e6


def _pair(at: float, first: Nvlink, second: Nvlink, **fields: Any) -> Sample:
    """Two GPUs and no word of what stands between them."""
    return sample(at, [gpu(0, nvlink=first, **fields), gpu(1, nvlink=second, **fields)])


# Links down


def test_links_down_among_siblings_are_counted() -> None:
    finding = only(board(0, {2: {"nvlink": nvlinks(inactive=(3, 7))}}))
    assert (finding.id, finding.severity) == ("nvlink.inactive", "critical")
    assert finding.message == "GPU 2: 16 of 18 NVLinks up (3, 7 down)"
    assert finding.evidence[0] == "GPU 0 of the same model has 18"


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([board(0)], []),
        ([_pair(0, nvlinks(), nvlinks(inactive=range(18)))], [("critical", "nvlink.inactive", "GPU 1")]),
        # A virtual machine's partition without NVLink, cards without bridges: nothing says that there should be any.
        ([_pair(0, nvlinks(inactive=range(18)), nvlinks(inactive=range(18)))], []),
        ([_pair(0, Nvlink(), Nvlink())], []),
        # Cards with two of three bridges, all alike; then a bridge that is missing on one.
        ([_pair(0, nvlinks(range(8, 18)), nvlinks(range(8, 18)), name=H100_PCIE)], []),
        (
            [_pair(0, nvlinks(range(12, 18)), nvlinks(range(8, 18)), name=H100_PCIE)],
            [("warning", "nvlink.inactive", "GPU 1")],
        ),
        # Two cards have a bridge, this one none.
        (
            [_pair(0, nvlinks(), nvlinks(inactive=range(18)), name=H100_PCIE)],
            [("info", "nvlink.inactive", "GPU 1")],
        ),
        # In MIG mode there is no NVLink.
        ([board(0, {2: {"nvlink": nvlinks(range(18)), "mig_enabled": True}})], []),
        ([board(0, {2: {"nvlink": nvlinks(range(4)), "state": "error"}})], []),
    ],
)
def test_what_counts_as_down(samples: list[Sample], expected: list[tuple[str, str, str]]) -> None:
    assert told(*samples) == expected


def test_links_that_were_active_are_missed_even_where_all_lose_them() -> None:
    fewer = nvlinks(inactive=(0, 1))
    samples = [_pair(0, nvlinks(), nvlinks()), *over(range(10, 40, 10), lambda at: _pair(at, fewer, fewer))]
    finding = only(*samples)
    assert (finding.subject, finding.folded) == ("all 2 GPUs", ["nvlink.inactive GPU 0", "nvlink.inactive GPU 1"])
    assert "were active before" in finding.evidence[0]


def test_an_nvswitch_board_has_all_links_active() -> None:
    every = {index: {"nvlink": nvlinks(inactive=(17,))} for index in range(8)}
    assert only(board(0, every)).subject == "all 8 GPUs"
    h800 = {index: {"nvlink": nvlinks(range(8, 18)), "name": "NVIDIA H800"} for index in range(8)}
    assert judge(board(0, h800)) == []


def test_like_nodes_know_how_many_links_there_are() -> None:
    fewer = nvlinks(inactive=(0,))
    peers = [replace(_pair(0, nvlinks(), nvlinks()), node=f"n{number}") for number in (2, 3)]
    found = judge(*peers, _pair(0.5, fewer, fewer))
    assert {(one.node, one.id) for one in found} == {("n1", "nvlink.inactive")}
    # A machine with one GPU of that model is another kind of machine.
    single = sample(0.5, [gpu(0, nvlink=nvlinks(range(18)))])
    assert judge(*peers, single) == []


def test_a_link_that_is_down_for_a_moment_is_nothing_and_it_clears() -> None:
    def make(until: float) -> list[Sample]:
        lost = {2: {"nvlink": nvlinks(inactive=(3,))}}
        return over(range(0, 200, 5), lambda at: board(at, lost if 50 <= at <= until else None))

    assert judge(*make(55)) == []
    finding = only(*make(70))
    assert (finding.since, finding.until) == (50, 70)


def test_a_link_whose_state_is_unknown_is_not_down() -> None:
    unknown = nvlinks()
    unknown.links[3].active = None
    assert judge(board(0, {2: {"nvlink": unknown}})) == []


# Speed


@pytest.mark.parametrize(
    ("links", "slow"),
    [
        (nvlinks(), False),
        (nvlinks(speeds=dict.fromkeys(range(18), HALF)), True),
        (nvlinks(speeds={4: HALF, 5: HALF}), True),
        (nvlinks(speeds=dict.fromkeys(range(18), 25e9)), False),  # a driver that rounds
        (nvlinks(speeds=dict.fromkeys(range(18), 0.0)), False),  # unknown to the driver
        (nvlinks(inactive=(4,), speeds={4: HALF}, count=18), False),
        (nvlinks(speeds=dict.fromkeys(range(18), 14e9), version=3), False),  # an RTX A6000's bridges
        (nvlinks(speeds=dict.fromkeys(range(18), 26.562e9), version=5), True),  # half of NVLink 5
        (nvlinks(speeds=dict.fromkeys(range(18), 53.125e9), version=5), False),
    ],
)
def test_speed(links: Nvlink, slow: bool) -> None:
    found = [one for one in judge(_pair(0, links, links)) if one.id == "nvlink.speed"]
    assert bool(found) == slow


def test_slow_links_are_named_with_their_speed() -> None:
    finding = only(board(0, {2: {"nvlink": nvlinks(speeds={4: HALF, 5: HALF})}}))
    assert (finding.severity, finding.message) == ("warning", "GPU 2: NVLinks 4-5 run at 13.3 of 26.6 GB/s")
    finding = only(board(0, {2: {"nvlink": nvlinks(speeds={4: HALF})}}))
    assert finding.message == "GPU 2: NVLink 4 runs at 13.3 of 26.6 GB/s"


# Errors


def _errors(at: float, errors: dict[int, dict[str, int]], **fields: Any) -> Sample:
    return board(at, {2: {"nvlink": nvlinks(errors=errors)}}, **fields)


def _growing(name: str, per_step: int, **fields: Any) -> list[Sample]:
    """Six steps of 10 s in which link 7 of GPU 2 counts."""
    return [_errors(10.0 * step, {7: {name: 100 + per_step * step}}, **fields) for step in range(7)]


@pytest.mark.parametrize(
    ("name", "per_step", "expected"),
    [
        ("replay", 0, []),
        ("replay", 1, [("warning", "nvlink.replay", "GPU 2")]),
        ("recovery", 2, [("critical", "nvlink.replay", "GPU 2")]),
        ("recovery_ok", 1, [("warning", "nvlink.replay", "GPU 2")]),
        ("recovery_events", 1, [("warning", "nvlink.replay", "GPU 2")]),
        ("recovery_failed", 1, [("critical", "nvlink.replay", "GPU 2")]),
        ("symbol", 1, []),  # what a link may have
        ("effective", 20, [("warning", "nvlink.replay", "GPU 2")]),
        ("crc", 1, [("info", "nvlink.crc", "GPU 2")]),
        ("crc", 999, [("info", "nvlink.crc", "GPU 2")]),
        ("crc", 1400, [("critical", "nvlink.crc", "GPU 2")]),
        ("xmit_discards", 50, []),  # not an error of the link
    ],
)
def test_errors_by_kind_and_rate(name: str, per_step: int, expected: list[tuple[str, str, str]]) -> None:
    assert told(*_growing(name, per_step)) == expected


def test_messages_name_rates_and_links() -> None:
    finding = only(*_growing("replay", 2))
    assert finding.message == "NVLink recovery errors growing on link 7 of GPU 2, per minute: replay 12"
    assert finding.evidence == ["link 7: replay +12"]
    assert only(*_growing("crc", 1400)).message == "NVLink CRC errors 140/s on link 7 of GPU 2"


def test_old_counters_resets_and_other_boards_are_no_growth() -> None:
    high = {link: {"replay": 60_000, "crc": 9} for link in range(18)}
    assert judge(*over(range(0, 100, 10), lambda at: _errors(at, high))) == []
    reset = over(range(0, 100, 10), lambda at: _errors(at, high if at < 50 else {}))
    assert "nvlink.replay" not in [one.id for one in judge(reset[0], *(_zeroed(one) for one in reset[5:]))]
    swapped = _errors(10, high)
    swapped.gpus[2].uuid = "GPU-new"
    assert judge(_errors(0, {}), swapped) == []


def _zeroed(one: Sample) -> Sample:
    for link in one.gpus[2].nvlink.links:
        link.errors = dict.fromkeys(link.errors, 0)
    return one


def test_a_link_whose_counters_cannot_be_read_for_a_while_is_no_growth() -> None:
    high = {link: {"replay": 1000} for link in range(18)}

    def make(at: float) -> Sample:
        one = _errors(at, high)
        if at == 30:
            one.gpus[2].nvlink.links[4].errors = {}
        return one

    assert judge(*over(range(0, 100, 10), make)) == []


def test_a_pause_of_the_samples_does_not_make_a_rate() -> None:
    quiet = [_errors(0, {7: {"replay": 100}}), _errors(10, {7: {"replay": 100}})]
    late = [_errors(7210.0 + step, {7: {"replay": 140}}) for step in range(3)]
    assert judge(*quiet, *late) == []  # 40 in two hours are less than one a minute


def test_a_fabric_manager_that_is_down_is_the_one_cause() -> None:
    dead = {index: {"nvlink": nvlinks(range(18)), "fabric": {"state": "not_started"}} for index in range(8)}
    finding = only(board(0, dead, host={"services": {"nvidia-fabricmanager": "failed"}}))
    assert finding.id == "fabric.manager"
    assert set(finding.folded) >= {"fabric.state GPU 7", "nvlink.inactive GPU 0"}


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([{"crc": 2}, {"crc": 2}], {("crc", 2, 4)}),
        ([{"crc": 2, "replay": 1}, {"crc": 3, "replay": 0}], {("crc", 2, 5), ("replay", 2, 1)}),
        ([{}, {"crc": 3}], {("crc", 1, 3)}),
        ([{"replay": 1}, {"crc": 3}], {("crc", 1, 3), ("replay", 1, 1)}),
        ([{}, {}], set()),
    ],
)
def test_sums_tell_of_how_many_links_they_are(errors: list[dict[str, int]], expected: set[object]) -> None:
    assert set(_sums(errors)) == expected


def test_a_gpu_without_a_uuid_is_remembered_by_its_index() -> None:
    def make(at: float) -> Sample:
        one: GpuSample = gpu(0, nvlink=nvlinks(errors={7: {"replay": int(at)}}), uuid=None)
        return sample(at, [one])

    assert told(*over(range(0, 40, 10), make)) == [("critical", "nvlink.replay", "GPU 0")]


def test_all_links_that_count_errors_are_named() -> None:
    def at(now: float) -> Sample:
        return _errors(now, {link: {"replay": int(now / 10)} for link in (2, 7, 15)})

    finding = only(*over(range(0, 200, 10), at))
    assert [text.partition(":")[0] for text in finding.evidence] == ["link 2", "link 7", "link 15"]


def test_all_links_that_are_down_are_named() -> None:
    def at(now: float) -> Sample:
        sample = board(now)
        for link in sample.gpus[2].nvlink.links:
            link.active = now < 50 or link.index not in (3, 7, 8, 9)
        return sample

    finding = only(*over(range(0, 100, 5), at))
    assert finding.id == "nvlink.inactive"
    assert "3, 7-9" in finding.message + str(finding.evidence)
