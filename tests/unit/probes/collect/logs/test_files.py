"""Files as they lie there: packed, cut, binary, endless, no files at all."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mltop.probes.collect.logs.files import described, read_log
from mltop.probes.collect.logs.scanning import BLOCK
from mltop.probes.collect.records.flight_recorder import may_be_flight_record
from mltop.probes.system.files import BadFile, open_regular

TEXT = (
    "step 1\n" * 50
    + '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a.py", line 1, in f\n[rank1]: ValueError: no\n'
)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_packed_files_are_read_by_what_they_are(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "no ending"
    path.write_bytes(pack(TEXT.encode()))
    (event,) = read_log(str(path)).events
    assert (event.kind, event.line, event.rank) == ("exception", 53, 1)


def test_half_an_archive_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(TEXT.encode() + os.urandom(100_000))[:-5_000])
    file = read_log(str(path))
    assert file.gaps
    assert "end" in file.gaps[0].why


@pytest.mark.parametrize("data", [b"\x80\x02}q\x00.", b"\x7fELF\x02" + b"\0" * 4000, b"\x86\xae\n\xfb" + b"\0" * 9000])
def test_what_is_no_text_is_said(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(data)
    file = read_log(str(path))
    assert file.events == []
    assert [gap.why for gap in file.gaps] == ["is no text"]


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    for path in (str(tmp_path / "pipe.log"), "/dev/zero"):
        assert "no plain file" in read_log(path).gaps[0].why


def test_files_of_the_kernel_are_not_read(tmp_path: Path) -> None:
    """Reading /proc/kmsg takes lines away from whoever else reads them; other files there do something, too."""
    for number, target in enumerate(("/proc/kmsg", "/proc/self/environ", "/proc/version", "/sys/kernel/notes")):
        link = tmp_path / f"rank_{number}"
        link.symlink_to(target)
        assert "no plain file" in read_log(str(link)).gaps[0].why
        assert not may_be_flight_record(link)
        with pytest.raises(BadFile, match="of the kernel's"):
            open_regular(link)


def test_lines_are_numbered_over_blocks(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    filler = "x" * 99 + "\n"
    count = 3 * BLOCK // 100
    path.write_text(filler * count + TEXT)
    file = read_log(str(path))
    assert [event.line for event in file.events] == [count + 53]
    assert file.lines == count + 53


def test_an_endless_line_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "endless.log"
    path.write_bytes(b"x" * (5 * BLOCK) + b"\n" + TEXT.encode())
    assert [event.kind for event in read_log(str(path)).events] == ["exception"]


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (
            {"message": {"message": "ValueError: no", "extraInfo": {"timestamp": "1762077605", "py_callstack": ""}}},
            "exception",
            "ValueError: no",
        ),
        ({"message": "Signal 11 (SIGSEGV) received"}, "peer_exception", "Signal 11 (SIGSEGV) received"),
        (
            {
                "message": {
                    "message": "RuntimeError: Rank 1 failed to pass monitoredBarrier in 20 ms\n Original exception:\nx",
                    "extraInfo": {},
                }
            },
            "barrier_named",
            "RuntimeError: Rank 1 failed to pass monitoredBarrier in 20 ms Original exception: x",
        ),
    ],
)
def test_error_files(tmp_path: Path, content: object, kind: str, text: str) -> None:
    path = tmp_path / "none_abcdefgh" / "attempt_1" / "2" / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    file = read_log(str(path))
    assert (file.run, file.attempt, file.local_rank) == ("none_abcdefgh", 1, 2)
    assert [(event.kind, " ".join(event.text.split())) for event in file.events] == [(kind, text)]


@pytest.mark.parametrize("text", ["[]", "{", '{"message": 3}', "[" * 100_000, ""])
def test_error_files_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(text)
    assert read_log(str(path)).events == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("logs/none_9cg4wff7/attempt_0/3/stderr.log", ("none_9cg4wff7", 0, 3, None, "")),
        ("logs/none_9cg4wff7/attempt_12/0/stdout.log.gz", ("none_9cg4wff7", 12, 0, None, "")),
        ("out/rank_17.log", ("", None, None, 17, "")),
        ("out/n7-rank3.err", ("", None, None, 3, "")),
        ("slurm-123456.out", ("", None, None, None, "123456")),
        ("slurm-123456_7.out.gz", ("", None, None, None, "123456")),
        ("frank.log", ("", None, None, None, "")),
    ],
)
def test_what_paths_say(path: str, fields: tuple[object, ...]) -> None:
    file = described(path)
    assert (file.run, file.attempt, file.local_rank, file.rank, file.slurm_job) == fields
