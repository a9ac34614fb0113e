"""Recordings and captures: what was written is read back, also when it was cut off."""

from __future__ import annotations

import gzip
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.investigate.capture import begin, finish_capture, load, rejudge
from mltop.probes.investigate.material import Material, judge
from mltop.probes.model import Gap, NodeState, RankSample, RankStacks, Sample
from mltop.probes.record import BadRecording, CaptureWriter, read_recording, recording
from tests.builders.hung import hung_material


def write_samples(path: Path, made: list[Sample]) -> None:
    path.write_bytes(gzip.compress(recording(made)) if path.suffix == ".gz" else recording(made))


def samples(count: int) -> list[Sample]:
    return [Sample("n1", 100.0 + i, ranks=[RankSample(10, rank=0, world_size=2, job="j")]) for i in range(count)]


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_recording_is_read_back(tmp_path: Path, name: str) -> None:
    write_samples(tmp_path / name, samples(5))
    read = read_recording(tmp_path / name)
    assert list(read.samples.by_time()) == samples(5)
    assert not read.cut_off


def test_gzip_files_put_together_are_read_to_the_end(tmp_path: Path) -> None:
    whole = recording(samples(5))
    middle = whole.index(b"\n", len(whole) // 2)  # within a line's first bytes: members need not end with lines
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(whole[: middle + 9]) + gzip.compress(whole[middle + 9 :]) + bytes(512))
    read = read_recording(path)
    assert (list(read.samples.by_time()), read.cut_off) == (samples(5), False)


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_recording_cut_off_in_the_middle_gives_what_is_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_samples(path, [Sample(f"n{i}", float(i) / 7, boot_id=str(hash(i))) for i in range(2000)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    read = read_recording(path)
    assert read.cut_off
    assert 500 < len(read.samples) < 2000
    assert [sample.node for sample in read.samples.by_time()] == [f"n{i}" for i in range(len(read.samples))]


def test_a_capture_keeps_the_samples_that_its_verdict_is_made_from() -> None:
    """A sample taken after the look at the past and before the first stacks would let ranks be still for longer."""
    dumps = [RankStacks(10, None, node="n1", taken_at=at) for at in (106.5, 104.5)]
    judged = Material(samples={"n1": samples(3)}, dumps=dumps, judged_until=107.0)
    times = [(node, [sample.sampled_at for sample in kept]) for node, kept in judged.as_judged([("n1", samples(10))])]
    assert times == [("n1", [100.0, 101.0, 102.0, 105.0, 106.0, 107.0])]
    unasked = Material(dumps=dumps, judged_until=107.0)
    assert [len(kept) for _, kept in unasked.as_judged([("n1", samples(10)), ("n2", samples(10))])] == [8, 8]


def test_other_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    other = tmp_path / "x.jsonl"
    other.write_text('{"a": 1}\n')
    with pytest.raises(BadRecording, match="not an mltop recording"):
        read_recording(other)
    (tmp_path / "y.jsonl.gz").write_bytes(b"not gzip at all\n")
    with pytest.raises(BadRecording, match="not an mltop recording"):
        read_recording(tmp_path / "y.jsonl.gz")
    with pytest.raises(BadRecording, match="no manifest"):
        load(tmp_path)
    with pytest.raises(BadRecording, match="does not exist"):
        load(tmp_path / "nothing")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(BadRecording, match="manifest"):
        load(tmp_path)


def written(directory: Path, material: Material) -> CaptureWriter:
    writer = CaptureWriter(directory)
    finish_capture(writer, material, judge(material), lambda reports, _: f"{len(reports)} reports\n")
    return writer


def test_a_capture_gives_the_same_verdict_offline(tmp_path: Path) -> None:
    material = hung_material()
    reports = judge(material)
    assert [culprit.rank for culprit in reports[0].verdict.culprits] == [1]
    assert written(tmp_path / "c", material).problems == []
    again, reports_again = rejudge(tmp_path / "c")
    assert reports_again == reports
    assert again.nodes == material.nodes


def test_a_capture_is_private_and_says_what_it_holds(tmp_path: Path) -> None:
    material = hung_material()
    written(tmp_path / "c", material)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    files = [path for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    manifest = json.loads((tmp_path / "c/manifest.json").read_text())
    assert manifest["complete"] is True
    assert {str(path.relative_to(tmp_path / "c")) for path in files} == {"manifest.json", *manifest["files"]}
    assert gzip.decompress((tmp_path / "c/samples/n1.jsonl.gz").read_bytes()).count(b"\n") == 2


def test_a_capture_that_fails_half_way_keeps_what_it_has(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c")
    writer.add_dumps(hung_material().dumps)
    (tmp_path / "c/samples").write_text("a file where a directory should be")
    writer.add_samples("n1", samples(2))
    manifest = json.loads((tmp_path / "c/manifest.json").read_text())
    assert manifest["complete"] is False
    assert "samples/n1.jsonl.gz could not be written" in manifest["problems"][0]
    _, reports = rejudge_without_samples(tmp_path / "c")
    assert len(reports) == 2


def rejudge_without_samples(directory: Path) -> tuple[object, list[RankStacks]]:
    (directory / "samples").unlink()
    material = load(directory)
    return material, [dump for dump in material.dumps if dump.rank == 1][:2]


def test_node_names_cannot_leave_the_directory(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c")
    writer.add_samples("../../evil", samples(1))
    assert sorted(path.name for path in (tmp_path / "c/samples").iterdir()) == ["_.._evil-0fbfd372.jsonl.gz"]
    assert not (tmp_path / "evil.jsonl.gz").exists()


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_a_capture_of_a_newer_version_is_read(tmp_path: Path) -> None:
    written(tmp_path / "c", hung_material())
    edit(tmp_path / "c/manifest.json", lambda m: {**m, "later": 1, "nodes": [{**n, "later": 2} for n in m["nodes"]]})
    edit(tmp_path / "c/stacks/n1/rank-1-pid-11.json", lambda dumps: [{**dump, "later": 3} for dump in dumps])
    material, reports = rejudge(tmp_path / "c")
    assert material.gaps == []
    assert [culprit.rank for culprit in reports[0].verdict.culprits] == [1]


@pytest.mark.parametrize("value", [None, [1, 2], {"not_answered": [{"foo": 1}]}, {"not_answered": 3}, "x"])
def test_a_garbled_verdict_or_manifest_is_said(tmp_path: Path, value: object) -> None:
    written(tmp_path / "c", hung_material())
    (tmp_path / "c/verdict.json").write_text(json.dumps(value))
    with pytest.raises(BadRecording, match="verdict"):
        load(tmp_path / "c")
    edit(tmp_path / "c/manifest.json", lambda m: {**m, "nodes": value})
    with pytest.raises(BadRecording, match="manifest"):
        load(tmp_path / "c")


def test_half_written_temporary_files_are_no_part_of_a_capture(tmp_path: Path) -> None:
    written(tmp_path / "c", hung_material())
    (tmp_path / "c/samples/.n1.jsonl.gz.k3x9").write_bytes(b"\x1f\x8b\x08half")
    (tmp_path / "c/stacks/n1/.rank-0.json").write_bytes(b"[{")
    assert load(tmp_path / "c").gaps == []


def test_what_a_capture_lacks_is_a_gap(tmp_path: Path) -> None:
    written(tmp_path / "c", hung_material())
    (tmp_path / "c/stacks/n1/rank-1-pid-11.json").unlink()
    samples_file = tmp_path / "c/samples/n1.jsonl.gz"
    samples_file.write_bytes(samples_file.read_bytes()[:-12])
    gaps = [gap.why for gap in load(tmp_path / "c").gaps]
    assert gaps == ["stacks/n1/rank-1-pid-11.json is missing", "samples/n1.jsonl.gz is cut off"]
    edit(tmp_path / "c/manifest.json", lambda m: {**m, "finished_at": None})
    assert "the capture was cut off before it was finished" in [gap.why for gap in load(tmp_path / "c").gaps]


def test_missing_permission_is_a_problem_of_the_capture_and_of_the_json(tmp_path: Path) -> None:
    gap = Gap("ranks", "5 Python processes of root cannot be read (permission denied)", "sudo mltop")
    material = Material([NodeState("n1", "live")], {"n1": [Sample("n1", 1.0, gaps=[gap])]})
    assert written(tmp_path / "c", material).problems == [f"n1: {gap.why} (sudo mltop)"]
    saved = json.loads((tmp_path / "c/verdict.json").read_text())
    assert saved["gaps"] == [
        {
            "node": "n1",
            "what": "ranks",
            "why": gap.why,
            "fix": "sudo mltop",
            "kind": "unknown",
            "code": "",
            "source": "ranks",
            "item": "",
            "fields": [],
        }
    ]


NOW = 1_763_640_000.0


def test_whatever_stands_at_the_default_name_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = begin(None, NOW).directory.name
    assert name.startswith("mltop-capture-2025")
    (tmp_path / f"{name}-2").symlink_to("nowhere")
    (tmp_path / f"{name}-3").symlink_to(name)
    (tmp_path / f"{name}-4").touch()
    os.mkfifo(tmp_path / f"{name}-5")
    made = begin(None, NOW).directory
    assert made == tmp_path / f"{name}-6" and made.is_dir() and not made.is_symlink()
    assert not (tmp_path / "nowhere").exists()


def test_a_name_that_was_given_must_be_free(tmp_path: Path) -> None:
    (tmp_path / "c").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        begin(tmp_path / "c", NOW)
    assert not (tmp_path / "nowhere").exists()


def test_a_capture_goes_to_the_temporary_folder_where_the_working_one_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert begin(None, NOW).directory.parent == tmp_path


def test_a_link_that_somebody_lays_into_a_capture_is_not_followed(tmp_path: Path) -> None:
    writer, victim = CaptureWriter(tmp_path / "c"), tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "c/samples").symlink_to(victim)
    (tmp_path / "c/stacks").mkdir()
    (tmp_path / "c/stacks/n1").symlink_to(victim)
    (tmp_path / "c/verdict.txt").symlink_to(victim / "file")
    writer.add_samples("n1", samples(1))
    writer.add_dumps(hung_material().dumps)
    writer.add("verdict.txt", b"text")
    assert list(victim.iterdir()) == []
    assert len(writer.problems) == 3 and all("could not be written" in problem for problem in writer.problems)
    assert (tmp_path / "c/verdict.txt").read_text() == "text" and not (tmp_path / "c/verdict.txt").is_symlink()


def test_a_capture_whose_folder_is_moved_goes_on_in_it(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / "moved")
    (tmp_path / "c").mkdir()
    writer.add_samples("n1", samples(1))
    writer.finish()
    assert list((tmp_path / "c").iterdir()) == []
    assert [sample.node for sample in load(tmp_path / "moved").newest] == ["n1"]
