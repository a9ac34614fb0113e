"""Captures as one file: what was packed is read again; what anybody else made does nothing but a sentence."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mltop.probes.investigate.capture import begin, finish_capture, is_packed, load, pack, rejudge
from mltop.probes.investigate.material import Material
from mltop.probes.model import Finding, KernelEvent, NodeState, RankStacks, Sample, StackDigest
from mltop.probes.model.incident import Evidence, Incident, Suffers
from mltop.probes.model.ranks import Ranges
from mltop.probes.record import BadRecording, archives, read_raw

INCIDENT = Incident(  # with ranks, which are text in JSON
    "hang-1",
    "hang",
    "critical",
    "rank 2 never reached all_reduce",
    suffers=Suffers(Ranges.of([0, 1, 3]), 3, 0.4),
    causes=[Finding("ib.down", "critical", "n1", "mlx5_0", "port down")],
    evidence=[Evidence("stacks", "3 ranks wait", 100.0)],
)


def material() -> Material:
    events = [KernelEvent(90.0, "xid", "0000:01:00", 79, "GPU has fallen off the bus\x1b[2J")]
    samples = [Sample("n1", at, "boot", kernel_events=events) for at in (100.0, 101.0)]
    dump = RankStacks(7, 2, "j", "n1", 100.5, digests=[StackDigest(2, 7, node="n1")], raw=[{"pid": 7, "threads": []}])
    return Material([NodeState("n1", "live")], {"n1": samples}, [dump])


def captured(to: Path, packed: bool = True) -> Path:
    writer = begin(to, 0.0)
    finish_capture(writer, material(), [], lambda *_: "words", incidents=[INCIDENT])
    if packed:
        pack(writer, to)
    return writer.directory


def left_over() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("mltop-capture-")}


@pytest.fixture
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    return own


@pytest.mark.parametrize("packed", [True, False])
def test_what_was_captured_is_read_again(packed: bool, tmp_path: Path, own_temporary: Path) -> None:
    path = captured(tmp_path / ("c.tar.gz" if packed else "c"), packed)
    saved = load(path)
    assert saved.incidents == [INCIDENT]
    assert [dump.pid for dump in saved.dumps] == [7] and len(saved.samples["n1"]) == 2
    assert saved.findings and {finding.node for finding in saved.findings} == {"n1"}
    assert [gap.why for gap in saved.gaps] == []
    assert [dump.raw for dump in read_raw(path)] == [[{"pid": 7, "threads": []}]]
    assert rejudge(path)[0].dumps
    assert list(own_temporary.iterdir()) == []


def test_the_file_is_private_and_the_folder_is_gone(tmp_path: Path) -> None:
    path = captured(tmp_path / "c.tar.gz")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.tar.gz"]
    with tarfile.open(path) as tar:
        entries = tar.getmembers()
    assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {(0, 0, "", "")}
    assert {entry.name.partition("/")[0] for entry in entries} == {"c"}
    assert {oct(entry.mode) for entry in entries} == {"0o700", "0o600"}


def test_the_kernels_lines_are_text(tmp_path: Path) -> None:
    lines = (captured(tmp_path / "c", packed=False) / "kernel.txt").read_text()
    assert lines == "1970-01-01T00:01:30Z n1 xid 79 GPU has fallen off the bus\n"


def test_what_is_there_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "c.tar.gz"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        captured(path)
    assert path.read_text() == "mine"
    (tmp_path / "link.tar.gz").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        captured(tmp_path / "link.tar.gz")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_of_that_name_is_passed_by(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    assert load(captured(tmp_path / "c.tar.gz")).incidents == [INCIDENT]
    assert list((tmp_path / "c").iterdir()) == []


def test_a_link_laid_into_the_folder_is_not_packed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    writer = begin(tmp_path / "c.tar.gz", 0.0)
    finish_capture(writer, material(), [], lambda *_: "words")
    (writer.directory / "stolen").symlink_to(secret)
    pack(writer, tmp_path / "c.tar.gz")
    with tarfile.open(tmp_path / "c.tar.gz") as tar:
        assert not any("stolen" in name for name in tar.getnames())
    assert secret.read_text() == "key"


def test_others_pack_it_differently(tmp_path: Path) -> None:
    """tar -C dir -cf x.tar . and tar -czf x.tgz dir."""
    folder = captured(tmp_path / "c", packed=False)
    for name, mode, inside in (("a.tar", "w", "."), ("b.tgz", "w:gz", "some/../c"), ("d", "w:gz", "c")):
        with tarfile.open(tmp_path / name, mode) as tar:  # type: ignore[call-overload]
            tar.add(folder, arcname=inside)
        if ".." in inside:
            with pytest.raises(BadRecording):
                load(tmp_path / name)
        else:
            assert load(tmp_path / name).incidents == [INCIDENT]


# Of strangers.


def entry(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, size, link
    return made


def archive(path: Path, *entries: tarfile.TarInfo, content: bytes = b"") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for each in entries:
            tar.addfile(each, io.BytesIO(content) if each.size else None)
    return path


@pytest.mark.parametrize(
    "bad",
    [
        entry("../evil"),
        entry("c/../../evil"),
        entry("/tmp/evil"),
        entry("c/manifest.json", tarfile.SYMTYPE, link="/etc/shadow"),
        entry("c/manifest.json", tarfile.LNKTYPE, link="/etc/shadow"),
        entry("c/dev", tarfile.CHRTYPE),
        entry("c/dev", tarfile.BLKTYPE),
        entry("c/pipe", tarfile.FIFOTYPE),
        entry("a/b/c/d/e/f/g"),
    ],
    ids=lambda entry: f"{entry.name} {entry.type!r}",
)
def test_what_is_no_plain_file_is_refused(bad: tarfile.TarInfo, tmp_path: Path, own_temporary: Path) -> None:
    with pytest.raises(BadRecording, match=r"x\.tar\.gz"):
        load(archive(tmp_path / "x.tar.gz", entry("c", tarfile.DIRTYPE), bad))
    assert not (tmp_path / "evil").exists() and not Path("/tmp/evil").exists()
    assert list(own_temporary.iterdir()) == []


def test_one_name_twice_is_refused(tmp_path: Path, own_temporary: Path) -> None:
    with pytest.raises(BadRecording):
        load(archive(tmp_path / "x.tar.gz", entry("c/a"), entry("c/a")))
    assert list(own_temporary.iterdir()) == []


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRecording):
        load(archive(tmp_path / "x.tar.gz", entry("c/a"), entry("c/a/b")))


def test_too_large_is_refused_before_it_is_written(
    tmp_path: Path, own_temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MOST_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(BadRecording, match="larger than"):
        load(archive(tmp_path / "x.tar.gz", entry("c/a", size=2 << 20), content=bytes(2 << 20)))
    assert list(own_temporary.iterdir()) == []


def test_a_header_that_claims_gigabytes_costs_no_memory(tmp_path: Path) -> None:
    """A pax extension, which tarfile reads whole, of 8 GiB."""
    header = entry("x", tarfile.XHDTYPE, size=8 << 30).tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(header + bytes(1 << 20)))
    with pytest.raises(BadRecording, match="larger than any"):
        load(path)


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 10)
    with pytest.raises(BadRecording, match="more than 10 files"):
        load(archive(tmp_path / "x.tar.gz", *[entry(f"c/{number}") for number in range(20)]))


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _turned(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 64]) + data[middle + 64 :]


@pytest.mark.parametrize("damage", [_cut, _turned])
def test_damaged_ones_are_a_sentence(damage: Callable[[bytes], bytes], tmp_path: Path, own_temporary: Path) -> None:
    path = captured(tmp_path / "c.tar.gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadRecording) as refused:
        load(path)
    assert "\n" not in str(refused.value) and str(path) in str(refused.value)
    assert str(own_temporary) not in str(refused.value)
    assert list(own_temporary.iterdir()) == []


def test_an_archive_without_a_capture(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="not an mltop capture"):
        load(archive(tmp_path / "x.tar.gz", entry("c/readme")))


def test_a_packed_recording_is_none(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"mltop_recording": 1}\n'))
    assert not is_packed(path)
    assert load(path).samples == {}
