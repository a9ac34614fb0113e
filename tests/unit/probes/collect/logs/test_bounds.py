"""Files that are made to take all time or memory, or that just grow so: each is read within bounds, or refused in words."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from mltop.probes.collect.logs.files import read_log
from mltop.probes.collect.logs.parser import MOST_EVENTS, LogParser
from mltop.probes.collect.logs.prefixes import Clock
from mltop.probes.collect.logs.scanning import BLOCK, Scanner, blocks, hits
from mltop.probes.model.evidence.logs import LogFile

CRASH = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nValueError: no\n'
RANKED = "".join(f"[rank3]: {line}\n" for line in CRASH.splitlines())


def told(path: Path, content: bytes) -> LogFile:
    path.write_bytes(content)
    return read_log(str(path))


def archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as packed:
            packed.writestr("a.log", CRASH)
    else:
        with tarfile.open(fileobj=out, mode="w") as tar:
            entry = tarfile.TarInfo("a.log")
            entry.size = len(CRASH)
            tar.addfile(entry, io.BytesIO(CRASH.encode()))
    return out.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_is_to_be_unpacked_first(tmp_path: Path, kind: str) -> None:
    file = told(tmp_path / "a.log", archive(kind))
    assert [gap.why for gap in file.gaps] == [f"is a {kind} archive: unpack it first"]
    assert (file.events, file.is_cut) == ([], False)


@pytest.mark.parametrize("coding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_to_be_converted_first(tmp_path: Path, coding: str) -> None:
    file = told(tmp_path / "a.log", f"\ufeff{CRASH}".encode(coding))
    assert "iconv" in file.gaps[0].why


def test_what_stands_before_the_break_of_an_archive_is_told(tmp_path: Path) -> None:
    noise = "".join(f"step {step} {step * step % 977}\n" for step in range(20_000))
    packed = gzip.compress((CRASH + noise + CRASH).encode())
    file = told(tmp_path / "a.log.gz", packed[: len(packed) // 2])
    assert [event.kind for event in file.events] == ["exception"]
    assert len(file.gaps) == 1
    assert file.is_cut


def test_what_unpacks_to_more_than_is_read_is_judged_as_far_as_that() -> None:
    found = []
    with pytest.raises(ValueError, match="more than"):
        for block in blocks(gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(b"step\n" * 10_000_000))), most=10 * BLOCK):  # type: ignore[arg-type]
            found.append(len(block))
    assert 9 * BLOCK < sum(found) <= 10 * BLOCK


def test_several_xz_files_one_after_the_other_are_one(tmp_path: Path) -> None:
    packed = lzma.compress(b"step 1\n" * 100_000) + bytes(8) + lzma.compress(CRASH.encode())
    file = told(tmp_path / "a.log.xz", packed)
    assert [(event.kind, event.line) for event in file.events] == [("exception", 100_003)]
    assert not file.gaps


def test_an_xz_file_gets_no_more_memory_than_is_right(tmp_path: Path) -> None:
    packed = bytearray(lzma.compress(CRASH.encode(), check=lzma.CHECK_NONE))
    header = packed[12 : 12 + (packed[12] + 1) * 4]
    header[4] = 38  # the dictionary's size: 2 GiB
    header[-4:] = zlib.crc32(bytes(header[:-4])).to_bytes(4, "little")
    packed[12 : 12 + len(header)] = header
    file = told(tmp_path / "a.log.xz", bytes(packed))
    assert "emory" in file.gaps[0].why


def test_holes_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        file.write(b"step 1\n" * 1000)
        file.truncate(64 << 20)
        file.seek(0, io.SEEK_END)
        file.write(b"\n" + CRASH.encode())
    with path.open("rb", buffering=0) as raw:
        assert sum(map(len, blocks(raw))) < 3 * BLOCK
    assert [event.line for event in read_log(str(path)).events] == [1004]


@pytest.mark.parametrize("states", [1_000, 100_000])
def test_an_exception_at_the_end_of_a_long_progress_bar_is_told(tmp_path: Path, states: int) -> None:
    bar = "".join(f"\rtrain: {state * 100 // states:3d}%|####      | {state}/{states}" for state in range(states))
    file = told(tmp_path / "a.log", (bar + CRASH).encode())
    assert [(event.kind, event.line) for event in file.events] == [("exception", 3)]


def scanned(text: str, *, finished: bool = True) -> LogParser:
    parser = LogParser(LogFile("a.log"), Clock(1_762_160_400.0))
    scanner = Scanner(parser)
    for block in blocks(io.BytesIO(text.encode())):
        scanner.feed(block)
    if finished:
        parser.finish()
    return parser


def test_a_dead_ranks_traceback_does_not_have_the_rest_of_a_file_read_line_by_line() -> None:
    parser = scanned(RANKED + "".join(f"[rank{step % 2}]: step {step}\n" for step in range(20_000)), finished=False)
    assert not parser.wants_more
    assert [(event.kind, event.rank) for event in parser.file.events] == [("exception", 3)]


def test_a_traceback_goes_on_among_the_lines_of_many_others() -> None:
    others = [f"[rank{rank + 10}]: step 1\n" for rank in range(2_000)]
    text = "".join("".join([line, "\n", *others]) for line in RANKED.splitlines())
    assert [event.text for event in scanned(text).file.events] == ["ValueError: no"]


def test_where_every_line_speaks_of_an_error_only_those_that_matter_are_looked_at() -> None:
    waits = "RuntimeError: [x] Timed out waiting 1800000ms for recv operation to complete\n"
    lines = [f"[data.py:31] fetch error: retry {number}\n" for number in range(6_000)]
    lines[2_000:2_000], lines[5_000:5_000] = [RANKED], [waits]
    block = "".join(lines).encode()
    found = hits(block)
    assert block.index(b"[rank3]: Traceback") in found
    assert block.index(waits.encode()) in found
    assert len(found) < 10
    assert {event.kind for event in scanned("".join(lines)).file.events} == {"exception", "gloo_timeout"}


def test_of_one_file_no_more_events_are_kept_than_fit() -> None:
    parser = scanned("".join(f"[rank{rank}]: Could not acquire GIL within 300 ms on exit\n" for rank in range(70_000)))
    assert len(parser.file.events) == MOST_EVENTS
    assert parser.file.left_out == {"gil_held": 70_000 - MOST_EVENTS}
