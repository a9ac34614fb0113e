"""What mltop remembers lies in a folder of the user's own; whatever stands there otherwise is one clear line."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mltop.probes.model.probe import PastResult
from mltop.tui.state import BadState, NoHome, NotOurs, lists, probe_history, state_file
from mltop.tui.state.lists import Lemon, change_lemons, known_lemons, read_lemons
from mltop.tui.state.probe_history import HistoryFile
from tests.documents import ROOT
from tests.others import AS_NOBODY_KNOWN, ordinary, somebody_elses, without_home

PAST = PastResult("GPU-a", "matmul bf16", 700.0, 1.0)


def write_lemon() -> None:
    change_lemons(lambda known: known.update({"GPU-1": Lemon("GPU-1")}))


READ: dict[str, Callable[[], object]] = {
    lists.LEMONS: lambda: read_lemons(),
    lists.KERNEL_LINES: lambda: lists.read_known(),
    probe_history.FILE: lambda: probe_history.read_history().results,
}
WRITE: dict[str, Callable[[], object]] = {
    lists.LEMONS: write_lemon,
    lists.KERNEL_LINES: lambda: lists.learn(["a"], 1.0, {}),
    probe_history.FILE: lambda: probe_history.remember([PAST]),
}
USES = [*READ.items(), *WRITE.items()]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("MLTOP_STATE_DIR", str(folder))
    return folder


def refused(use: Callable[[], object], kind: type[BadState] = BadState) -> str:
    with pytest.raises(kind) as problem:
        use()
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_it_is_made_closed_and_what_is_read_does_not_make_it(state: Path) -> None:
    for read in READ.values():
        assert not read()
    assert not state.exists()
    for write in WRITE.values():
        write()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()} == {0o600}
    assert all(read() for read in READ.values())


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_its_modes_do_not_depend_on_the_umask(state: Path, umask: int) -> None:
    code = f"from {__name__} import WRITE, READ\nfor use in [*WRITE.values(), *READ.values()]: use()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    env["MLTOP_STATE_DIR"] = str(state / "a" / "b")
    root = ROOT
    argv = ordinary([sys.executable, "-c", code])
    done = subprocess.run(argv, umask=umask, env=env, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (state, *state.rglob("*"))}
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes} and len(modes) > 6


@pytest.mark.parametrize(("name", "use"), USES)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "socket", "folder", "device", "hard link"])
def test_a_file_of_it_is_a_regular_file_with_one_name(
    state: Path, name: str, use: Callable[[], object], kind: str
) -> None:
    state.mkdir(mode=0o700)
    path, other = state / name, state.parent / "other"
    other.write_text("{}")
    if kind in ("link", "dangling", "device"):
        path.symlink_to({"link": other, "dangling": state / "nowhere", "device": Path("/dev/zero")}[kind])
    elif kind == "hard link":
        path.hardlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    else:
        path.mkdir()
    said = refused(use)
    assert said.startswith(f"{path}: is a ") or f"{path}: has 2 names" in said
    assert other.read_text() == "{}"


@pytest.mark.parametrize(("name", "use"), USES)
def test_it_is_no_link(state: Path, name: str, use: Callable[[], object]) -> None:
    (state.parent / "elsewhere").mkdir(mode=0o700)
    state.symlink_to(state.parent / "elsewhere")
    assert refused(use) == f"{state}: is a symbolic link, not a directory"
    assert list((state.parent / "elsewhere").iterdir()) == [] and name


@pytest.mark.parametrize(("name", "use"), USES)
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o722])
def test_nobody_else_may_write_to_it(state: Path, name: str, use: Callable[[], object], mode: int) -> None:
    state.mkdir()
    (state / name).write_text("{}")
    state.chmod(mode)
    assert refused(use, NotOurs).startswith(f"{state}: others may write to it: chmod 700 {state}")


@pytest.mark.parametrize(("name", "use"), USES)
def test_it_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Callable[[], object]) -> None:
    folder = somebody_elses(tmp_path)
    monkeypatch.setenv("MLTOP_STATE_DIR", str(folder))
    assert refused(use, NotOurs).startswith(f"{folder}: belongs to ") and name


@pytest.mark.skipif(os.geteuid() != 0, reason="a home that root may write to, and that is another user's, needs root")
@pytest.mark.parametrize(("name", "use"), USES)
def test_root_neither_reads_nor_writes_in_the_home_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Callable[[], object]
) -> None:
    """`sudo -E`, or `su` without `-`. Also where the user has laid a folder of root's into it."""
    home = somebody_elses(tmp_path)
    (home / ".local/state/mltop").mkdir(parents=True, mode=0o700)
    monkeypatch.delenv("MLTOP_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    said = refused(use, NotOurs)
    assert said == f"{home}: belongs to uid 12345, and this is root (sudo -H, or MLTOP_STATE_DIR)" and name
    assert list((home / ".local/state/mltop").iterdir()) == []


@pytest.mark.parametrize(("name", "use"), USES)
def test_without_a_home_there_is_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Callable[[], object]
) -> None:
    code = (
        "import sys; from tests.system.screen.test_state_files import READ, WRITE\nfrom mltop.tui.state import NoHome\n"
        f"try: {'READ' if use is READ[name] else 'WRITE'}[{name!r}]()\nexcept NoHome as problem: print(problem)"
    )
    env = {**without_home(), "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    argv = [*AS_NOBODY_KNOWN, sys.executable, "-c", code]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "there is no home directory to remember anything in (set MLTOP_STATE_DIR)\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_stands_for_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLTOP_STATE_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "relative/to/whatever")
    with contextlib.suppress(NoHome):
        assert state_file("x").is_absolute()
    monkeypatch.setenv("MLTOP_STATE_DIR", "chosen")
    assert state_file("x") == Path.cwd() / "chosen" / "x"


def test_a_run_goes_on_without_it_and_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_STATE_DIR", str(somebody_elses(tmp_path)))
    memory = HistoryFile()
    assert list(memory.past()) == []
    memory.keep([PAST])
    (problem,) = memory.problems
    assert problem.startswith("earlier results are not compared, and the results are not kept: ")


# Content.


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[" * 100_000,
        b'{"lemons": ' * 100_000,
        b'{"lemons": [{"gpu": 1}]}',
        b'{"lemons": [{"gpu": "a", "added_at": "today"}]}',
        b'{"lemons": [{"gpu": "a", "added_at": NaN}]}',
        b'{"lemons": [{"gpu": "a", "added_at": ' + b"9" * 10_000 + b"}]}",
        b'{"lemons": {"a": {}}}',
        b"\xff\xfe{\x00",
        b'{"lemons": [{"gpu": "\xe9"}]}',
        b"null",
    ],
)
def test_a_list_that_is_none_is_one_line(state: Path, text: bytes) -> None:
    state.mkdir(mode=0o700)
    (state / lists.LEMONS).write_bytes(text)
    for use in (READ[lists.LEMONS], WRITE[lists.LEMONS]):
        assert refused(use) == f"{state / lists.LEMONS}: is not a lemon list (move it away to begin a new one)"
    assert (state / lists.LEMONS).read_bytes() == text


@pytest.mark.parametrize("name", READ)
def test_a_file_that_is_too_large_is_not_read(state: Path, name: str) -> None:
    state.mkdir(mode=0o700)
    with (state / name).open("wb") as file:
        file.truncate(1 << 40)
    assert refused(READ[name]).startswith(f"{state / name}: is larger than ")


def test_a_day_that_is_none_is_left_out(state: Path) -> None:
    state.mkdir(mode=0o700)
    entries = [{"gpu": f"GPU-{at}", "note": "fans", "added_at": at, "later": 1} for at in (1e300, -1e300, 0)]
    (state / lists.LEMONS).write_text(json.dumps({"lemons": entries}))
    assert set(known_lemons().values()) == {"fans"}


def test_many_who_make_the_folder_at_once_all_have_it(tmp_path: Path) -> None:
    """All wait at a pipe for the same moment."""
    code = (
        "import sys; from pathlib import Path; from mltop.probes.system.files import ensure_own\n"
        "for number in range(20):\n"
        "    print(flush=True); sys.stdin.readline()\n"
        "    ensure_own(Path(sys.argv[1]) / str(number) / 'a' / 'b').write(f'{sys.argv[2]}', b'x')"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), name],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abcd"
    ]
    for _ in range(20):
        for maker in makers:
            assert maker.stdout is not None
            assert maker.stdout.readline()
        for maker in makers:
            assert maker.stdin is not None
            maker.stdin.write("\n")
            maker.stdin.flush()
    assert [maker.wait(60) for maker in makers] == [0] * 4
    for maker in makers:
        maker.communicate()
    for number in range(20):
        assert sorted(path.name for path in (tmp_path / str(number) / "a/b").iterdir()) == list("abcd")


def test_two_who_add_at_once_lose_nothing(state: Path) -> None:
    code = (
        "import sys; from mltop.tui.state.lists import *\n"
        "for number in range(20):\n"
        "    name = f'GPU-{sys.argv[1]}-{number}'\n"
        "    change_lemons(lambda known: known.update({name: Lemon(name)}))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    writers = [subprocess.Popen([sys.executable, "-c", code, name], env=env) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(read_lemons()) == 60
