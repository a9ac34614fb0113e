"""Recordings and captures that somebody made to harm whoever reads them: one line says what is wrong, nothing grows."""

from __future__ import annotations

import gzip
import json
import os
import socket
import zlib
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.investigate.capture import finish_capture, load
from mltop.probes.investigate.material import Material
from mltop.probes.model import Frame, NodeState, RankStacks, Sample, StackDigest
from mltop.probes.record import BadRecording, CaptureWriter, decoding, read_raw, read_recording, recording
from mltop.probes.record.decoding import decode_sample

HEADER = b'{"mltop_recording": 1, "version": "0.1", "started_at": 1.0}\n'
GOOD = b'{"node":"n1","sampled_at":1.0}\n'


def refused(path: Path) -> str:
    """The sentence."""
    with pytest.raises(BadRecording) as problem:
        load(path)
    assert "\n" not in str(problem.value) and str(path) in str(problem.value)
    return str(problem.value)


# Recordings.

LINES = {
    "deep": (b"[" * 20_000, "Expected `object`, got `array`"),
    "deep within a field that is not known": (b'{"x":' * 20_000, "brackets within brackets"),
    "wrong type": (b'{"node":"n1","sampled_at":"now"}', "Expected `float`, got `str`"),
    "wrong type within": (b'{"node":"n1","sampled_at":1,"gpus":[{"index":[]}]}', "$.gpus[0].index"),
    "not an object": (b"3", "Expected `object`, got `int`"),
    "no node": (b'{"sampled_at":1.0}', "missing required field `node`"),
    "not whole": (b'{"node":"n1","sampled_at"', "truncated"),
    "not a number": (b'{"node":"n1","sampled_at":NaN}', "malformed"),
    "infinite": (b'{"node":"n1","sampled_at":Infinity}', "malformed"),
    "too large for a float": (b'{"node":"n1","sampled_at":1e999}', "out of range"),
    "no time": (b'{"node":"n1","sampled_at":1e300}', "is no time"),
    "before all times": (b'{"node":"n1","sampled_at":-1e300}', "is no time"),
    "10,000 digits": (b'{"node":"n1","sampled_at":1,"gpus":[{"index":' + b"9" * 10_000 + b"}]}", "out of range"),
    "latin-1": (b'{"node":"caf\xe9","sampled_at":1.0}', "utf-8"),
    "lone surrogate": (b'{"node":"\\ud800","sampled_at":1.0}', "malformed"),
    "UTF-16": ('{"node":"n1","sampled_at":1.0}'.encode("utf-16"), "UTF-16"),
    "a gzip file": (gzip.compress(b"x", mtime=0).replace(b"\n", b""), "gzip"),
    "long name": (b'{"node":"' + b"n" * 100_000 + b'","sampled_at":1.0}', "name has 100,000 characters"),
    "many objects": (
        b'{"node":"n1","sampled_at":1,"gaps":[' + b",".join([b"{}"] * 50_000) + b"]}",
        "values are more than mltop takes",
    ),
    "many values": (b'{"node":"n1","sampled_at":1,"x":[' + b"0," * 3_000_000 + b"0]}", "more than mltop takes"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_sample_is_named_with_its_number(tmp_path: Path, name: str) -> None:
    line, words = LINES[name]
    path = tmp_path / "r.jsonl"
    path.write_bytes(HEADER + GOOD + b"\n" + line.replace(b"\n", b"") + b"\n" + GOOD)
    said = refused(path)
    assert said.startswith(f"{path}: line 4: ") and words in said


HEADERS = {
    "none": (b"", "truncated"),
    "text": (b"hello\n", "malformed"),
    "another kind": (b'{"a": 1}\n', "mltop_recording"),
    "truth for 1": (b'{"mltop_recording": true}\n', "Expected `int`, got `bool`"),
    "deep": (b"[" * 500_000 + b"\n", "values are more than mltop takes"),
    "UTF-16": (HEADER.decode().encode("utf-16"), "UTF-16"),
    "a mark": (b"\xef\xbb\xbf" + HEADER, "UTF-8 with a mark"),
    "latin-1": (b'{"mltop_recording": "\xe9"}\n', "is not an mltop recording"),
    "newer": (b'{"mltop_recording": 2, "later": []}\n', "of a newer mltop (format 2, this mltop reads 1)"),
    "10,000 digits": (b'{"mltop_recording": ' + b"1" * 10_000 + b"}\n", "out of range"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_none_is_said(tmp_path: Path, name: str) -> None:
    text, words = HEADERS[name]
    (tmp_path / "r.jsonl").write_bytes(text)
    assert words in refused(tmp_path / "r.jsonl")


def test_fields_of_newer_versions_double_keys_blank_lines_and_line_ends_of_windows_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    more = b'{"node":"n0","node":"n1","sampled_at":2.0,"later":{"a":[1,{"b":null}]}}'
    path.write_bytes(HEADER.replace(b"\n", b"\r\n") + b"\r\n" + more + b"\r\n\n")
    read = read_recording(path)
    assert ([sample.node for sample in read.samples.by_time()], read.cut_off) == (["n1"], False)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "kernel log", "memory"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "r.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    else:
        path = Path({"device": "/dev/zero", "kernel log": "/proc/kmsg", "memory": "/proc/self/mem"}[kind])
    refused(path)


def test_a_line_without_an_end_is_given_up_early(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    packer = zlib.compressobj(wbits=31)
    begin = packer.compress(HEADER) + packer.flush(zlib.Z_FULL_FLUSH)
    mib = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(begin + mib * 300)
    assert "has a line of more than 16 MiB" in refused(path)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [Sample(f"n{number % 20}", float(number), boot_id=os.urandom(20).hex()) for number in range(20_000)]
    path = tmp_path_factory.mktemp("large") / "r.jsonl.gz"
    path.write_bytes(gzip.compress(recording(samples), 1))
    return path


@pytest.mark.parametrize(
    ("limit", "most", "words"),
    [
        ("MOST_RECORDING_BYTES", 1 << 20, "more than the 1 MiB that mltop reads"),
        ("MOST_SAMPLES", 1000, "more than the 1,000 samples that mltop reads"),
        ("MOST_RECORDED_NODES", 10, "more than the 10 nodes that mltop reads"),
        ("MOST_PACKED_BYTES", 1 << 10, "mltop can keep in"),
    ],
)
def test_what_is_too_much_in_all_is_said(
    large: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, words: str
) -> None:
    monkeypatch.setattr(f"mltop.probes.record.recordings.{limit}", most)
    monkeypatch.setattr("mltop.probes.record.recordings._UNPACKED_BYTES", 1 << 16)
    assert words in refused(large)


def test_a_damaged_gzip_file_is_a_gap(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(recording([Sample("n1", float(at)) for at in range(99)])))
    data[-8] ^= 0xFF  # the sum over all
    (tmp_path / "r.jsonl.gz").write_bytes(data)
    saved = load(tmp_path / "r.jsonl.gz")
    assert [gap.why for gap in saved.gaps] == ["r.jsonl.gz is cut off"]
    assert len(saved.samples["n1"]) == 99


def test_samples_come_in_the_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mltop.probes.record.recordings._PIECE_BYTES", (100, 1000))
    monkeypatch.setattr("mltop.probes.record.recordings._MOST_UNPACKED", 2)  # as if they were many
    times = [float((number * 7919) % 2003) for number in range(2003)]
    path = tmp_path / "r.jsonl"
    path.write_bytes(recording([Sample(f"n{int(at) % 3}", at) for at in times]))
    samples = read_recording(path).samples
    assert [sample.sampled_at for sample in samples.by_time()] == sorted(times)
    assert sorted(sample.sampled_at for sample in samples.newest) == [2000.0, 2001.0, 2002.0]
    assert sorted(sample.sampled_at for sample in samples.oldest()) == [0.0, 1.0, 2.0]
    assert [sample.sampled_at for sample in samples["n1"].since(1990.0)] == [1990.0, 1993.0, 1996.0, 1999.0, 2002.0]


# Captures.


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    frames = [Frame("train", "t.py", 5, {"step": 3})]
    digest = StackDigest(0, 10, state="S", frames=frames, node="n1", job="j")
    raw = [{"pid": 10, "threads": [{"frames": []}]}]
    dump = RankStacks(10, 0, "j", node="n1", taken_at=1.0, digests=[digest], raw=raw)
    writer = CaptureWriter(tmp_path / "c")
    finish_capture(writer, Material([NodeState("n1", "live")], {"n1": [Sample("n1", 1.0)]}, [dump]), [], lambda *_: "")
    assert load(tmp_path / "c").gaps == []
    return tmp_path / "c"


DUMP = "stacks/n1/rank-0-pid-10.json"
INNER = ["manifest.json", "verdict.json", "samples/n1.jsonl.gz", DUMP]


def test_a_capture_is_read_without_py_spy_s_trees_and_they_come_one_by_one(capture: Path) -> None:
    (dump,) = load(capture).dumps
    assert dump.raw == [] and dump.digests[0].frames[0].ints == {"step": 3}
    (dump,) = read_raw(capture)
    assert dump.raw == [{"pid": 10, "threads": [{"frames": []}]}]


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "device"])
def test_nothing_in_a_capture_is_anything_but_a_file(capture: Path, name: str, kind: str) -> None:
    """A link out of it may lead to what only root may read, a pipe never ends."""
    path = capture / name
    path.rename(capture.parent / "moved")
    if kind == "link":
        path.symlink_to(capture.parent / "moved")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert f"{path}: is a" in refused(capture)


@pytest.mark.parametrize("name", ["samples", "stacks", "stacks/n1"])
def test_no_folder_in_a_capture_is_a_link(capture: Path, name: str) -> None:
    (capture / name).rename(capture.parent / "moved")
    (capture / name).symlink_to(capture.parent / "moved")
    assert refused(capture) == f"{capture / name}: is a symbolic link, not a directory"


@pytest.mark.parametrize("name", ["manifest.json", "verdict.json", DUMP])
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[" * 500_000,
        b'{"not_answered":' * 500_000,
        b"\xff\xfe{\x00}\x00",
        b'{"nodes": NaN}',
        b'"text"',
        b"3",
        b'[{"pid": "x"}]',
        b'{"mltop_capture": 1, "nodes": 3, "not_answered": 3}',
        b'{"mltop_capture": 1, "files": [3], "not_answered": [3]}',
        b'{"mltop_capture": 2, "not_answered": [{}]}',
        b'{"mltop_capture": 1, "nodes": [' + b'{"node":"","state":""},' * 150_000 + b'{"node":"","state":""}], '
        b'"not_answered": [' + b'{"node":"","state":""},' * 150_000 + b'{"node":"","state":""}]}',
        b"[" + b'{"rank":0,"pid":1},' * 500_000 + b"{}]",
    ],
)
def test_a_file_of_a_capture_that_is_none_is_named(capture: Path, name: str, text: bytes) -> None:
    (capture / name).write_bytes(text)
    assert str(capture / name) in refused(capture)


@pytest.mark.parametrize("name", INNER)
def test_a_file_that_is_too_large_is_named(capture: Path, name: str) -> None:
    with (capture / name).open("wb") as file:
        file.truncate(8 << 30)
    assert str(capture / name) in refused(capture)


@pytest.mark.parametrize(("limit", "most"), [("MOST_FILES", 3), ("MOST_DUMP_PARTS", 3)])
def test_a_capture_of_too_much_is_said(capture: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(decoding, limit, most)
    refused(capture)


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_manifest_that_tells_much_is_cut_short(capture: Path) -> None:
    outside = ["../../../etc/passwd", "/etc/passwd", *(f"stacks/{number}" for number in range(50_000))]
    edit(capture / "manifest.json", problems=["x" * 20_000] * 1000, files=outside)
    gaps = [gap.why for gap in load(capture).gaps]
    assert len(gaps) == 22 and max(map(len, gaps)) <= 500
    assert gaps[-2] == "and 980 more problems are in its manifest.json"
    assert gaps[-1] == "../../../etc/passwd, /etc/passwd, stacks/0 and 49,999 more files are missing"


def test_names_of_others_are_one_line(capture: Path) -> None:
    name = "stacks/n1/rank-0\n\x1b[2J.json"
    (capture / name).write_text("{")
    assert "rank-0" in refused_as_it_is(capture)


def refused_as_it_is(path: Path) -> str:
    """The printer cleans it."""
    with pytest.raises(BadRecording) as problem:
        load(path)
    return str(problem.value)


def test_two_nodes_whose_names_look_alike_have_a_file_each(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c")
    names = ["a/b", "a_b", "a:b", "é" * 300, "é" * 301, "..", "."]
    for name in names:
        writer.add_samples(name, [Sample(name[:200], 1.0)])
    assert len(list((tmp_path / "c/samples").iterdir())) == len(names)
    assert writer.problems == []


def test_a_sample_passes_one_place() -> None:
    assert decode_sample(GOOD, "x").node == "n1"
