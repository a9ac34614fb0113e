"""What root runs and takes from its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.collect.stacks import find_py_spy, why_no_py_spy
from mltop.probes.system import as_root
from tests.strangers import STRANGER, give, needs_root, script

pytestmark = needs_root


def environment(tmp_path: Path, script: str) -> Path:
    """A virtual environment around this interpreter, with a package in it."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(os.path.realpath(sys.executable))
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n{script}")
    package = folder / f"lib/python3.{sys.version_info.minor}/site-packages/torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return environment(tmp_path, "")


def test_an_environment_of_roots_own(venv: Path) -> None:
    assert as_root.why_not_environment(f"{venv}/bin/python") == ""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "bin",
        "bin/python",
        "pyvenv.cfg",
        "lib",
        "lib/python",
        "lib/python/site-packages",
    ],
)
@pytest.mark.parametrize("how", ["owner", "everybody", "group"])
def test_any_part_of_it_in_others_hands(venv: Path, name: str, how: str) -> None:
    path = venv / name.replace("lib/python", f"lib/python3.{sys.version_info.minor}")
    if how == "owner":
        os.chown(path, STRANGER, -1, follow_symlinks=False)
        who = f"belongs to uid {STRANGER}"
    elif path.is_symlink():
        return  # its modes mean nothing
    else:
        os.chown(path, -1, STRANGER if how == "group" else -1)
        path.chmod(path.stat().st_mode | (0o020 if how == "group" else 0o002))
        who = "can be written by " + (f"group {STRANGER}" if how == "group" else "everybody")
    assert (
        as_root.why_not_environment(f"{venv}/bin/python") == f"root does not run what others can change: {path} {who}"
    )


@pytest.mark.parametrize(
    "name",
    [".lock", "bin/activate", "share/man/man1/x.1", "include/x.h", "lib/notes"],
)
def test_what_no_python_loads_may_be_anybodys(venv: Path, name: str) -> None:
    path = venv / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o666)
    if "/" in name and not name.startswith(("bin", "lib")):
        give(path.parent)
    assert as_root.why_not_environment(f"{venv}/bin/python") == ""


@pytest.mark.parametrize(
    "name",
    ["lib/libpython3.11.so.1.0", "lib64/libssl.so.3", "bin/pyvenv.cfg", "bin/pybuilddir.txt", "lib/python311.zip"],
)
def test_what_an_interpreter_loads_beside_its_modules(venv: Path, name: str) -> None:
    path = venv / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    path.chmod(0o666)
    why = as_root.why_not_environment(f"{venv}/bin/python")
    assert why == f"root does not run what others can change: {path} can be written by everybody"


ROOT_ALONE = "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:/usr/sbin/nologin\n"


@pytest.mark.parametrize(
    ("users", "prepare", "refused"),
    [
        (ROOT_ALONE, "", False),
        (ROOT_ALONE + "ada:x:1000:1000::/home/ada:/bin/bash\n", "", True),
        (ROOT_ALONE + "ada:x:900:900::/home/ada:\n", "", True),  # no shell named is /bin/sh
        (ROOT_ALONE, "echo 'passwd: files sss' >{folder}/nss; mount --bind {folder}/nss /etc/nsswitch.conf", True),
        (ROOT_ALONE, f"setpriv --reuid {STRANGER} --clear-groups sleep 60 &", True),
        (ROOT_ALONE, "mount -t tmpfs none {folder}/venv; cp -a {folder}/copy/. {folder}/venv", True),
    ],
)
def test_where_root_is_the_only_user_nobody_else_has_written(
    users: str, prepare: str, refused: bool, venv: Path, tmp_path: Path
) -> None:
    """In namespaces with other accounts, without this machine's processes."""
    packages = next(venv.glob("lib/python3*/site-packages"))
    packages.chmod(0o777)
    subprocess.run(["cp", "-a", venv, tmp_path / "copy"], check=True)
    (tmp_path / "passwd").write_text(users)
    code = "import sys; from mltop.probes.system.as_root import *; print(why_not_environment(sys.argv[1]))"
    shell = f'mount --bind {tmp_path}/passwd /etc/passwd; {prepare.format(folder=tmp_path)}\nexec "$@"'
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*namespaces, "sh", "-ec", shell, "sh", sys.executable, "-c", code, f"{venv}/bin/python"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(as_root.__file__).parents[3]), "PATH": os.environ["PATH"]},
    )
    why = f"root does not run what others can change: {packages} can be written by everybody"
    assert done.stdout.strip() == (why if refused else "")


def test_a_folder_where_everybody_makes_entries(venv: Path) -> None:
    packages = venv / f"lib/python3.{sys.version_info.minor}/site-packages"
    packages.chmod(0o1777)
    why = as_root.why_not_environment(f"{venv}/bin/python")
    assert why == f"root does not run what others can change: {packages} can be written by everybody"


def test_where_it_says_that_its_modules_are(venv: Path, tmp_path: Path) -> None:
    """Torch behind a link out of the environment, which a stranger can change."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "torch").mkdir(parents=True)
    (next(venv.glob("lib/python3*/site-packages")) / "linked").symlink_to(elsewhere)
    torch = f"{next(venv.glob('lib/python3*/site-packages'))}/linked/torch"
    assert as_root.why_not_environment(f"{venv}/bin/python", told=["", torch]) == ""
    give(elsewhere)
    why = as_root.why_not_environment(f"{venv}/bin/python", told=["", torch])
    assert why == f"root does not run what others can change: {elsewhere} belongs to uid {STRANGER}"


def test_the_folders_above_it(venv: Path) -> None:
    give(venv.parent)
    why = as_root.why_not_environment(f"{venv}/bin/python")
    assert why == f"root does not run what others can change: {venv.parent} belongs to uid {STRANGER}"
    assert why == as_root.why_not_python(f"{venv}/bin/python")


def test_what_it_was_made_from(tmp_path: Path) -> None:
    """A copied interpreter finds the standard library by pyvenv.cfg."""
    home = tmp_path / "python"
    (home / "lib/python3.11").mkdir(parents=True)
    (home / "bin").mkdir()
    folder = environment(tmp_path, f"home = {home}/bin\n")
    assert as_root.why_not_environment(f"{folder}/bin/python") == ""
    give(home / "lib/python3.11")
    assert str(home / "lib/python3.11") in as_root.why_not_environment(f"{folder}/bin/python")


def test_where_a_pth_file_leads(venv: Path, tmp_path: Path) -> None:
    """A project that a stranger works on, installed as editable: sitecustomize would be looked for there, too."""
    project = tmp_path / "project"
    project.mkdir()
    packages = next(venv.glob("lib/python3*/site-packages"))
    (packages / "project.pth").write_text(f"# mine\nimport sys\nnot there\n{project}\n")
    assert as_root.why_not_environment(f"{venv}/bin/python") == ""
    give(project)
    why = as_root.why_not_environment(f"{venv}/bin/python")
    assert why == f"root does not run what others can change: {project} belongs to uid {STRANGER}"


def test_the_interpreter_of_a_script(tmp_path: Path) -> None:
    theirs = give(script(tmp_path / "theirs/python", "#!/bin/sh\n").parent) / "python"
    wrapper = script(tmp_path / "wrapper", f"#!{theirs} -I\n")
    assert as_root.why_not_python(str(wrapper)).endswith(f"{theirs.parent} belongs to uid {STRANGER}")
    os.mkfifo(tmp_path / "fifo")
    assert as_root.why_not_python(str(tmp_path / "fifo")) == ""  # and nobody waits for its writer
    assert as_root.why_not_python("no-such-python") == ""


def test_no_time_is_no_leave(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_root, "LOOK_S", 0)
    assert "in time" in as_root.why_not_environment(f"{venv}/bin/python")


def test_the_interpreter_that_runs_us_may_go_on(venv: Path, tmp_path: Path) -> None:
    """Whoever can change it has us already: `sudo .venv/bin/mltop`. That is no leave for others of theirs."""
    give(venv)
    other = give(environment(tmp_path / "other", ""))
    code = "import sys; from mltop.probes.system.as_root import *; "
    code += "print([why_not_environment(path) for path in sys.argv[1:]])"
    command = [f"{venv}/bin/python", "-c", code, f"{venv}/bin/python", f"{other}/bin/python"]
    env = {"PYTHONPATH": str(Path(as_root.__file__).parents[3])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    refused = f"root does not run what others can change: {other} belongs to uid {STRANGER}"
    assert done.stdout.strip() == str(["", refused])


# Programs.


def test_a_program_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = give(script(tmp_path / "theirs/tool", "#!/bin/sh\n").parent)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/linked").symlink_to(theirs / "tool")
    script(tmp_path / "ours/tool", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{theirs}:{tmp_path}/ours")
    assert as_root.find_program("tool") is None
    assert as_root.find_program("linked") is None
    monkeypatch.setenv("PATH", f"{tmp_path}/ours")
    assert as_root.find_program("tool") == f"{tmp_path}/ours/tool"


def test_py_spy_of_somebody_else_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = give(script(tmp_path / "theirs/py-spy", "#!/bin/sh\n").parent) / "py-spy"
    monkeypatch.setenv("MLTOP_PY_SPY", str(theirs))
    assert find_py_spy() is None
    assert (
        why_no_py_spy()
        == f"{theirs}: root does not run what others can change: {theirs.parent} belongs to uid {STRANGER}"
    )
    cache = tmp_path / "cache"
    script(cache / f"py-spy-{'0' * 64}", "#!/bin/sh\n")
    monkeypatch.delenv("MLTOP_PY_SPY")
    monkeypatch.setenv("MLTOP_CACHE", str(give(cache)))
    monkeypatch.setenv("PATH", str(theirs.parent))
    assert find_py_spy() not in (str(theirs), str(cache / f"py-spy-{'0' * 64}"))


# The environment.


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    return give(folder)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("PATH", "/usr/bin:{}/bin:/bin", "/usr/bin:/bin"),
        ("PATH", ".:/usr/bin::bin:/bin", "/usr/bin:/bin"),
        ("PATH", "{}", None),
        ("LD_LIBRARY_PATH", "{}:/usr/lib", "/usr/lib"),
        ("LD_PRELOAD", "/usr/lib/a.so {}/b.so libc.so.6", "/usr/lib/a.so:libc.so.6"),
        ("PYTHONPATH", "{}/src", None),
        ("VIRTUAL_ENV", "{}/venv", None),
        ("CONDA_PREFIX", "{}/conda", None),
        ("NCCL_NET_PLUGIN", "{}/libnccl-net.so", None),
        ("NCCL_TUNER_PLUGIN", "a,{}/tuner.so", None),
        ("NCCL_CONF_FILE", "{}/nccl.conf", None),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.%h.%p", None),  # anybody can have put a link there
        ("CUDA_CACHE_PATH", "{}", None),
        ("BASH_ENV", "{}/rc", None),
        ("XDG_CACHE_HOME", "{}/.cache", None),
        ("MLTOP_PROBE_PYTHON", "{}/bin/python", "{}/bin/python"),  # refused when it would be run
        ("MLTOP_PROBE_MODULES", '{{"matmul": "{}/x.py"}}', None),
        ("MLTOP_SYSROOT", "{}", None),
        ("TMPDIR", "{}", None),
        ("TMPDIR", "/tmp", "/tmp"),
        ("PATH", "/usr/bin:/bin", "/usr/bin:/bin"),
        ("LD_LIBRARY_PATH", "/usr/lib", "/usr/lib"),
        ("NCCL_NET_PLUGIN", "aws-ofi", "aws-ofi"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "^docker,lo"),
        ("LANG", "C.UTF-8", "C.UTF-8"),
        ("PWD", "{}", "{}"),
        ("SSH_AUTH_SOCK", "{}/agent", "{}/agent"),
        ("HTTPS_PROXY", "http://proxy.example:3128/", "http://proxy.example:3128/"),
    ],
)
def test_variables(theirs: Path, name: str, value: str, kept: str | None) -> None:
    value = value.format(theirs)
    found, left_out = as_root.cleaned({name: value})
    assert found.get(name) == (kept.format(theirs) if kept is not None else None)
    assert bool(left_out) == (found.get(name) != value)
    if left_out and str(theirs) in value:
        assert as_root.in_words(left_out) == f"{name} ({theirs} belongs to uid {STRANGER})"


def test_a_relative_plugin_begins_at_the_root(theirs: Path) -> None:
    """Where probes run: dlopen(3) takes it for a path because of its slash."""
    found, left_out = as_root.cleaned({"NCCL_NET_PLUGIN": f"{str(theirs)[1:]}/x.so"})
    assert found == {}
    assert left_out == {"NCCL_NET_PLUGIN": f"{theirs} belongs to uid {STRANGER}"}


def test_a_foreign_home_becomes_roots_own(theirs: Path) -> None:
    found, left_out = as_root.cleaned({"HOME": str(theirs)})
    assert found == {"HOME": os.path.expanduser("~root")}
    assert list(left_out) == ["HOME"]


def test_a_home_that_does_not_answer_is_left_out() -> None:
    """A file server that is gone must not hold up the agent's start."""
    code = (
        "from mltop.probes.system import as_root; "
        "print(sorted(as_root.cleaned({'HOME': '/mnt/x', 'PATH': '/usr/bin'})[1]))"
    )
    fuse = "exec 9<>/dev/fuse; mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 none /mnt"
    exits = f"import os\n{code}\nimport sys; sys.stdout.flush(); os._exit(0)"
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            f'{fuse}; exec "$@"',
            "sh",
            sys.executable,
            "-c",
            exits,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "['HOME']"


def test_others_than_root_take_what_they_like(theirs: Path) -> None:
    code = (
        "import os, sys; os.setuid(int(sys.argv[1])); from mltop.probes.system import as_root;"
        "environ = {'PATH': '.:/tmp', 'LD_PRELOAD': sys.argv[2] + '/x.so', 'HOME': '/nowhere'};"
        "assert as_root.cleaned(environ) == (environ, {}); assert not as_root.why_not(sys.argv[2]);"
        "assert not as_root.why_not_environment(sys.argv[2] + '/python')"
    )
    package = Path(as_root.__file__).parents[3]
    done = subprocess.run(
        [
            "/usr/bin/env",
            f"PYTHONPATH={package}",
            sys.executable,
            "-c",
            f"from mltop.probes.system import as_root; {code}",
            "4711",
            str(theirs),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
