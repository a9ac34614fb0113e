"""What strangers may lay beside a job's logs: each costs one line, seconds and little memory, and the rest is judged."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pickle
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.investigate.explain import Reading, explain
from tests.builders.flight_records import as_pickle, done_to, operation, record
from tests.builders.hostile_records import HOSTILE, LISTED

CRASH = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a.py", line 1, in f\n[rank1]: ValueError: no\n'
MOST_BYTES = 200 << 20
MOST_CPU_S = 20  # of a slow machine; what these were before took minutes, or all memory

MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def explained(*paths: Path) -> tuple[int, dict[str, Any], list[str]]:
    """The exit code, the answer, and the lines on stderr."""
    names = [str(path) for path in paths]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, sys.executable, "-m", "mltop", "explain", "--json", *names],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    *lines, measured = done.stderr.splitlines()
    cpu_s, kilobytes = map(float, measured.split())
    assert cpu_s < MOST_CPU_S and kilobytes * 1024 < MOST_BYTES, measured
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, lines


def beside_a_crash(folder: Path) -> list[str]:
    """Why files were not read; the crash is explained all the same."""
    (folder / "job.log").write_text(CRASH)
    code, answer, lines = explained(folder)
    assert code in (1, 3) and lines == [], (code, lines)
    assert any("ValueError: no" in job["incident"]["headline"] for job in answer["jobs"] if job["incident"])
    whys = [gap["why"] for gap in answer["gaps"]]
    assert all("\n" not in why for why in whys)
    return whys


def header(name: str, kind: bytes, content: bytes = b"") -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, len(content)
    return entry.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def sparse() -> bytes:
    """An entry of a terabyte whose table of data does not end."""
    first = bytearray(header("c/a", tarfile.GNUTYPE_SPARSE))
    first[482] = 1
    first[483:495] = b"\x80" + (1 << 40).to_bytes(11, "big")
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    return bytes(first) + (b"00000000001\0" * 42 + b"\x01" + bytes(7)) * 20_000


ENTRIES = {
    "long names in a row": header("././@LongLink", tarfile.GNUTYPE_LONGNAME, b"a" * 512) * 20_000,
    "extensions in a row": header("x", tarfile.XHDTYPE, b"11 path=ab\n") * 20_000,
    "extensions of all": header("x", tarfile.XGLTYPE, b"11 path=ab\n") * 20_000,
    "a million extensions": header("x", tarfile.XHDTYPE, b"".join(b"15 k%07d=v\n\n" % n for n in range(500_000))),
    "a name of 100 KB": header("././@LongLink", tarfile.GNUTYPE_LONGNAME, b"a" * 100_000),
    "a length that is none": header("x", tarfile.XHDTYPE, b"99999999999999999999999999 path=x\n"),
    "a terabyte of holes": sparse(),
    "a loop of links": header("a", tarfile.SYMTYPE) + header("b", tarfile.LNKTYPE),
    "a device": header("c/null", tarfile.CHRTYPE),
    "one name twice": 2 * header("c/a", tarfile.REGTYPE),
}


def test_archives_that_are_no_captures(tmp_path: Path) -> None:
    for name, entries in ENTRIES.items():
        archive = gzip.compress(entries + header("c/z", tarfile.REGTYPE) + bytes(1024), 1)
        (tmp_path / f"{name}.tar.gz").write_bytes(archive)
    for name in ("logs.tar", "logs.zip", "logs.tar.xz"):
        (tmp_path / name).write_bytes(b"")
    whys = beside_a_crash(tmp_path)
    assert len(whys) == len(ENTRIES) + 3
    assert whys.count("is an archive: unpack it first") == 3


def piece(content: bytes, count: int) -> bytes:
    """Packed once, unpacked ``count`` times."""
    packer = zlib.compressobj(9, wbits=31)
    first = packer.compress(CRASH.encode()) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + count * (packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH))


PACKED: dict[str, Callable[[], bytes]] = {
    "one in another.log.gz": lambda: gzip.compress(gzip.compress(gzip.compress(CRASH.encode()))),
    "a name without an end.log.gz": lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * (30 << 20),
    "empty ones.log.gz": lambda: gzip.compress(b"") * 200_001,
    "empty ones.log.xz": lambda: lzma.compress(b"") * 5_000,
    "zeros.log.gz": lambda: piece(bytes(1 << 20), 200),
}


def test_packed_logs(tmp_path: Path) -> None:
    for name, make in PACKED.items():
        (tmp_path / name).write_bytes(make())
    whys = " ".join(beside_a_crash(tmp_path))
    assert "200,000 packed files" in whys


def test_folders(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    deep = os.open(logs, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    for name in ("pipe.log", "nccl_trace_rank_3", "c.tar.gz"):
        os.mkfifo(logs / name)
    for link, to in (("up", ".."), ("self", "self"), ("proc", "/proc"), ("zero.log", "/dev/zero"), ("no.log", "no")):
        (logs / link).symlink_to(to)
    for number in range(60):
        (logs / f"c{number}.log").symlink_to(f"c{number + 1}.log")
    (logs / "\udcff\x1b[2J\n.log").write_text("step 1\n")
    for name, before in (("holes.log", b"step 1\n" * 100_000), ("hole.log", b"")):
        (logs / name).write_bytes(before)
        os.truncate(logs / name, 8 << 40)
    try:
        whys = beside_a_crash(logs)
    finally:
        subprocess.run(["rm", "-rf", logs], check=True)  # Python's own goes as deep as its stack
    assert [why for why in whys if "64 folders deep" in why]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_what_is_mounted_in_a_folder_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    script = f"mount -t tmpfs none {tmp_path}/mounted && touch {tmp_path}/mounted/a.log && exec " + " ".join(
        [sys.executable, "-m", "mltop", "explain", "--json", str(tmp_path)]
    )
    (tmp_path / "job.log").write_text(CRASH)
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode not in (1, 3):
        pytest.skip(f"no mounts here: {done.stderr}")
    answer = json.loads(done.stdout)
    assert [gap["item"] for gap in answer["gaps"]] == [f"{tmp_path}/mounted"]
    assert len(answer["files"]) == 1


ENTRY = operation(3, state="scheduled")
LONG = "/x" * (1 << 19)
STRANGE: list[object] = [
    None,
    True,
    -1,
    10**300,
    float("nan"),
    float("inf"),
    "9" * 5000,
    "\x1b[2J\n",
    [],
    {},
    [[{}]],
    (1,),
]


def of_many_groups(ranks: str) -> dict[str, Any]:
    names = [str(number) for number in range(1_024)]
    entries = [{**ENTRY, "process_group": (name, "d"), "pg_id": int(name)} for name in names]
    return {
        "version": "2.10",
        "entries": entries,
        "pg_config": {name: {"ranks": ranks} for name in names},
        "pg_status": {},
    }


def test_flight_records(tmp_path: Path) -> None:
    frames = [{"name": LONG, "filename": LONG, "line": 3}] * 48
    shared = {**ENTRY, "frames": frames, "process_group": (LONG, LONG), "input_dtypes": [LONG] * 16}
    contents: list[bytes] = [
        pickle.dumps({"entries": [shared] * 5_000}, 2),
        pickle.dumps({"entries": [dict(shared) for _ in range(50)]}, 2),
        pickle.dumps(of_many_groups(LISTED), 2),
        b'{"entries":' + b"[" * 100_000,
        b'{"entries":' + b'{"a":' * 100_000,
        b'{"entries": [], "pg_status": {"0": ' + b"9" * 100_000 + b"}}",
        b"\x80\x02" + b"N0" * 100_000 + b"}(X\x07\x00\x00\x00entries]N" + b"\x86" * 1_000 + b"au.",
    ]
    for key in ENTRY:
        changed = [{**ENTRY, key: strange} for strange in STRANGE]
        contents.append(pickle.dumps({"version": "2.10", "entries": changed}, 2))
        contents.append(json.dumps({"version": "2.10", "entries": changed}).encode())
    for key in ("version", "entries", "pg_config", "pg_status", "rank"):
        contents += [pickle.dumps({**record(done_to(2, ENTRY)), key: strange}, 2) for strange in STRANGE]
    for number, content in enumerate(contents):
        (tmp_path / f"nccl_trace_rank_{number}").write_bytes(content)
    with (tmp_path / "nccl_trace_rank_999").open("wb") as huge:
        huge.write(contents[0][:10])
        huge.truncate(1 << 40)
    whys = beside_a_crash(tmp_path)
    assert any("larger than 32 MiB" in why for why in whys)
    assert any("more than mltop keeps" in why for why in whys)


@pytest.mark.parametrize("half", [0, 1])
def test_flight_records_that_cost_much(half: int, tmp_path: Path) -> None:
    kinds = list(HOSTILE)[half::2]
    for number, kind in enumerate(kinds):
        (tmp_path / f"nccl_trace_rank_{number}").write_bytes(HOSTILE[kind]())
    whys = beside_a_crash(tmp_path)
    assert len(whys) >= len(kinds) - 1, (kinds, whys)


def test_numbers_that_no_job_has(tmp_path: Path) -> None:
    work = "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds"
    said = [
        f"[rank{rank}]:[E1103 10:00:0{at}.000000001 ProcessGroupNCCL.cpp:683] [PG ID 1 PG GUID {group}(tp) Rank {place}] "
        f"{words}\n"
        for at, (rank, group, place) in enumerate([(0, 5, 0), (90_000_000, 5, 90_000_000), (0, 0, 0), (2, 0, 10**15)])
        for words in (
            f"Watchdog caught collective operation timeout: {work}",
            "failure detected by watchdog at work sequence id: 3 PG status: last enqueued work: 3, last completed work: 2",
        )
    ]
    world = "n1:41:77 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 99999999999 cudaDev 0\n"
    (tmp_path / "job.log").write_text("".join([world, *said]))
    code, answer, lines = explained(tmp_path)
    assert code == 3 and answer["jobs"][0]["world_size"] is None
    assert "Traceback" not in "".join(lines)


def test_a_record_that_is_too_much_costs_no_other_one(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(as_pickle(of_many_groups(LISTED)))
    for rank in (1, 2):
        waits = operation(3, name=f"op{rank}", state="scheduled")
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(record(done_to(2, waits), status={0: (3, -1, 2)})))
    code, answer, _ = explained(tmp_path)
    assert code == 3 and [gap["item"] for gap in answer["gaps"]] == [f"{tmp_path}/nccl_trace_rank_0"]
    assert [len(job["files"]) for job in answer["jobs"]] == [2]


def test_interrupted_while_records_are_read_it_judges_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(CRASH)
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(record(done_to(2, ENTRY))))

    def interrupt(reading: Reading) -> None:
        if reading.current.endswith("_rank_1"):
            raise KeyboardInterrupt

    found = explain([str(tmp_path)], interrupt)
    assert not found.is_whole
    assert [job.incident.headline for job in found.jobs if job.incident] == [
        "rank 1 failed first: ValueError: no, in f (/a.py:1)"
    ]
