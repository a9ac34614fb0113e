"""What a node says is taken within bounds, whatever it says, and what is left out has a gap that says so."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from mltop.probes.model import (
    BlockedProcess,
    Gap,
    GpuSample,
    KernelEvent,
    RankDeath,
    RankSample,
    RankStacks,
    Sample,
    StackDigest,
)
from mltop.probes.model.news.row import pack_row, row_of
from mltop.probes.model.receipt import (
    MOST_DEATHS,
    MOST_GPUS,
    MOST_RANK_NUMBERS,
    MOST_UNASSIGNED,
    Refused,
    admit,
    admit_stacks,
)
from mltop.probes.reach.receiving import (
    MOST_SAMPLE_BYTES,
    UNREADABLE,
    RowFrame,
    sample_of_frame,
    sample_of_line,
)
from mltop.probes.reach.records import Records

NOW = 1_763_640_000.0
HEAD = f'{{"kind":"sample","sample":{{"node":"n1","sampled_at":{NOW},'


def sample(**fields: Any) -> Sample:
    return Sample("n1", NOW, **fields)


def whats(gaps: list[Gap]) -> list[str]:
    return [gap.what for gap in gaps]


def frame(text: str) -> bytes:
    return (HEAD + text + "}}").encode()


def test_a_sample_that_can_be_is_left_as_it_is() -> None:
    whole = sample(gpus=[GpuSample(0), GpuSample(1)], ranks=[RankSample(7, 0, world_size=4096)])
    before = json.dumps(whole, default=vars)
    assert admit(whole) == []
    assert json.dumps(whole, default=vars) == before


@pytest.mark.parametrize("index", [-1, -(2**40), MOST_GPUS, 10**30])
def test_a_gpu_with_an_index_that_cannot_be_is_left_out(index: int) -> None:
    whole = sample(gpus=[GpuSample(0), GpuSample(index), GpuSample(2)])
    (gap,) = admit(whole)
    assert [gpu.index for gpu in whole.gpus] == [0, 2]
    assert gap.what == "gpu"
    assert str(index) in gap.why or "digits" in gap.why


def test_of_two_gpus_or_ranks_with_one_number_the_first_is_taken() -> None:
    whole = sample(gpus=[GpuSample(0, busy=0.1), GpuSample(0, busy=0.9)], ranks=[RankSample(7, 0), RankSample(7, 1)])
    assert whats(admit(whole)) == ["gpu", "rank"]
    assert [gpu.busy for gpu in whole.gpus] == [0.1]
    assert [rank.rank for rank in whole.ranks] == [0]


@pytest.mark.parametrize("name", ["rank", "local_rank", "world_size", "local_world_size"])
@pytest.mark.parametrize("value", [-5, MOST_RANK_NUMBERS + 1, 999_999_999_999, 10**400])
def test_numbers_that_no_rank_has_are_unknown_and_said(name: str, value: int) -> None:
    whole = sample(ranks=[RankSample(7, **{name: value})])
    (gap,) = admit(whole)
    assert getattr(whole.ranks[0], name) is None
    assert gap.what == f"rank.7.{name}"


@pytest.mark.parametrize("at", [-1.0, 1e12, 1e308])
def test_a_sample_of_no_time_is_refused(at: float) -> None:
    with pytest.raises(Refused, match="time"):
        admit(Sample("n1", at))


def test_events_and_starts_of_no_time_are_left_out() -> None:
    whole = sample(
        kernel_events=[KernelEvent(1e300, "xid"), KernelEvent(NOW, "xid")], ranks=[RankSample(7, started_at=-1e300)]
    )
    assert sorted(whats(admit(whole))) == ["kernel_log", "rank.7.started_at"]
    assert [event.at for event in whole.kernel_events] == [NOW]
    assert whole.ranks[0].started_at is None


def test_numbers_beyond_all_arithmetic_are_what_is_unknown() -> None:
    whole = sample(gpus=[GpuSample(0, power_w=1e300, throttle_ns={"sw_power_cap": 10**40, "hw_thermal": 5})])
    whole.host.blocked = [BlockedProcess(9, blocked_s=1e300)]
    whole.cost_s = {"gpus": 1e300}
    gaps = admit(whole, is_large=False)
    assert whole.gpus[0].power_w is None
    assert whole.gpus[0].throttle_ns == {"hw_thermal": 5}
    assert whole.host.blocked[0].blocked_s == 0.0
    assert whole.cost_s == {}
    expected = ["cost_s.gpus", "gpus.power_w", "gpus.throttle_ns.sw_power_cap", "host.blocked.blocked_s"]
    assert sorted(whats(gaps)) == expected


def test_how_much_is_left_out_is_said_in_a_few_gaps() -> None:
    whole = sample(ranks=[RankSample(pid, -pid) for pid in range(1, 3000)])
    gaps = admit(whole)
    assert len(gaps) == 9
    assert "2991 more" in gaps[-1].why


def test_a_dump_is_bounded_or_refused() -> None:
    dump = RankStacks(7, -5, taken_at=NOW, digests=[StackDigest(10**30, 7, taken_at=1e300)] * 5000)
    admit_stacks(dump)
    assert dump.rank is None
    assert len(dump.digests) == 4096
    assert (dump.digests[0].rank, dump.digests[0].taken_at) == (None, None)
    for hopeless in (RankStacks(-1, 0), RankStacks(10**30, 0), RankStacks(7, 0, taken_at=1e300)):
        with pytest.raises(Refused):
            admit_stacks(hopeless)


@pytest.mark.parametrize(
    "text",
    [
        '"gpus":[' + ",".join(['{"index":1}'] * 100_000) + "]",
        '"ranks":[' + ",".join(['{"pid":1}'] * 100_000) + "]",
        '"links":[' + ",".join(['{"device":""}'] * 100_000) + "]",
        '"simulated":false,"boot_id":"' + "x" * MOST_SAMPLE_BYTES + '"',
    ],
    ids=["gpus", "ranks", "links", "bytes"],
)
def test_what_would_take_gigabytes_is_refused_before_it_is_decoded(text: str) -> None:
    payload = frame(text)
    with pytest.raises(Refused):
        sample_of_frame(payload)
    with pytest.raises(Refused):
        sample_of_line(payload[len('{"kind":"sample","sample":') : -1])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 300_000,
        b'{"kind":"sample","sample":{"gpus":' + b"[" * 300_000,
        b'{"kind":"sample","sample":{"node":"n","sampled_at":1,"gpus":[{"index":"1"}]}}',
        b'{"kind":"sample","sample":{"node":"n","sampled_at":' + b"9" * 5000 + b"}}",
        '{"kind":"sample","sample":{"node":"ü","sampled_at":1}}'.encode("latin-1"),
        '{"kind":"sample"}'.encode("utf-16"),
        b'{"kind":"sample","sample":{"node":"n","sampled_at":NaN}}',
    ],
)
def test_what_is_no_sample_raises_only_what_is_expected(payload: bytes) -> None:
    for decode in (sample_of_frame, sample_of_line):
        with pytest.raises(UNREADABLE):
            decode(payload)


def take(records: Records, payload: bytes, now: float) -> None:
    records.take_news("n1", "sample", payload)
    records.take("n1", RowFrame(NOW, pack_row(row_of(Sample("n1", NOW)))), now)


def test_refused_samples_leave_the_last_good_one_which_ages() -> None:
    records = Records(["n1"], 1.0)
    records.set_phase("n1", "live", "")
    began = time.monotonic()
    take(records, frame('"simulated":false'), began)
    assert records.node("n1").state.state == "live"
    take(records, frame('"gpus":[' + ",".join(['{"index":1}'] * 100_000) + "]"), began + 1)
    view = records.node("n1")
    assert (view.state.state, view.sample is not None) == ("stale", True)
    assert "100000 gpus (at most 256)" in view.state.reason
    take(records, frame('"simulated":true'), time.monotonic())
    view = records.node("n1")
    assert view.state.state == "live"
    assert view.sample is not None
    assert view.sample.simulated


def test_a_sample_that_only_a_whole_look_refuses_is_not_live_either() -> None:
    records = Records(["n1"], 1.0)
    records.set_phase("n1", "live", "")
    take(records, frame('"boot_id":5'), time.monotonic())
    assert records.node("n1").sample is None
    assert records.node("n1").state.state == "stale"
    for _ in range(2):
        take(records, frame('"boot_id":5'), time.monotonic())
        assert records.node("n1").state.state == "stale"


def test_processes_of_no_job_are_bounded_as_ranks_are() -> None:
    many = [RankSample(pid) for pid in range(1, MOST_UNASSIGNED + 2)]
    odd = [RankSample(-5), RankSample(7, parallel={"tp": -1, "tp_size": 4}), RankSample(7, started_at=1e30)]
    whole = sample(unassigned=odd)
    assert whats(admit(whole)) == ["unassigned", "unassigned", "rank.7.parallel"]
    assert [(process.pid, process.parallel) for process in whole.unassigned] == [(7, {})]
    whole = sample(unassigned=many)
    assert whats(admit(whole)) == ["unassigned"]
    assert len(whole.unassigned) == MOST_UNASSIGNED
    wide = sample(unassigned=[RankSample(7, settings={str(n): "" for n in range(600)}, rss_bytes=10**40)])
    assert sorted(whats(admit(wide))) == ["settings", "unassigned.rss_bytes"]
    assert wide.unassigned[0].rss_bytes is None


def test_deaths_are_bounded() -> None:
    deaths = [RankDeath(7, rank=-1, at=NOW), RankDeath(-1), RankDeath(8, at=-5.0), RankDeath(9, code=10**40)]
    whole = sample(deaths=deaths)
    assert len(admit(whole)) == 3
    assert [(death.pid, death.rank, death.code) for death in whole.deaths] == [(7, None, None), (9, None, None)]
    whole = sample(deaths=[RankDeath(7)] * (MOST_DEATHS + 1))
    assert whats(admit(whole)) == ["deaths"]
    assert len(whole.deaths) == MOST_DEATHS


@pytest.mark.parametrize("name", ["unassigned", "deaths"])
def test_so_many_that_they_need_not_be_decoded(name: str) -> None:
    entries = ",".join(['{"pid":1}'] * 9000)
    with pytest.raises(Refused, match=name):
        sample_of_frame(frame(f'"{name}":[{entries}]'))


def test_how_a_rank_is_known_is_a_word_of_ours() -> None:
    whole = sample_of_frame(frame('"ranks":[{"pid":7,"identified_by":"stars"}]'))
    assert whole.ranks[0].identified_by == ""
    assert whats(whole.gaps) == ["ranks.identified_by"]
