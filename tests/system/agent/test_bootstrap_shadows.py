"""Files that do not belong to it, in the agent's cache, beside it and around its start: nothing of them is imported.

Every one of them would leave a trace. The agent does all that it can do: samples, NVML's child, requests, a probe.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.agent.protocol import Request
from mltop.probes.reach.bundle import compiled_key, opening
from tests.bootstrapping import Bootstrapped, bundle_sha256, command, environment, installed, running, start_once
from tests.fakes.probes import modules_variable

SHA256 = bundle_sha256()
Plant = Callable[[Path, str], None]  # into the bundle's folder, this code


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    return tmp_path / "seen"


@pytest.fixture
def evil(seen: Path) -> str:
    return f"open({str(seen)!r}, 'a').write(__name__ + chr(10))\n"


def written(*names: str) -> Plant:
    """Modules of the standard library, of other people, and files that Python runs by itself."""

    def plant(folder: Path, code: str) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            assert not (folder / name).exists()
            (folder / name).write_text(f"import os; {code}" if name.endswith(".pth") else code)

    return plant


ADDED = (
    written("json.py", "os.py", "socket/__init__.py", "ctypes.py", "pwd.py", "grp.py"),
    written("evil.pth", "sitecustomize.py", "usercustomize.py", "__main__.py"),
    written("mltop/__init__.py", "mltop/probes/agent/extra.py", "psutil/__init__.py", "torch.py"),
)


def work(node: Bootstrapped, *, boots: bool) -> None:
    """All that an agent can be asked for."""
    hello = node.boot() if boots else node.next("hello")
    assert hello.kind == "hello", hello.error
    sample = node.later_sample()
    assert sample.host.memory_total_bytes > 0  # psutil
    assert "nvml" not in [gap.what for gap in sample.gaps if "process" in gap.why], sample.gaps
    for number, op in enumerate(("doctor", "kernel_lines", "stacks"), 10):
        node.send(Request("request", id=number, op=op, args={"pids": []}))
        assert node.next("done").id == number
    args: dict[str, Any] = {"key": "k1", "kind": "matmul", "gpus": ["cpu"], "force": True, "python": sys.executable}
    node.send(Request("request", id=20, op="probe", args={**args, "options": {"do": "measure"}}))
    answer = node.next("done", "error")
    assert answer.kind == "done", answer.error


def bare(home: Path, **more: str) -> dict[str, str]:
    """A node without a Python that has mltop, which would be taken where the cache has no agent."""
    return environment(home, PATH="/usr/bin:/bin", **more)


def work_by(way: str, home: Path) -> None:
    words = command() if way == "ssh" else installed("--text")
    env = bare(home, MLTOP_PROBE_MODULES=modules_variable())
    with running(words, env) as node:
        if way == "ssh":
            work(node, boots=True)
        else:  # whose stdin is nobody's: samples only, and other processes for requests
            assert node.next("hello").kind == "hello"
            assert node.later_sample().host.memory_total_bytes > 0
            for op in ("doctor", "kernel_lines"):
                with running(installed("--text", "--op", op, one_shot=True), env) as asked:
                    assert asked.next("done", "error").kind == "done"
                    assert asked.wait() == 0


@pytest.mark.parametrize("way", ["ssh", "pdsh"])
def test_what_was_added_is_not_imported(way: str, warm_home: Path, seen: Path, evil: str) -> None:
    for plant in ADDED:
        plant(warm_home / ".cache/mltop" / SHA256, evil)
    work_by(way, warm_home)
    assert not seen.exists(), seen.read_text()


@pytest.mark.parametrize("way", ["ssh", "pdsh"])
def test_what_lies_beside_and_around_is_not_imported(
    way: str, warm_home: Path, tmp_path: Path, seen: Path, evil: str
) -> None:
    """Beside the bundle, above it, in the home, in the working directory, and where PYTHON* variables lead."""
    around = tmp_path / "around"
    around.mkdir()
    for folder in (warm_home / ".cache/mltop", warm_home / ".cache", warm_home, around):
        written("json.py", "mltop/__init__.py", "psutil.py", "pynvml.py", "sitecustomize.py")(folder, evil)
    site = f"lib/python3.{sys.version_info.minor}/site-packages"
    written("usercustomize.py", "sitecustomize.py", "x.pth", "mltop/__init__.py")(warm_home / ".local" / site, evil)
    (around / "startup.py").write_text(evil)
    variables = {
        "PYTHONPATH": str(around),
        "PYTHONSTARTUP": f"{around}/startup.py",
        "PYTHONUSERBASE": str(warm_home / ".local"),
        "PYTHONINSPECT": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(around),
        "PYTHONWARNINGS": "error",
        "MLTOP_CACHE": str(around),
    }
    words = command() if way == "ssh" else installed("--text")
    with running(["sh", "-c", f'cd {around} && exec "$@"', "sh", *words], bare(warm_home, **variables)) as node:
        assert (node.boot() if way == "ssh" else node.next("hello")).kind == "hello"
        assert node.later_sample().host.memory_total_bytes > 0
    assert not seen.exists(), seen.read_text()


# What is listed, but not what was installed.


def changed(path: Path, code: str) -> None:
    with zipfile.ZipFile(path, "a") as bundle:
        bundle.writestr("mltop/extra.py", code)


def linked(path: Path, code: str) -> None:
    elsewhere = path.with_name("elsewhere.zip")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    changed(elsewhere, code)


def linked_alike(path: Path, _: str) -> None:
    """The same bytes now; later others."""
    elsewhere = path.parents[3] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def piped(path: Path, _: str) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path, _: str) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def huge(path: Path, _: str) -> None:
    os.truncate(path, 1 << 40)


def a_folder(path: Path, code: str) -> None:
    path.unlink()
    path.mkdir()
    (path / "__init__.py").write_text(code)


def bundle_linked(path: Path, code: str) -> None:
    changed(path, code)
    elsewhere = path.parents[3] / "elsewhere"
    path.parent.rename(elsewhere)
    path.parent.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "damage", [changed, linked, linked_alike, piped, endless, huge, a_folder, bundle_linked, Path.write_text]
)
def test_what_was_changed_is_repaired(
    damage: Callable[[Path, str], None], warm_home: Path, seen: Path, evil: str
) -> None:
    folder = warm_home / ".cache/mltop" / SHA256
    before = (folder / "bundle.zip").read_bytes()
    damage(folder / "bundle.zip", evil)
    outside = {path: path.read_bytes() for path in warm_home.rglob("elsewhere*/bundle.zip")}
    # By pdsh nothing can be repaired: it is as if there were no agent.
    with running(installed("--text"), bare(warm_home)) as node:
        assert node.next("error").error == "the agent is not on this node"
        assert node.wait() == 96
    assert not start_once(warm_home).cached
    assert (folder / "bundle.zip").read_bytes() == before
    assert not (folder / "bundle.zip").is_symlink()
    assert not folder.is_symlink()
    # Nothing was written to where a link led.
    assert {path: path.read_bytes() for path in outside} == outside
    assert start_once(warm_home).cached
    assert not seen.exists(), seen.read_text()


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every module comes from its source."""
    monkeypatch.setenv("MLTOP_STATE_DIR", "/proc/none")
    for function in (compiled_key, opening):
        function.cache_clear()
    yield
    for function in (compiled_key, opening):
        function.cache_clear()


def test_what_changes_while_an_agent_runs_is_not_imported(no_key: None, warm_home: Path, seen: Path, evil: str) -> None:
    """Much is loaded when it is first asked for, by an agent that may run for weeks."""
    bundle = warm_home / ".cache/mltop" / SHA256 / "bundle.zip"
    with running(command(), bare(warm_home, MLTOP_PROBE_MODULES=modules_variable())) as node:
        assert node.boot().kind == "hello"
        node.next("sample")
        changed(bundle, evil)
        bundle.write_bytes(bytes(bundle.stat().st_size))
        args = {"key": "k1", "kind": "matmul", "gpus": ["cpu"], "force": True, "python": sys.executable}
        node.send(Request("request", id=1, op="probe", args={**args, "options": {"do": "measure"}}))
        answer = node.next("done", "error")
        assert answer.kind == "done", answer.error
        assert node.next("row").row is not None  # it goes on
    assert not seen.exists(), seen.read_text()
