"""The bundle in a node's cache: shared, damaged, not ours, read-only, full, not there at all, out of date."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import psutil
import pytest

from mltop.probes.agent.protocol import Message, Request
from tests.bootstrapping import (
    SCRATCH,
    Bootstrapped,
    bundle_sha256,
    command,
    environment,
    in_mounts,
    installed,
    nowhere_to_write,
    processes_of,
    running,
    start_once,
)
from tests.fakes.silent_fuse import needs_fuse
from tests.waiting import wait_until

DAY_S = 86400.0
SHA256 = bundle_sha256()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def cache(home: Path) -> Path:
    return home / ".cache/mltop"


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_only_this_user_can_read_it(home: Path) -> None:
    (home / ".cache/mltop").mkdir(parents=True, mode=0o755)
    start_once(home)
    for path in (cache(home), *cache(home).rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} {mode:o}"


def test_five_nodes_with_one_cold_home(home: Path) -> None:
    results: list[Message | BaseException] = []

    def one(number: int) -> None:
        try:
            with running(command(node=f"n{number}"), environment(home)) as node:
                hello = node.boot()
                assert node.next("sample").node == f"n{number}"
                results.append(hello)
        except BaseException as error:  # noqa: BLE001 - told by the assertion below
            results.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [getattr(result, "kind", result) for result in results] == ["hello"] * 5
    wait_until(lambda: not processes_of(home), what="the end of every process")
    assert os.listdir(cache(home)) == [SHA256]
    assert not [path for path in files_below(cache(home)) if ".tmp" in path.name]
    assert start_once(home).cached


@pytest.mark.parametrize("damage", ["emptied", "changed", "removed", "folder removed"])
def test_a_damaged_cache_is_repaired(damage: str, warm_home: Path) -> None:
    home = warm_home
    folder = cache(home) / SHA256
    bundle = folder / "bundle.zip"
    before = bundle.read_bytes()
    if damage == "emptied":
        bundle.write_bytes(b"")
    elif damage == "changed":
        bundle.write_bytes(before.replace(b"interval", b"Interval"))
    elif damage == "removed":
        bundle.unlink()
    else:
        folder.rename(home / "away")
    booted = start_once(home)
    assert not booted.cached
    assert booted.root == str(cache(home))
    assert bundle.read_bytes() == before
    assert os.listdir(cache(home)) == [SHA256]
    assert start_once(home).cached


def test_agents_run_on_while_their_bundle_is_repaired(warm_home: Path) -> None:
    home = warm_home
    with running(command(), environment(home)) as node:
        node.boot()
        (cache(home) / SHA256 / "bundle.zip").unlink()
        assert not start_once(home).cached
        node.send(Request("request", id=1, op="doctor"))
        assert node.next("done").id == 1


def test_a_cache_of_somebody_else_is_not_entered(home: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    foreign = cache(home)
    foreign.mkdir(parents=True)
    mounts = (
        f"mount --rbind / {foreign}" if os.geteuid() else f"chown 12345 {foreign}"
    )  # in a user namespace / is foreign
    booted = start_once(home, in_mounts(mounts, command()), XDG_RUNTIME_DIR=str(tmp_path / "run"))
    assert booted.root == str(tmp_path / "run/mltop")
    assert booted.notes == [f"{foreign}: belongs to uid {65534 if os.geteuid() else 12345}"]
    assert os.listdir(foreign) == []


def test_a_link_is_not_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (home / ".cache").mkdir()
    cache(home).symlink_to(tmp_path / "elsewhere")
    booted = start_once(home, XDG_RUNTIME_DIR=str(tmp_path / "run"))
    assert booted.notes == [f"{cache(home)}: is a link, not a directory"]
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_read_only_home(home: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    argv = in_mounts(f"mount -t tmpfs -o ro none {home}", command())
    booted = start_once(home, argv, XDG_RUNTIME_DIR=str(tmp_path / "run"))
    assert booted.notes == [f"{cache(home)}: Read-only file system"]
    assert booted.root == str(tmp_path / "run/mltop")
    assert start_once(home, argv, XDG_RUNTIME_DIR=str(tmp_path / "run")).cached


def test_a_home_that_was_filled_before_it_became_read_only_is_used(warm_home: Path) -> None:
    home = warm_home
    argv = in_mounts(f"mount --bind {home} {home}; mount -o remount,bind,ro {home}", command())
    booted = start_once(home, argv)
    assert booted.cached
    assert booted.root == str(cache(home))


def test_a_full_home_is_found_out_on_the_way(home: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    argv = in_mounts(f"mount -t tmpfs -o size=256k none {home}", command())
    with running(argv, environment(home, XDG_RUNTIME_DIR=str(tmp_path / "run"))) as node:
        node.boot()
        assert node.booted.root == str(cache(home))
        assert [boot.root for boot in node.boots] == [str(cache(home)), str(tmp_path / "run/mltop")]
        assert node.boots[-1].cached
        assert node.boots[-1].notes == [f"{cache(home)}: No space left on device"]
        assert node.later_sample().host.memory_total_bytes > 0
    assert os.listdir(tmp_path / "run/mltop") == [SHA256]


def test_a_home_where_nothing_may_be_executed(home: Path) -> None:
    argv = in_mounts(f"mount -t tmpfs -o noexec none {home}", command())
    with running(argv, environment(home)) as node:
        node.boot()
        assert node.booted.root == str(cache(home))
        sample = node.later_sample()
        assert sample.host.memory_total_bytes > 0  # psutil's compiled part came through memory
        assert "host" not in [gap.what for gap in sample.gaps]


def test_memory_only() -> None:
    """No folder can be written: everything runs from memory, NVML's child process, too."""
    with running(in_mounts(nowhere_to_write(), command()), environment("/nonexistent")) as node:
        assert node.boot().kind == "hello"
        assert node.booted.root == ""
        assert [note.partition(":")[0] for note in node.booted.notes] == [
            "/nonexistent/.cache/mltop",
            *(f"{folder}/mltop-0" for folder in SCRATCH),
        ]
        sample = node.later_sample()
        assert sample.host.memory_total_bytes > 0
        nvml = next((gap for gap in sample.gaps if gap.what == "nvml"), None)
        assert nvml is None or "process" not in nvml.why  # its reader runs, whatever it finds
        node.close_stdin()
        assert node.wait() == 0
        assert node.errors() == ""


@needs_fuse
def test_a_home_on_a_dead_file_server_is_passed_over(home: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    # A FUSE file system whose server never answers, as a file server that is gone: who looks into it waits.
    dead = "exec 9<>/dev/fuse; mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 none"
    with running(
        in_mounts(f"{dead} {home}", command()), environment(home, XDG_RUNTIME_DIR=str(tmp_path / "run"))
    ) as node:
        assert node.boot().kind == "hello"
        assert node.booted.notes == [f"{cache(home)}: did not answer within 5 s"]
        assert node.booted.root == str(tmp_path / "run/mltop")
        node.close_stdin()
        assert node.wait() == 0  # although a thread of it still waits there


def test_old_versions_and_remains_are_removed(home: Path) -> None:
    cache(home).mkdir(parents=True)
    aged = {
        "a" * 64: 8 * DAY_S,
        "b" * 64: 2 * DAY_S,  # used within the week
        ".tmp.0123": 2 * DAY_S,
        ".tmp.4567": 0.1 * DAY_S,  # somebody is at it
        "py-spy-" + "c" * 64: 8 * DAY_S,
        "py-spy-" + "d" * 64: 2 * DAY_S,
        "notes.txt": 100 * DAY_S,  # not ours
    }
    for name, age_s in aged.items():
        path = cache(home) / name
        if name.startswith("py-spy") or name == "notes.txt":
            path.write_bytes(b"x")
        else:
            (path / "below").mkdir(parents=True)
        os.utime(path, times=(time.time() - age_s,) * 2)
    start_once(home)
    assert sorted(os.listdir(cache(home))) == sorted([SHA256, "b" * 64, ".tmp.4567", "py-spy-" + "d" * 64, "notes.txt"])


def test_using_a_version_keeps_it(warm_home: Path) -> None:
    home = warm_home
    bundle = cache(home) / SHA256
    os.utime(bundle, times=(0, 0))
    start_once(home)
    assert time.time() - bundle.stat().st_mtime < DAY_S


def test_the_installed_agent_starts_without_a_bootstrap(warm_home: Path) -> None:
    home = warm_home
    with running(installed("--text"), environment(home)) as node:
        assert node.next("hello").node == "there"
        assert node.later_sample().host.memory_total_bytes > 0
        assert environment_of(node)["MLTOP_CACHE"] == str(cache(home))
    (cache(home) / SHA256 / "python").write_text("/nonexistent/python\n")  # it was removed from this node
    with running(installed(), environment(home)) as node:
        assert node.next("hello").node == "there"


def test_using_it_keeps_it(warm_home: Path) -> None:
    bundle = cache(warm_home) / SHA256
    os.utime(bundle, times=(0, 0))
    with running(installed(), environment(warm_home)) as node:
        node.next("hello")
    assert time.time() - bundle.stat().st_mtime < DAY_S


def environment_of(node: Bootstrapped) -> dict[str, str]:
    (agent,) = (child for child in psutil.Process(node.process.pid).children() if child.name() != "sh")
    text = Path(f"/proc/{agent.pid}/environ").read_text()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
