"""Filesystems asked through a real child process; some of them, by a FUSE mount of our own, never answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.filesystems.source import FilesystemSource
from mltop.probes.model import FilesystemSample, Gap
from tests.documents import ROOT
from tests.fakes.silent_fuse import AVAILABLE, BLOCK_BYTES, BLOCKS, FILES, FREE, needs_fuse
from tests.processes import command_of, own_children, state_of
from tests.waiting import wait_until

NOW = 100.0

# Runs until each condition holds; every step prints what was seen.
PROGRAM = """
import json, os, sys, time
from pathlib import Path
from tests.fakes.silent_fuse import SilentFuse, private_mounts
from tests.processes import own_children, state_of
from tests.waiting import wait_until
from mltop.probes.collect.filesystems.source import FilesystemSource
from mltop.probes.model import to_json

mount, accepts = sys.argv[1], sys.argv[2] == "accepts"
private_mounts()
fuse = SilentFuse(mount, accepts)
source = FilesystemSource(deadline_s=0.2, first_pause_s=0.1)

def step(name, condition):
    def read():
        samples, gaps = source.read(time.monotonic())
        found = {sample.mount: sample for sample in samples}
        return condition(found) and (found[mount], found["/"], gaps)
    print(json.dumps({"step": name, "seen": json.loads(to_json(wait_until(read, 20, name)))}), flush=True)

def states():
    return [state_of(pid) for pid in own_children()]

step("stalled", lambda found: found[mount].stalled_s is not None and found["/"].total_bytes)
first = source.read(time.monotonic())[0]
step("still", lambda found: found[mount].stalled_s > 0.5)
print(json.dumps({"step": "children", "seen": states()}), flush=True)
fuse.answer()
step("answered", lambda found: found[mount].stalled_s is None)
source.close()
os._exit(0)
"""


def scenario(tmp_path: Path, mode: str) -> dict[str, Any]:
    mount = tmp_path / "mounted"
    mount.mkdir()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, str(mount), mode]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    steps = {line["step"]: line["seen"] for line in map(json.loads, done.stdout.splitlines())}
    assert not os.path.ismount(mount)  # nobody else ever saw it
    return steps


@needs_fuse
@pytest.mark.parametrize("mode", ["accepts", "ignores"])
def test_a_filesystem_that_does_not_answer_stalls_alone_and_comes_back(tmp_path: Path, mode: str) -> None:
    steps = scenario(tmp_path, mode)
    stalled, root, gaps = steps["stalled"]
    assert stalled["is_network"] and stalled["kind"] == "fuse.silent" and stalled["device"] == "server:/data"
    assert stalled["stalled_s"] >= 0.2 and stalled["total_bytes"] is None
    assert root["total_bytes"] > 0 and root["stalled_s"] is None
    assert [(gap["what"], gap["why"]) for gap in gaps] == [
        ("host.filesystems", f"{tmp_path}/mounted: no answer yet, sizes unknown")
    ]
    assert steps["still"][0]["stalled_s"] > stalled["stalled_s"]
    if mode == "accepts":  # the kernel holds who asked; nobody else is sent after it
        assert steps["children"].count("D") == 1
    answered, _, gaps = steps["answered"]
    assert gaps == []
    assert (answered["total_bytes"], answered["available_bytes"]) == (BLOCKS * BLOCK_BYTES, AVAILABLE * BLOCK_BYTES)
    assert (answered["inodes_total"], answered["inodes_free"]) == (FILES, FREE)


@pytest.fixture
def source() -> Iterator[FilesystemSource]:
    opened = FilesystemSource(deadline_s=0.1)
    yield opened
    opened.close()


def child_of(source: FilesystemSource) -> int:
    (pid,) = [pid for pid in own_children() if "filesystems.child" in command_of(pid)]
    return pid


def answered(source: FilesystemSource, now: float) -> list[FilesystemSample]:
    def read() -> list[FilesystemSample]:
        samples, gaps = source.read(now)
        return [] if gaps else samples

    return wait_until(read, what="all filesystems' answers")


def test_this_machine_is_read_as_statvfs_tells(source: FilesystemSource) -> None:
    samples, gaps = source.read(NOW)
    assert {(gap.what, gap.kind) for gap in gaps} == {("host.filesystems", "starting")}
    assert all(sample.total_bytes is None for sample in samples)
    samples = answered(source, NOW)
    assert [sample.mount for sample in samples] == sorted(sample.mount for sample in samples)
    root = next(sample for sample in samples if sample.mount == "/")
    expected = os.statvfs("/")
    assert root.total_bytes == expected.f_blocks * expected.f_frsize
    assert root.read_only is False and root.stalled_s is None


def test_between_times_nothing_is_asked(source: FilesystemSource) -> None:
    answered(source, NOW)
    pid = child_of(source)

    def runs() -> int:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[2])

    wait_until(lambda: state_of(pid) == "S", what="sleep")
    before = runs()
    first = source.read(NOW + 1)
    assert [source.read(NOW + tick) for tick in range(2, 9)] == [first] * 7
    assert runs() == before
    wait_until(lambda: source.read(NOW + 10) and runs() > before, what="the next round")


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
def test_a_child_that_is_stopped_or_killed_is_replaced(source: FilesystemSource, sent: signal.Signals) -> None:
    answered(source, NOW)
    pid = child_of(source)
    os.kill(pid, sent)

    def troubled() -> list[str]:
        return [gap.why for gap in source.read(NOW + 11)[1] if gap.kind == "unknown"]

    (why,) = wait_until(troubled, what="a gap")
    assert why.startswith("the process that asks filesystems ")
    samples = answered(source, NOW + 11)
    assert child_of(source) != pid and all(sample.total_bytes is not None for sample in samples)


def tree(root: Path, table: str) -> None:
    (root / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (root / "proc" / "self" / "mounts").write_text(table)


def test_a_copied_tree_has_its_own_table(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    tree(tmp_path, "/dev/sda /data xfs rw 0 0\nserver:/gone /gone nfs ro 0 0\n")
    (tmp_path / "proc" / "self" / "mountstats").write_text(
        "device server:/gone mounted on /gone with fstype nfs statvers=1.1\n"
        "\tper-op statistics\n\tREAD: 5 7 1 0 0 0 0 0\n"
    )
    source = FilesystemSource(str(tmp_path))
    try:
        data, gone = wait_until(lambda: (s := source.read(NOW)[0]) and s[0].total_bytes and s, what="answers")
        assert (data.mount, gone.mount, gone.read_only) == ("/data", "/gone", True)
        assert gone.counters == {"operations": 5, "retrans": 2, "timeouts": 1, "backlog": 0}
        assert source.read(NOW)[1] == [Gap("host.filesystems", "/gone: No such file or directory")]
        tree(tmp_path, "/dev/sda /data xfs ro 0 0\n")
        (data,) = source.read(NOW + 11)[0]
        assert data.read_only is True and data.total_bytes  # what was known of it stays
        (tmp_path / "proc" / "self" / "mounts").unlink()
        samples, gaps = source.read(NOW + 22)
        assert len(samples) == 1 and "the table of mounts cannot be read" in gaps[0].why
    finally:
        source.close()


@pytest.mark.parametrize("table", ["", "\0\xff nonsense\n\n x\n", "a b c\n"])
def test_a_strange_table_gives_no_filesystems(tmp_path: Path, table: str) -> None:
    tree(tmp_path, table)
    source = FilesystemSource(str(tmp_path))
    assert source.read(NOW) == ([], [])
    source.close()
