"""Files that were made to harm whoever looks at them, given to the commands: one line, exit code 2, bounded memory."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from mltop.probes.model import NodeState
from mltop.probes.record import CaptureWriter, header_line

MLTOP = [sys.executable, "-m", "mltop"]
MOST_BYTES = 500 << 20  # of memory
READERS = ("snapshot", "snapshot --json", "check", "stacks", "stacks --json", "stacks --raw")


@dataclass
class Ended:
    code: int
    out: str
    lines: list[str]
    memory_bytes: int


MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(f"MEMORY {kilobytes}", file=sys.stderr)
sys.exit(done.returncode)
"""


def run(*args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ended:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *MLTOP, *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        text=True,
        timeout=300,
        check=False,
    )
    *lines, memory = done.stderr.splitlines()
    return Ended(done.returncode, done.stdout, lines, int(memory.removeprefix("MEMORY ")) << 10)


def refused(ended: Ended, *words: str) -> None:
    assert (ended.code, ended.out) == (2, ""), ended
    (line,) = ended.lines
    assert line.startswith("mltop: ") and line.isprintable()
    assert all(word in line for word in words), line
    assert ended.memory_bytes < MOST_BYTES


@pytest.mark.parametrize("command", READERS)
def test_a_pipe_in_place_of_a_recording_or_within_a_capture_is_not_waited_for(tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(run(*command.split(), "--recording", str(tmp_path / "pipe")), "is a pipe, not a regular file")
    writer = CaptureWriter(tmp_path / "c")
    writer.finish()
    (tmp_path / "c/stacks/n1").mkdir(parents=True)
    os.mkfifo(tmp_path / "c/stacks/n1/rank-0-pid-1.json")
    refused(run(*command.split(), "--recording", str(tmp_path / "c")), "rank-0-pid-1.json: is a pipe")


def test_a_link_out_of_a_capture_shows_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "shadow"
    secret.write_text('[{"pid": 1, "rank": 0, "job": "secret"}]')
    writer = CaptureWriter(tmp_path / "c")
    writer.finish()
    (tmp_path / "c/stacks/n1").mkdir(parents=True)
    (tmp_path / "c/stacks/n1/rank-0-pid-1.json").symlink_to(secret)
    for command in READERS:
        refused(run(*command.split(), "--recording", str(tmp_path / "c")), "is a symbolic link")


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/kmsg", "/dev/full"])
def test_a_device_is_not_read(path: str) -> None:
    refused(run("check", "--recording", path), path)


HEADER = header_line(1.0).encode() + b"\n"
GOOD = b'{"node":"n1","sampled_at":1.0}\n'
BOMBS = {
    # name: (pieces before, piece, how often, words)
    "one line": (HEADER, bytes(1 << 20), 2000, "has a line of more than 16 MiB"),
    "blank lines": (HEADER, b"\n" * (1 << 20), 100, "holds more than the"),
    "many objects": (
        HEADER + b'{"node":"n1","sampled_at":1.0,"gpus":[',
        b'{"index":0},' * 10_000,
        100,
        "values are more",
    ),
    "many nodes": (HEADER, b"", 0, "more than the 16,384 nodes"),
}


def packed(path: Path, before: bytes, piece: bytes, count: int, after: bytes = b"") -> Path:
    """As gzip does it, but ``piece`` is compressed once, however often it stands there; without a sum at the end."""
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH) for part in (before, piece, after)]
    path.write_bytes(parts[0] + count * parts[1] + parts[2])
    return path


@pytest.mark.parametrize("name", BOMBS)
def test_a_little_file_that_unpacks_to_much_is_given_up(tmp_path: Path, name: str) -> None:
    before, piece, count, words = BOMBS[name]
    after = b""
    if name == "many objects":
        after = b'{"index":0}]}\n'
    if name == "many nodes":
        after = b"".join(GOOD.replace(b"n1", b"n%d" % number) for number in range(20_000))
    path = packed(tmp_path / "r.jsonl.gz", before, piece, count, after)
    assert path.stat().st_size < 3 << 20
    refused(run("check", "--recording", str(path)), words)


def test_a_capture_of_many_recordings_has_one_limit(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c")
    writer.nodes([NodeState("n1", "live")])
    writer.finish()
    (tmp_path / "c/samples").mkdir()
    for number in range(3):  # of each alone there would be few enough
        data = gzip.compress(HEADER + GOOD.replace(b"n1", b"n%d" % number) + b"\n" * 900_000)
        (tmp_path / f"c/samples/n{number}.jsonl.gz").write_bytes(data)
    refused(run("snapshot", "--recording", str(tmp_path / "c")), "more than the 1,000,000 samples")


def test_a_large_honest_recording_needs_little_memory(tmp_path: Path) -> None:
    """240 MB, unpacked: it is read as a stream, kept packed, and judged in the order of time."""
    packer = zlib.compressobj(1, wbits=31)
    path = tmp_path / "r.jsonl.gz"
    filler = "x" * 20_000
    with path.open("wb") as file:
        file.write(packer.compress(HEADER))
        for at in range(6000):
            for node in ("n1", "n2"):
                line = f'{{"node":"{node}","sampled_at":{at},"later":"{filler}{at * 7919 % 6007}"}}\n'
                file.write(packer.compress(line.encode()))
        file.write(packer.flush())
    ended = run("snapshot", "--json", "--recording", str(path))
    assert ended.code == 0 and ended.memory_bytes < MOST_BYTES // 2


def test_host_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(run("snapshot", "--hostfile", str(tmp_path / "pipe")), "is a pipe, not a regular file")
    refused(run("snapshot", "--hostfile", "/dev/zero"), "is a device, not a regular file")
    refused(run("snapshot", env={"WCOLL": str(tmp_path / "pipe")}), "is a pipe, not a regular file")


def test_an_empty_recording_is_not_silently_fine(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(HEADER)
    for command in READERS:
        ended = run(*command.split(), "--recording", str(tmp_path / "r.jsonl"))
        assert ended.code == 3, command
        assert ended.out or ended.lines


def test_a_capture_directory_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "file").touch()
    for name in ("link", "folder", "to-folder", "file"):
        refused(run("capture", "-o", str(tmp_path / name)), "exists already")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link", "to-folder"]
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_capture_s_name_can_be_printed(tmp_path: Path) -> None:
    refused(run("capture", "-o", str(tmp_path / "a\x1b[2J\nb")), "has characters that cannot be printed")
    assert list(tmp_path.iterdir()) == []
