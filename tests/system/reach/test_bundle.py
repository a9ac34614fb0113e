"""What travels to a node: the same bytes each time, nothing that is not needed there, other machines' wheels."""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.agent import bootstrap
from mltop.probes.agent.bootstrap import cache, stage1, zipped
from mltop.probes.agent.protocol import MARK, MAX_FRAME_BYTES, TEXT_MARK, encode
from mltop.probes.reach import bundle
from mltop.probes.reach.bundle import (
    file_for,
    loader,
    opening,
    pack,
    py_spy_sha256,
    source,
    table,
    wheels,
    without_docstrings,
)
from tests.others import NOBODY_KNOWN

HERE = os.uname().machine
OTHER = "aarch64" if HERE != "aarch64" else "x86_64"
E_MACHINE = {"x86_64": 62, "aarch64": 183}


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No wheels of the user's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    forget()
    return tmp_path


def forget() -> None:
    for function in (bundle.bundle, opening, py_spy_sha256):
        function.cache_clear()


def unpacked(name: str, machine: str) -> bytes:
    args = file_for(name, machine).args
    data = zlib.decompress(base64.b64decode(args["data"]), wbits=31)
    assert hashlib.sha256(data).hexdigest() == args["sha256"]
    return data


def names(machine: str) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(unpacked("bundle", machine))) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def test_what_is_in_it() -> None:
    found = names(HERE)
    assert {"mltop/__init__.py", "mltop/probes/__init__.py", "mltop/probes/agent/__main__.py"} < set(found)
    assert {"pynvml.py", "psutil/__init__.py", "psutil/_pslinux.py"} < set(found)
    assert [name for name in found if name.endswith(".so")]
    assert not [
        name for name in found if re.search(r"demo|reach|judge/hang|bootstrap|tests|_pswindows|__pycache__", name)
    ]
    for folder in {name.rpartition("/")[0] for name in found if name.startswith("mltop/")}:
        assert f"{folder}/__init__.py" in found


def test_another_process_makes_the_same_bytes() -> None:
    code = f"from mltop.probes.reach.bundle import file_for; print(file_for('bundle', {HERE!r}).args['sha256'])"
    root = str(Path(wheels.__file__).parents[4])
    env = {**os.environ, "PYTHONPATH": root, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == bundle.bundle(HERE).sha256


def test_the_order_of_files_does_not_matter() -> None:
    assert pack({"b": b"2", "a": b"1"}) == pack({"a": b"1", "b": b"2"})
    assert pack({"a": b"1"}).sha256 != pack({"a": b"2"}).sha256


def test_sizes() -> None:
    assert len(base64.b64decode(file_for("bundle", OTHER).args["data"])) <= 660_000  # without psutil
    assert len(base64.b64decode(file_for("bundle", HERE).args["data"])) <= 770_000
    assert len(opening()) <= 10_000
    assert len(encode(file_for("py-spy", HERE))) < MAX_FRAME_BYTES


def test_a_machine_without_wheels_gets_what_runs_everywhere() -> None:
    found = names(OTHER)
    assert "pynvml.py" in found
    assert not [name for name in found if name.startswith("psutil/")]
    assert file_for("bundle", "riscv64").args["sha256"] == file_for("bundle", OTHER).args["sha256"]
    assert table()[""] == bundle.bundle("").sha256


def test_py_spy_is_this_machines_program() -> None:
    program = unpacked("py-spy", HERE)
    assert wheels.elf_machine(program) == HERE
    assert py_spy_sha256(HERE) == hashlib.sha256(program).hexdigest()


def test_no_py_spy_for_another_machine_says_how_to_get_one(data_home: Path) -> None:
    assert py_spy_sha256(OTHER) == ""
    request = file_for("py-spy", OTHER)
    assert (request.kind, request.op) == ("file", "py-spy")
    assert request.args == {
        "error": f"no py-spy for {OTHER} at hand to send there",
        "fix": f"python3 -m pip download --platform manylinux2014_{OTHER} --only-binary=:all: --no-deps psutil py-spy "
        f"-d {data_home}/mltop/wheels",
    }


def test_a_script_named_py_spy_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "py-spy"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("MLTOP_PY_SPY", str(script))
    assert wheels.elf_machine(unpacked("py-spy", HERE)) == HERE
    assert wheels.elf_machine(script.read_bytes()) == ""


def lay_wheel(data_home: Path, name: str, files: dict[str, bytes]) -> None:
    folder = data_home / "mltop/wheels"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for member, data in files.items():
            wheel.writestr(member, data)
    forget()


def elf(machine: str, text: bytes) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(11) + E_MACHINE[machine].to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "tag",
    [
        f"manylinux2014_{OTHER}.manylinux_2_17_{OTHER}.manylinux_2_28_{OTHER}",
        f"manylinux_2_17_{OTHER}.manylinux2014_{OTHER}",
        f"manylinux_2_28_{OTHER}",
    ],
)
def test_wheels_for_another_machine(tag: str, data_home: Path) -> None:
    without = file_for("bundle", OTHER).args["sha256"]
    lay_wheel(
        data_home,
        f"psutil-7.2.2-cp36-abi3-{tag}.whl",
        {
            "psutil/__init__.py": b"x = 1",
            "psutil/_psutil_linux.abi3.so": elf(OTHER, b"psutil"),
            "psutil/_pswindows.py": b"",
            "psutil-7.2.2.dist-info/RECORD": b"",
        },
    )
    lay_wheel(
        data_home,
        f"py_spy-0.4.1-py2.py3-none-{tag}.whl",
        {"py_spy-0.4.1.data/scripts/py-spy": elf(OTHER, b"py-spy"), "py_spy-0.4.1.dist-info/RECORD": b""},
    )
    assert file_for("bundle", OTHER).args["sha256"] != without
    assert [name for name in names(OTHER) if name.startswith("psutil")] == [
        "psutil/__init__.py",
        "psutil/_psutil_linux.abi3.so",
    ]
    assert table()[OTHER] == file_for("bundle", OTHER).args["sha256"]
    assert file_for("bundle", "riscv64").args["sha256"] == without
    assert unpacked("py-spy", OTHER) == elf(OTHER, b"py-spy")
    assert py_spy_sha256(OTHER) == hashlib.sha256(elf(OTHER, b"py-spy")).hexdigest()
    assert table()[HERE] == file_for("bundle", HERE).args["sha256"]


@pytest.mark.parametrize(
    "name",
    [
        f"psutil-7.2.2-cp36-abi3-musllinux_1_2_{OTHER}.whl",  # another C library
        f"psutil-7.2.2-cp36-abi3-macosx_11_0_{OTHER}.whl",
        f"psutil-5.9.0-cp310-cp310-manylinux2014_{OTHER}.whl",  # for one version of Python only
    ],
)
def test_wheels_that_do_not_fit_are_left_alone(name: str, data_home: Path) -> None:
    lay_wheel(data_home, name, {"psutil/__init__.py": b""})
    assert OTHER not in table()
    assert file_for("bundle", OTHER).args["sha256"] == bundle.bundle("").sha256


def test_the_opening_is_a_loader_and_exactly_what_it_reads() -> None:
    loader, _, packed = opening().partition(b"\0")
    assert f"while len(text) < {len(packed)}:".encode() in loader
    text = zlib.decompress(packed).decode()
    assert text.startswith(source())
    assert json.dumps(table()) in text
    assert repr(bundle.compiled_key()) in text


def test_stage_1_is_python_3_6() -> None:
    ast.parse(source(), feature_version=(3, 6))
    imported = set(re.findall(r"^(?:from|import) ([a-z0-9]+)", source(), re.MULTILINE))
    assert imported <= set(sys.stdlib_module_names)
    assert {path.name for path in Path(bootstrap.__file__).parent.glob("*.py")} == {*bootstrap.PARTS, "__init__.py"}


def test_what_stands_in_a_command_line_is_python_3_9() -> None:
    assert loader().isascii()
    ast.parse(loader(), feature_version=(3, 9))


def test_a_kernel_that_refuses_files_in_memory(tmp_path: Path) -> None:
    """The agent and its child processes then import from the cache."""
    archive = bundle.bundle(HERE)
    (tmp_path / archive.sha256).mkdir()
    (tmp_path / archive.sha256 / zipped.BUNDLE).write_bytes(archive.content)
    code = (
        "import os\ndef refuse(*_): raise PermissionError(13, 'Permission denied')\nos.memfd_create = refuse\n"
        f"{loader().decode()}import_installed({str(tmp_path)!r}, {archive.sha256!r}, 96)\n"
        "import subprocess; from mltop.probes.system.spawn import python_command; import mltop.probes\n"
        "command = python_command('mltop.probes.version'); command[4] = command[4].replace('main; main()', "
        "'__file__ as f; print(f)')\n"
        "print(mltop.probes.__file__, subprocess.check_output(command, text=True))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    path = f"{tmp_path}/{archive.sha256}/{zipped.BUNDLE}"
    assert [word.startswith(path) for word in done.stdout.split()] == [True, True]


def test_docstrings_stay_at_home() -> None:
    lines = ['"""Mine."""', "", "class A(Exception):", '    """All that it has."""', "", "def b():"]
    lines += ['    """Two', '    lines."""', '    return """kept"""']
    kept = [*lines[2:4], lines[5], lines[8]]
    assert without_docstrings("\n".join([*lines, ""])) == "\n".join([*kept, ""])


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MLTOP_STATE_DIR", str(tmp_path / "state"))
    bundle.compiled_key.cache_clear()
    yield tmp_path / "state"
    bundle.compiled_key.cache_clear()


def test_the_key_of_compiled_modules_is_made_once_and_kept(state: Path) -> None:
    first = bundle.compiled_key()
    assert re.fullmatch(r"[0-9a-f]{64}", first)
    assert os.listdir(state) == ["compiled-key"]
    assert stat.S_IMODE((state / "compiled-key").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    bundle.compiled_key.cache_clear()
    assert bundle.compiled_key() == first


@pytest.mark.parametrize("how", ["readable", "a link", "a pipe", "too short", "no hex", "a folder", "no folder"])
def test_a_key_that_others_may_know_is_replaced(how: str, state: Path, tmp_path: Path) -> None:
    """Where it cannot be, nothing compiled is kept on nodes."""
    state.mkdir(mode=0o700)
    path = state / "compiled-key"
    if how == "a pipe":
        os.mkfifo(path, 0o600)
    elif how == "a folder":
        path.mkdir()
    elif how == "no folder":
        state.rmdir()
        state.write_text("")
    elif how == "a link":
        (tmp_path / "elsewhere").write_text("0" * 64)
        (tmp_path / "elsewhere").chmod(0o600)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text({"too short": "0" * 63, "no hex": "x" * 64}.get(how, "0" * 64))
        path.chmod(0o640 if how == "readable" else 0o600)
    key = bundle.compiled_key()
    if how not in ("readable", "too short", "no hex"):
        assert key == ""
    else:
        assert re.fullmatch(r"[0-9a-f]{64}", key) and key != "0" * 64
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600


def test_stage_1_speaks_the_agents_protocol() -> None:
    assert (stage1.MARK, stage1.TEXT_MARK) == (MARK, TEXT_MARK)
    frame = encode(file_for("py-spy", OTHER))
    assert stage1.decode(frame[:-1])["op"] == "py-spy"
    assert stage1.decode(b"noise") == {}
    with pytest.raises(stage1.Refused, match="a frame arrived damaged: "):
        stage1.decode(frame[:-2])


def test_cache_folders_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    uid = os.geteuid()
    assert [root for _, root in cache.candidates()] == [
        "/home/ada/.cache/mltop",
        "/run/user/7/mltop",
        f"/tmp/mltop-{uid}",
        f"/var/tmp/mltop-{uid}",
        f"/dev/shm/mltop-{uid}",
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification says to ignore it
    assert cache.candidates()[0] == ("/home/ada", "/home/ada/.cache/mltop")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/ada")
    assert cache.candidates()[0] == ("/scratch/ada", "/scratch/ada/mltop")


def test_a_home_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is not there"):
        cache.own_directory(str(tmp_path / "home"), str(tmp_path / "home/.cache/mltop"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a home that root may read, and that is another user's, needs root")
def test_root_sends_no_program_that_another_user_has_laid_into_the_home(data_home: Path) -> None:
    lay_wheel(data_home, "psutil-7.0-cp36-abi3-manylinux2014_aarch64.whl", {"psutil/__init__.py": b""})
    assert wheels.psutil_files("aarch64")
    for path in (data_home, data_home / "mltop", data_home / "mltop/wheels"):
        os.chown(path, NOBODY_KNOWN, NOBODY_KNOWN)
        assert wheels.psutil_files("aarch64") == {}
        os.chown(path, 0, 0)
    (data_home / "mltop/wheels").chmod(0o777)
    assert wheels.psutil_files("aarch64") == {}


@pytest.mark.parametrize("machine", ["x86_64; reboot", "$(reboot)", "a b", "", "x" * 99])
def test_what_a_node_calls_its_machine_is_in_no_command_unless_it_is_one(machine: str) -> None:
    assert wheels.how_to_get(machine) == ""
