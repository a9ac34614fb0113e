"""mltop as root on a machine where strangers lay traps: none of their programs runs, and it is said what was passed by.

Every trap leaves a trace when it is started; so far as there is no trace, nobody stepped into it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import strangers
from tests.bootstrapping import bundle_sha256, command, environment, in_mounts, installed, running, start_once
from tests.probing import MLTOP, probe
from tests.strangers import STRANGER, give, needs_root, script, setuid_copy, spy
from tests.waiting import wait_until

# Forced probes take over the environment of a job that runs here: of ours, not of tests beside these.
pytestmark = [needs_root, pytest.mark.jobs]
public = strangers.public
SHA256 = bundle_sha256()
# What mltop, its agents and their shells start by name.
PROGRAMS = (
    *("python3", "python", "py-spy", "dcgmi", "journalctl", "systemctl", "nvidia-smi", "setpriv", "squeue", "srun"),
    *("ssh", "sh", "env", "ls", "id", "readlink", "getent", "uname", "tr"),
)


@pytest.fixture
def trap(public: Path) -> Path:
    """A folder of a stranger's with every program that somebody might look for."""
    for name in PROGRAMS:
        script(public / "trap" / name, f"#!/bin/sh\n/usr/bin/id -u >>{public}/seen\nexit 1\n")
    return give(public / "trap")


@pytest.fixture(autouse=True)
def nobody_fell_for_it(public: Path) -> Iterator[None]:
    yield
    assert not (public / "seen").exists(), "root ran a stranger's program"


def test_a_trap_works(trap: Path, public: Path) -> None:
    subprocess.run([trap / "python3"], check=False)
    assert (public / "seen").read_text() == "0\n"
    (public / "seen").unlink()


def test_a_setuid_program_that_plays_a_rank(public: Path, tmp_path: Path) -> None:
    """Any user can start sudo, ping or mount with a name and an environment of his own."""
    theirs = spy(public / "theirs/bin/python", public / "seen")
    give(theirs.parents[1])
    program = setuid_copy("/bin/sleep", public / "python3")
    env = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "trap",
        "MASTER_PORT": "1",
        "VIRTUAL_ENV": str(theirs.parents[1]),
    }
    rank = subprocess.Popen([str(theirs), "600"], executable=program, env=env, user=STRANGER)
    try:
        wait_until(lambda: os.path.samefile(f"/proc/{rank.pid}/exe", program), what="the setuid program")
        listed = subprocess.run(
            [*MLTOP, "snapshot", "--json", "--via", "local"], capture_output=True, text=True, check=True
        )
        assert f'"pid":{rank.pid},' in listed.stdout.replace(" ", ""), "it is taken for a rank"
        done = probe(tmp_path, "matmul", "--via", "local")
        assert done.report["results"], (done.report["verdict"], done.report["failures"])
    finally:
        rank.kill()
        rank.wait()


def test_path_and_home_of_somebody_else(trap: Path, public: Path) -> None:
    """As after `su` without a dash, or with an environment that was kept."""
    home = public / "home"
    home.mkdir()
    give(home)
    env = {**os.environ, "PATH": f"{trap}:.:{os.environ['PATH']}", "HOME": str(home), "XDG_CACHE_HOME": f"{home}/cache"}
    for words in (["snapshot", "--via", "local"], ["stacks", "--via", "local"], ["doctor", "--via", "local"]):
        done = subprocess.run([*MLTOP, *words], env=env, capture_output=True, text=True, check=False, timeout=90)
        assert "Traceback" not in done.stderr
        (line,) = [line for line in done.stderr.splitlines() if "environment" in line]
        assert line.startswith("mltop: root takes nothing from its environment that others can change, not PATH (")
        assert f"HOME ({home} belongs to uid {STRANGER})" in line
    assert os.listdir(home) == []


def test_an_import_path_of_somebody_elses(public: Path, tmp_path: Path) -> None:
    """mltop's own Python has it, too; what it starts has not."""
    theirs = public / "theirs"
    trace = f"open({str(public / 'seen')!r}, 'a').write(__name__)\n"
    for name in ("torch/__init__.py", "torch/version.py", "psutil.py", "pynvml.py"):
        script(theirs / name, trace + "__version__ = '2.9'\n")
    give(theirs)
    done = probe(tmp_path, "matmul", "--via", "local", PYTHONPATH=str(theirs))
    assert done.report["results"], (done.report["verdict"], done.report["failures"])


@pytest.mark.parametrize("how", ["everybody", "owner"])
def test_a_state_folder_of_others_that_was_asked_for(how: str, public: Path) -> None:
    """Nothing is remembered anywhere else in its place."""
    state = public / "state"
    state.mkdir()
    state.chmod(0o777) if how == "everybody" else give(state)
    env = {**os.environ, "MLTOP_STATE_DIR": str(state), "HOME": str(public)}
    words = [*MLTOP, "lemon", "add", "GPU-12345678-1234-1234-1234-123456789012"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"mltop: lemon list: {state}: ")
    assert os.listdir(public) == ["state"]


@pytest.mark.parametrize("python", ["python3", "python"])
def test_an_interpreter_of_somebody_elses_in_the_command(python: str, trap: Path) -> None:
    words = [*MLTOP, "snapshot", "--via", "local", "--python", f"{trap}/{python}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"mltop: --python {trap}/{python}: root does not run what others can change: {trap} belongs to uid {STRANGER} "
        "(name one that only root can change)\n"
    )


# On a node: what a login of root's gets to do.


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_stage_0_passes_by_what_others_can_change(shell: str, trap: Path, home: Path) -> None:
    booted = start_once(home, command(shell=shell), PATH=f"{trap}:{os.environ['PATH']}")
    assert booted.root == f"{home}/.cache/mltop"
    assert str(trap) not in booted.python


def test_stage_0_says_why_there_is_none(trap: Path, home: Path) -> None:
    with running(command(python=f"{trap}/python3"), environment(home)) as node:
        refusal = node.next("error")
        assert node.wait() == 97
    assert refusal.error == (
        f"{trap}/python3 is no Python 3.9 or newer on this node: "
        f"root does not run {trap}/python3: {trap} belongs to uid {STRANGER}"
    )
    link = home / "python3"
    link.symlink_to(trap / "python3")
    with running(command(python=str(link)), environment(home)) as node:
        assert f"{trap} belongs to uid {STRANGER}" in node.next("error").error


def test_stage_1_looks_where_the_standard_library_is(public: Path, home: Path) -> None:
    """Of an interpreter that was copied, with a pyvenv.cfg that leads to a stranger's."""
    real = Path(os.path.realpath(sys.executable))
    theirs = public / "theirs"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "lib").mkdir()
    version = f"python3.{sys.version_info.minor}"
    (theirs / "bin" / version).symlink_to(real)
    (theirs / "lib" / version).symlink_to(os.path.dirname(os.__file__))
    own = public / "own"
    (own / "bin").mkdir(parents=True)
    (own / "bin/python3").write_bytes(real.read_bytes())
    (own / "bin/python3").chmod(0o755)
    (own / "pyvenv.cfg").write_text(f"home = {theirs}/bin\n")
    give(theirs)
    with running(command(python=f"{own}/bin/python3"), environment(home)) as node:
        refusal = node.boot()
    assert (refusal.kind, refusal.fix) == ("error", "name one that only root can change: --python PATH"), refusal
    assert refusal.error == f"root does not run {own}/bin/python3: {theirs} belongs to uid {STRANGER}"


def test_no_cache_in_a_strangers_home(public: Path) -> None:
    home, run = public / "home", public / "run"
    home.mkdir()
    run.mkdir()
    give(home)
    booted = start_once(home, XDG_RUNTIME_DIR=str(run))
    assert booted.root == f"{run}/mltop"
    assert booted.notes == [f"{home}/.cache/mltop: {home} belongs to uid {STRANGER}"]
    assert os.listdir(home) == []


@pytest.mark.parametrize("above", ["owner", "everybody"])
def test_no_cache_below_what_others_can_change(above: str, public: Path) -> None:
    """The folder itself is ours and closed; but another could be put in its place."""
    (public / "run").mkdir()
    cache = public / "home/.cache"
    cache.mkdir(parents=True)
    (cache / "mltop").mkdir(0o700)
    if above == "owner":
        os.chown(cache, STRANGER, STRANGER)
    else:
        cache.chmod(0o777)
    booted = start_once(public / "home", XDG_RUNTIME_DIR=str(public / "run"))
    who = f"belongs to uid {STRANGER}" if above == "owner" else "can be written by everybody"
    assert booted.notes == [f"{cache}/mltop: {cache} {who}"]
    assert os.listdir(cache / "mltop") == []


def test_a_folder_that_waits_in_tmp(public: Path) -> None:
    """/tmp/mltop-0, made by somebody else beforehand."""
    waiting = public / "mltop-0"
    waiting.mkdir()
    give(waiting)
    mount = f"mount --bind {public} /tmp; mount -t tmpfs -o ro none /var/tmp; mount -t tmpfs -o ro none /dev/shm"
    public.chmod(0o1777)
    with running(in_mounts(mount, command()), environment("/proc/none")) as node:
        assert node.boot().kind == "hello"
        assert node.booted.root == ""  # memory
        assert f"/tmp/mltop-0: belongs to uid {STRANGER}" in node.booted.notes
        node.close_stdin()
        node.wait()
    assert os.listdir(waiting) == []


@pytest.mark.parametrize("what", ["home", "python", "path"])
def test_by_pdsh_the_same(what: str, trap: Path, public: Path) -> None:
    home = public / "home"
    home.mkdir()
    start_once(home)
    env = environment(home, PATH="/usr/bin:/bin")  # no Python there has mltop
    cache = home / ".cache/mltop"
    if what == "home":
        os.chown(home, STRANGER, STRANGER)  # all below it is still ours
    elif what == "python":
        (cache / SHA256 / "python").write_text(f"{trap}/python3\n")
    else:
        env["PATH"] = f"{trap}:/usr/bin:/bin"
    with running(installed("--text", shell="/bin/sh"), env) as node:
        if what == "home":
            assert node.next("error").error == "the agent is not on this node"
            assert node.wait() == 96
        else:
            assert node.next("hello").kind == "hello"


def test_root_says_why_it_does_not_run_the_one_that_was_named(public: Path, tmp_path: Path) -> None:
    theirs = give(spy(public / "venv/bin/python", public / "seen").parents[1])
    for args, env in (
        (["--torch-python", f"{theirs}/bin/python"], {}),
        ([], {"MLTOP_PROBE_PYTHON": f"{theirs}/bin/python"}),
    ):
        done = probe(tmp_path, "matmul", "--via", "local", *args, **env)
        assert done.code == 3
        (failure,) = done.report["failures"]
        assert f"root does not run what others can change: {theirs} belongs to uid {STRANGER}" in failure["why"]
        assert failure["fix"].startswith("run the probe as the user whose Python it is")
