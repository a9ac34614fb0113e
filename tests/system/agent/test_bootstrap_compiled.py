"""The bundle's compiled modules: kept once, used when whole, and never a reason for not starting."""

from __future__ import annotations

import hashlib
import hmac
import io
import marshal
import os
import zipfile
from pathlib import Path

import psutil
import pytest

from mltop.probes.agent.bootstrap.cache import UNCHECKED_PYC
from mltop.probes.agent.protocol import Request
from mltop.probes.reach.bundle import compiled_key, opening
from mltop.probes.version import __version__
from tests.bootstrapping import (
    Bootstrapped,
    bundle_sha256,
    command,
    environment,
    in_mounts,
    installed,
    running,
    start_once,
)
from tests.waiting import wait_until

SHA256 = bundle_sha256()
HEADER_BYTES = 64 + 1  # the hash in hex, a newline


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def compiled(home: Path) -> Path:
    (found,) = (home / ".cache/mltop" / SHA256).glob("compiled-*")
    return found


def check_child(node: Bootstrapped, tries: int = 1) -> None:
    """NVML's reader runs and answers, whatever it finds; one that was started again within ``tries`` samples."""
    for left in reversed(range(tries)):
        sample = node.later_sample()
        assert sample.host.memory_total_bytes > 0
        ended = [gap for gap in sample.gaps if gap.what == "nvml" and "process" in gap.why]
        if not ended:
            return
        assert left, ended


def test_it_is_made_once_and_python_keeps_nothing_itself(home: Path) -> None:
    start_once(home)
    made = compiled(home).stat()
    with running(command(), environment(home)) as node:
        node.boot()
        check_child(node)
        node.close_stdin()
        assert node.wait() == 0
        assert node.errors() == ""
    assert compiled(home).stat().st_ino == made.st_ino


def signed(content: bytes, key: str, sha256: str = SHA256) -> bytes:
    return hmac.new(key.encode(), sha256.encode() + content, "sha256").hexdigest().encode() + b"\n" + content


def changed(home: Path) -> tuple[bytes, Path]:
    """The compiled bundle with other code in two of its modules, and the file that NVML's child makes then."""
    seen = f"open({str(home / 'seen')!r}, 'w').close()\n"
    version, child = "mltop/probes/version.py", "mltop/probes/collect/nvml/child.py"
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(compiled(home).read_bytes()[HEADER_BYTES:])) as made:
        sources = {version: "__version__ = 'compiled'", child: made.read(child).decode() + seen}
        with zipfile.ZipFile(buffer, "w") as other:
            for name in made.namelist():
                source = sources.get(name.removesuffix("c"))
                other.writestr(name, made.read(name) if source is None else source if name[-1] == "y" else code(source))
    return buffer.getvalue(), home / "seen"


def code(source: str) -> bytes:
    return UNCHECKED_PYC + marshal.dumps(compile(source, "", "exec"))


def test_it_is_what_runs(warm_home: Path) -> None:
    """In the agent and in NVML's child process: with the key that the caller has, and the agent tells of the file."""
    content, seen = changed(warm_home)
    compiled(warm_home).write_bytes(signed(content, compiled_key()))
    with running(command(), environment(warm_home)) as node:
        assert node.boot().hello.version == "compiled"
        wait_until(seen.exists, what="NVML's child")


@pytest.mark.parametrize("head", ["sha256", "another key", "of another bundle", "none"])
def test_what_was_made_without_the_key_does_not_run(head: str, warm_home: Path) -> None:
    """Whoever gets to write in the cache cannot make the agent run other code than the caller's."""
    content, seen = changed(warm_home)
    made = {
        "sha256": hashlib.sha256(content).hexdigest().encode() + b"\n" + content,
        "another key": signed(content, "0" * 64),
        "of another bundle": signed(content, compiled_key(), "0" * 64),
        "none": b"\n" + content,
    }[head]
    compiled(warm_home).write_bytes(made)
    for argv, boots in ((installed("--text"), False), (command(), True)):
        with running(argv, environment(warm_home)) as node:
            hello = node.boot() if boots else node.next("hello")
            assert hello.hello.version == __version__
            check_child(node)
    assert not seen.exists()
    assert compiled(warm_home).read_bytes() != made  # it was made anew


def test_what_changes_after_the_start_is_not_run_either(warm_home: Path) -> None:
    """NVML's child starts again and again, for weeks."""
    content, seen = changed(warm_home)
    with running(command(), environment(warm_home)) as node:
        node.boot()
        check_child(node)
        compiled(warm_home).write_bytes(signed(content, compiled_key()))
        (compiled(warm_home).parent / "bundle.zip").write_bytes(content)
        for child in psutil.Process(node.process.pid).children(recursive=True):
            child.kill()
        node.send(Request("request", id=7, op="kernel_lines"))
        wait_until(lambda: psutil.Process(node.process.pid).children(), what="NVML's child again")
        check_child(node, tries=60)
        node.close_stdin()
        node.wait()
    assert not seen.exists()


def test_without_a_key_nothing_compiled_is_kept_or_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_STATE_DIR", "/proc/none")
    for function in (compiled_key, opening):
        function.cache_clear()
    try:
        for _ in range(2):
            start_once(home)
            assert list((home / ".cache/mltop" / SHA256).glob("compiled-*")) == []
    finally:
        for function in (compiled_key, opening):
            function.cache_clear()


@pytest.mark.parametrize(
    "damage", ["cut off", "zeroed but for the hash", "changed", "a folder", "a pipe", "a link", "endless"]
)
def test_a_damaged_one_is_made_again(damage: str, warm_home: Path) -> None:
    home = warm_home
    path = compiled(home)
    whole = path.read_bytes()
    if damage == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "zeroed but for the hash":
        path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    elif damage == "changed":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    else:
        path.unlink()
        if damage == "a folder":
            path.mkdir()
        elif damage == "a pipe":
            os.mkfifo(path)
        elif damage == "a link":
            (home / "elsewhere").write_bytes(whole)
            path.symlink_to(home / "elsewhere")
        else:
            path.symlink_to("/dev/zero")
    assert start_once(home).cached
    assert path.read_bytes() == signed(path.read_bytes()[HEADER_BYTES:], compiled_key())
    assert [name for name in os.listdir(path.parent) if ".tmp" in name] == []
    assert start_once(home).cached


def test_by_pdsh_it_is_not_needed(warm_home: Path) -> None:
    """The key would stand in everybody's list of processes."""
    home = warm_home
    for damage in (None, b"", bytes(900_000)):
        if damage is not None:
            compiled(home).write_bytes(damage)
        with running(installed("--text"), environment(home, LC_ALL="C")) as node:
            assert node.next("hello").node == "there"
            check_child(node)


# Into a user namespace where the groups may not be changed.
OF_USER = ["--user", "--preserve-credentials"] if os.geteuid() else []


@pytest.mark.parametrize("room", ["400k", "1300k", "2200k", "12m"])
def test_a_nearly_full_home(room: str, home: Path) -> None:
    """Every start works, whether or not there is room for all; what does not fit goes to the next folder."""
    small = home / "small"
    small.mkdir()
    # One mount for all starts, held by a process that waits.
    with running(in_mounts(f"mount -t tmpfs -o size={room} none {small}", ["cat"])) as keeper:
        keeper.send(b"x\n")
        assert keeper.process.stdout.read(2) == b"x\n"
        inside = ["nsenter", "--target", str(keeper.process.pid), "--mount", *OF_USER]
        env = {"XDG_CACHE_HOME": str(small), "XDG_RUNTIME_DIR": str(home)}
        booted = [start_once(home, [*inside, *command()], **env) for _ in range(3)]
        held = Path(f"/proc/{keeper.process.pid}/root{small}/mltop")
        assert booted[1].cached == booted[2].cached == (held / SHA256).exists()
        assert [path for path in held.rglob("*") if ".tmp" in path.name] == []
        assert [path.name[:9] for path in held.rglob("compiled-*")] == (["compiled-"] if room == "12m" else [])
