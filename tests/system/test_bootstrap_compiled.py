"""The bundle's compiled modules: kept once, used when whole, and never a reason for not starting."""

from __future__ import annotations

import hashlib
import marshal
import os
from pathlib import Path

import pytest

from mltop.probes.reach.bundle import file_for
from tests.bootstrapping import Bootstrapped, command, environment, in_mounts, running, start_once
from tests.waiting import wait_until

SHA256 = file_for("bundle", os.uname().machine).args["sha256"]
HEADER_BYTES = 64 + 1  # the hash in hex, a newline


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def compiled(home: Path) -> Path:
    (found,) = (home / ".cache/mltop" / SHA256).glob("compiled-*")
    return found


def bytecode(folder: Path) -> list[Path]:
    return list(folder.rglob("*.pyc"))


def check_child(node: Bootstrapped) -> None:
    """NVML's reader runs and answers, whatever it finds."""
    sample = node.next("sample").sample
    assert "nvml" not in [gap.what for gap in sample.gaps if "process" in gap.why], sample.gaps
    assert sample.host.memory_total_bytes > 0


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
    assert bytecode(home) == []


def test_it_is_what_runs(warm_home: Path) -> None:
    """In the agent, in NVML's child process, and in what the script starts."""
    home = warm_home
    bundle = home / ".cache/mltop" / SHA256
    child = "mltop/probes/collect/nvml/child.py"
    codes = marshal.loads(compiled(home).read_bytes()[HEADER_BYTES:])
    codes["mltop/probes/version.py"] = marshal.dumps(compile("__version__ = 'compiled'", "version.py", "exec"))
    seen = f"open({str(home / 'seen')!r}, 'w').close()\n"
    codes[child] = marshal.dumps(compile((bundle / child).read_text() + seen, child, "exec"))
    content = marshal.dumps(codes)
    compiled(home).write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    with running(command(), environment(home)) as node:
        assert node.boot().hello.version == "compiled"
        wait_until((home / "seen").exists, 30, "NVML's child")
    (home / "seen").unlink()
    with running(["sh", str(bundle / "agent"), "--node", "there"], environment(home)) as node:
        assert node.next("hello").hello.version == "compiled"
        wait_until((home / "seen").exists, 30, "NVML's child")


@pytest.mark.parametrize("damage", ["cut off", "zeroed but for the hash", "changed", "a folder"])
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
        path.mkdir()
    assert start_once(home).cached
    if damage != "a folder":
        header, content = path.read_bytes()[:HEADER_BYTES], path.read_bytes()[HEADER_BYTES:]
        assert header == hashlib.sha256(content).hexdigest().encode() + b"\n"
    assert [name for name in os.listdir(path.parent) if ".tmp" in name] == []
    assert start_once(home).cached


def test_damaged_bytecode_of_pythons_own_is_not_looked_at(warm_home: Path) -> None:
    home = warm_home
    compiled(home).unlink()
    for source in (home / ".cache/mltop" / SHA256).rglob("*.py"):
        folder = source.parent / "__pycache__"
        folder.mkdir(exist_ok=True)
        for minor in range(9, 16):
            (folder / f"{source.stem}.cpython-3{minor}.pyc").write_bytes(bytes(500))
    script = home / ".cache/mltop" / SHA256 / "agent"
    for argv in (["sh", str(script), "--node", "there", "--text"], command()):
        with running(argv, environment(home)) as node:
            if argv[1] == "-c":
                node.boot()
            check_child(node)


def test_the_script_uses_it_and_runs_without_it(warm_home: Path) -> None:
    home = warm_home
    argv = ["sh", str(home / ".cache/mltop" / SHA256 / "agent"), "--node", "there", "--text"]
    for damage in (None, b"", bytes(900_000)):
        if damage is not None:
            compiled(home).write_bytes(damage)
        with running(argv, environment(home, LC_ALL="C")) as node:
            assert node.next("hello").node == "there"
            check_child(node)
    assert bytecode(home) == []


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
