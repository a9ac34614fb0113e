"""`mltop record` goes on in another file before one is larger than `mltop replay` reads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mltop.probes.investigate.capture import load
from mltop.probes.model import NodeState, Sample
from mltop.probes.reach.view import NodeView
from mltop.probes.record.decoding import MOST_LINE_BYTES
from mltop.tui.app.past.recorded import RecordedPast
from mltop.tui.commands.record import Fits, Recorder


def views(at: float, **fields: str) -> list[NodeView]:
    samples = [Sample(node, at, **fields) for node in ("n1", "n2")]  # type: ignore[arg-type]
    return [NodeView(NodeState(one.node, "live"), one) for one in samples]


@pytest.mark.parametrize("name", ["run.1.jsonl.gz", "run.1.jsonl", "run"])
@pytest.mark.parametrize(
    "fits",
    [Fits(samples=100), Fits(size_bytes=100_000), Fits(packed_bytes=60_000)],
    ids=["samples", "bytes", "packed"],
)
def test_each_file_can_be_read_and_nothing_is_missing(
    name: str, fits: Fits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mltop.probes.record.recordings.MOST_SAMPLES", fits.samples)
    monkeypatch.setattr("mltop.probes.record.recordings.MOST_RECORDING_BYTES", fits.size_bytes)
    monkeypatch.setattr("mltop.probes.record.recordings.MOST_PACKED_BYTES", fits.packed_bytes)
    monkeypatch.setattr("mltop.probes.record.recordings._PIECE_BYTES", (100, 1000))
    order = random.Random(7)
    if "." in name:
        (tmp_path / name.replace("run.1", "run.1-2")).touch()  # somebody's
    with Recorder(tmp_path / name, fits=fits) as recorder:
        full = []
        for at in range(150):
            full += recorder.write(views(float(at), boot_id=order.randbytes(150).hex()))  # as good as nothing to pack
        assert recorder.samples == 300
    assert len(recorder.paths) > 2 and full == recorder.paths[:-1]
    read = [load(path) for path in recorder.paths]
    assert not [gap for one in read for gap in one.gaps]
    times = [sample.sampled_at for one in read for sample in one.samples["n1"]]
    assert times == [float(at) for at in range(150)]
    if "." in name:
        assert recorder.paths[1].name.startswith("run.1-") and recorder.paths[1].suffixes[-1] == Path(name).suffix


def test_a_recording_of_many_nodes_says_how_often_it_has_a_sample_of_each(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.jsonl", every_s=8.0) as recorder:
        for at in range(100, 200):
            recorder.write(views(float(at)))
    past = RecordedPast(load(tmp_path / "run.jsonl").samples)
    assert [past.picture(float(at)).view.nodes[0].state.state for at in (107, 150, 199)] == ["live"] * 3


def test_a_clock_that_is_set_back_is_recorded_and_read(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.jsonl", every_s=0.5) as recorder:
        for at in (*range(100, 200), *range(150, 250)):
            recorder.write(views(float(at)))
    saved = load(tmp_path / "run.jsonl")
    assert [one.sampled_at for one in saved.samples["n1"]] == sorted((*range(100, 200), *range(150, 250)))
    assert not saved.gaps


def test_room_is_left_for_the_longest_line() -> None:
    assert Fits().size_bytes > 4 * MOST_LINE_BYTES


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_meanwhile_is_no_success(replaced: bool, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Recorder(path) as recorder:
        recorder.write(views(1.0))
        assert recorder.gone() == []
        path.rename(tmp_path / "other")
        if replaced:
            path.touch()
        assert recorder.gone() == [path]
