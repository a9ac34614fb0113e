"""Finding a Python that has torch: the order, what each says of itself, and what is taken from a job's environment."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.active.supervisor.pythons import (
    JobProcess,
    NoTorch,
    NotTaken,
    ask,
    candidates,
    find_torch,
    job_process,
    unfit,
    with_devices,
    with_job,
)
from mltop.probes.model.probe import ProbeDevice
from tests import strangers
from tests.fakes.probes import torch_folder, torch_python, torchless_python
from tests.fakes.scripts import shell_script
from tests.strangers import STRANGER, give, needs_root, script, setuid_copy, spy
from tests.waiting import wait_until

public = strangers.public
REAL = os.path.realpath(sys.executable)
NEVER = threading.Event()


@pytest.fixture(autouse=True)
def _nothing_activated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "MLTOP_PROBE_PYTHON", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def paths(named: str = "", *jobs: JobProcess) -> list[str]:
    return [candidate.path for candidate in candidates(named, jobs)]


def test_a_named_one_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobProcess(7, "/job/bin/python")
    monkeypatch.setenv("MLTOP_PROBE_PYTHON", "/node/python")
    assert paths("/mine/python", job) == ["/mine/python"]
    assert paths("", job) == ["/node/python"]
    assert candidates("/job/bin/python", [job])[0].job is job  # its libraries belong to it


def test_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/activated")
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    called_bare = JobProcess(7, "python", "/usr/bin/python3.11", ("/job/venv",))
    called_whole = JobProcess(8, "/other/bin/python", "/other/bin/python", ("/conda",))
    rest = ["/activated/bin/python", "/conda/bin/python", sys.executable, "python3"]
    assert paths("") == rest
    assert paths("", called_bare) == ["/job/venv/bin/python", "/usr/bin/python3.11", *rest]
    assert paths("", called_whole) == ["/other/bin/python", "/conda/bin/python", "/activated/bin/python", *rest[2:]]


@pytest.mark.parametrize(
    ("said", "for_gpus", "why"),
    [
        ({"python": "3.9.0", "torch": "2.4", "cuda": "12.1"}, True, ""),
        ({"python": "3.12.1", "torch": "2.10", "hip": "6.1"}, True, ""),
        ({"python": "3.12.1", "torch": "2.4+cpu"}, False, ""),
        ({"python": "3.12.1", "torch": "2.4+cpu"}, True, "its torch 2.4+cpu is built without CUDA"),
        ({"python": "3.12.1", "torch": "2.3.1+cu121", "cuda": "12.1"}, True, "its torch 2.3.1+cu121 is older than 2.4"),
        ({"python": "3.12.1"}, False, "torch is not installed"),
        ({"python": "3.8.10", "torch": "2.1"}, False, "it is Python 3.8.10, older than 3.9"),
        ({"python": "3.12.1", "error": "OSError: x"}, False, "its torch cannot be looked at: OSError: x"),
    ],
)
def test_unfit(said: dict[str, str], for_gpus: bool, why: str) -> None:
    assert unfit(said, for_gpus) == why


def test_torch_is_found_and_not_imported(tmp_path: Path) -> None:
    found = find_torch(torch_python(tmp_path), [], True, NEVER)
    assert found is not None
    assert (found.torch, found.cuda, found.hip) == ("2.9.0+cu128", "12.8", None)
    assert found.executable == sys.executable


def test_nothing_of_torch_is_run(tmp_path: Path) -> None:
    """It may lie where nobody has looked yet: start-up files add folders, and finders of their own."""
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise SystemExit")
    (torch / "version.py").write_text(
        f"open({str(tmp_path / 'seen')!r}, 'w')\n__version__ = '2.9'\ncuda: str = '13.0'\nhip: str\ngit = len('')\n"
    )
    said = ask(sys.executable, {"PYTHONPATH": str(tmp_path)}, threading.Event(), 60)
    assert isinstance(said, dict)
    assert (said["torch"], said["cuda"], said["hip"]) == ("2.9", "13.0", None)
    assert str(torch) in said["folders"]
    assert not (tmp_path / "seen").exists()


def test_a_folder_called_torch_is_none(tmp_path: Path) -> None:
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    line = 'PYTHONPATH={lib} exec {python} -S "$@"'
    script = shell_script(tmp_path / "python", line, lib=tmp_path / "lib", python=sys.executable)
    said = ask(str(script), os.environ, NEVER, 30)
    assert isinstance(said, dict)
    assert unfit(said, False) == "torch is not installed"


def test_the_first_that_will_do_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without, with_torch = tmp_path / "without", tmp_path / "with"
    (without / "bin").mkdir(parents=True)
    torchless_python(without / "bin")
    torch_python(with_torch)
    monkeypatch.setenv("VIRTUAL_ENV", str(without))
    monkeypatch.setenv("CONDA_PREFIX", str(with_torch))
    found = find_torch("", [], True, NEVER)
    assert found is not None
    assert found.path == f"{with_torch}/bin/python"
    assert found.origin == "activated where the agent was started"


def test_a_named_one_without_torch_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(Path(torch_python(tmp_path / "good")).parents[1]))
    script = torchless_python(tmp_path)
    with pytest.raises(NoTorch) as error:
        find_torch(script, [], False, NEVER)
    why = f"no Python with a torch that will do: {script} (named for this probe): torch is not installed"
    assert str(error.value) == why
    assert "--torch-python PATH" in error.value.fix
    assert "MLTOP_PROBE_PYTHON" in error.value.fix


def test_when_none_has_torch_each_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    torchless_python(folder)
    (folder / "python").rename(folder / "python3")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    with pytest.raises(NoTorch) as error:
        find_torch("", [], False, NEVER)
    sentences = str(error.value).removeprefix("no Python with a torch that will do: ").split("; ")
    assert sentences[0].startswith(f"{tmp_path}/gone/bin/python (activated where the agent was started): ")
    assert sentences[0].endswith("not found")
    assert sentences[1:] == [
        f"{folder}/python3 (the agent's own): torch is not installed",
        "python3 (on PATH): torch is not installed",
    ]


def test_one_that_hangs_is_passed_over(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nsleep 600 & wait\n")
    script.chmod(0o755)
    began = time.monotonic()
    assert ask(str(script), os.environ, NEVER, 0.3) == "did not answer within 0.3 s"
    cancelled = threading.Event()
    cancelled.set()
    assert ask(str(script), os.environ, cancelled, 60) == "cancelled"
    assert time.monotonic() - began < 30


def test_start_up_files_may_print(tmp_path: Path) -> None:
    folder = torch_folder(tmp_path)
    (folder / "sitecustomize.py").write_text("print('Welcome')\nprint('no newline', end='')\n")
    said = ask(sys.executable, {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}, NEVER, 30)
    assert isinstance(said, dict)
    assert said["torch"] == "2.9.0+cu128"


VARIABLES = {
    "VIRTUAL_ENV": "/job/venv",
    "LD_LIBRARY_PATH": "/job/lib",
    "PYTHONPATH": "/job/src",
    "NCCL_IB_HCA": "mlx5",
    "NCCL_DEBUG_FILE": "/job/nccl.log",
    "GLOO_SOCKET_IFNAME": "eth0",
    "CUDA_HOME": "/cuda",
    "CUDA_VISIBLE_DEVICES": "3",
    "CUDA_LAUNCH_BLOCKING": "1",
    "HF_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
}


SLEEP = ["-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as started:
        yield started


class Job:
    """Training processes, ended with the block. ``venv``: an environment whose Python runs."""

    def __init__(self, folder: Path) -> None:
        self.venv = folder / "venv"
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "bin/python").symlink_to(REAL)
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def start(self, argv: list[str], program: Path | str = "", **more: Any) -> int:
        """Its pid, once it has become that program."""
        started = subprocess.Popen(argv, executable=program or None, **{"env": VARIABLES, **more})
        self._running.append(started)
        exe = Path(os.path.realpath(program or argv[0]))

        def runs() -> bool:  # in the midst of exec(2) the program is there before its arguments are
            arguments = Path(f"/proc/{started.pid}/cmdline").read_bytes()
            return os.path.samefile(f"/proc/{started.pid}/exe", exe) and bool(arguments)

        wait_until(runs, what=f"{exe} to run")
        return started.pid


def test_of_a_jobs_environment_only_what_its_libraries_need_is_taken(job: Job) -> None:
    env = {**VARIABLES, "VIRTUAL_ENV": str(job.venv)}
    found = job_process(job.start([f"{job.venv}/bin/python", *SLEEP], env=env))
    assert isinstance(found, JobProcess)
    assert (found.argv0, found.python) == (f"{job.venv}/bin/python", REAL)
    assert found.activated == (str(job.venv),)
    assert found.variables == {
        name: VARIABLES[name]
        for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME", "CUDA_HOME")
    }
    (with_its_python, _), (with_another, _) = with_job(found, True), with_job(found, False)
    assert (with_its_python["PYTHONPATH"], with_its_python["NCCL_IB_HCA"]) == ("/job/src", "mlx5")
    assert with_another.get("PYTHONPATH") != "/job/src"
    assert with_another["NCCL_IB_HCA"] == "mlx5"
    assert "HF_TOKEN" not in with_its_python


def test_what_a_process_says_of_its_name_is_no_proof(job: Job, tmp_path: Path) -> None:
    """argv[0] is chosen freely."""
    theirs = script(tmp_path / "theirs/bin/python", "#!/bin/sh\n")
    found = job_process(job.start([str(theirs), *SLEEP], REAL))
    assert isinstance(found, JobProcess)
    assert (found.argv0, found.python) == ("", REAL)


def test_only_a_python_is_a_witness(job: Job, tmp_path: Path) -> None:
    assert why_not_taken(job.start([f"{job.venv}/bin/python", "600"], "/bin/sleep")).endswith(
        f"runs {os.path.realpath('/bin/sleep')}, which is no Python"
    )
    copied = tmp_path / "bin/python3"
    copied.parent.mkdir()
    shutil.copy("/bin/sleep", copied)
    pid = job.start([str(copied), "600"])
    copied.unlink()
    assert why_not_taken(pid) == f"the training process {pid} runs a Python that was replaced or removed since"


def why_not_taken(pid: int) -> str:
    found = job_process(pid)
    assert isinstance(found, NotTaken), found
    return str(found)


def test_one_that_is_gone_says_nothing() -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    assert job_process(ended.pid) is None
    assert job_process(1 << 23) is None


@pytest.mark.parametrize(
    ("unshare", "what"),
    [
        (["--mount"], "mounts"),
        (["--pid", "--fork", "--kill-child"], "process numbers"),
        (["--user", "--map-root-user"], "users"),
    ],
)
def test_in_a_container_paths_mean_other_files(unshare: list[str], what: str, job: Job) -> None:
    if os.geteuid() and "--user" not in unshare:
        unshare = [*unshare, "--user", "--map-root-user"]
    started = subprocess.Popen(["unshare", *unshare, REAL, *SLEEP], start_new_session=True)
    try:
        (pid,) = wait_until(lambda: running(started.pid), what="the process in the container")
        # Of several namespaces the first that differs is named.
        assert why_not_taken(pid).startswith(f"the training process {pid} runs in a container (")
        assert os.geteuid() or f"({what} of its own)" in why_not_taken(pid)
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def running(leader: int) -> list[int]:
    """Of this session, those that have become the Python."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                session = (entry / "stat").read_text().rpartition(")")[2].split()[3]
                if session == str(leader) and os.path.samefile(entry / "exe", REAL):
                    found.append(int(entry.name))
    return found


@needs_root
def test_another_root_directory(tmp_path: Path) -> None:
    code = f"import os, time; os.chroot({str(tmp_path)!r}); print(flush=True); time.sleep(600)"
    with subprocess.Popen([REAL, "-S", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert "has another root directory" in why_not_taken(process.pid)
        process.kill()


@needs_root
@pytest.mark.parametrize(
    "ids", [(STRANGER,) * 3, (STRANGER, 0, 0), (0, STRANGER, 0), (0, 0, STRANGER), (0, STRANGER, STRANGER)]
)
def test_all_four_user_ids_count(ids: tuple[int, int, int]) -> None:
    """Real, effective and saved; that of the file system follows the effective one."""
    code = f"import os, time; os.setresuid(*{ids}); print(flush=True); time.sleep(600)"
    with subprocess.Popen([REAL, "-S", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        why = f"is uid {STRANGER}'s: run the probe as uid {STRANGER} to use its torch"
        assert why_not_taken(process.pid) == f"the training process {process.pid} {why}"
        process.kill()


@needs_root
@pytest.mark.parametrize("name", ["python3", "ping"])
def test_a_setuid_program_of_roots_that_a_stranger_started(name: str, job: Job, public: Path) -> None:
    """To /proc it is root's. It says what the stranger likes."""
    program = setuid_copy("/bin/sleep", public / name)
    theirs = give(spy(public / "theirs/bin/python", public / "seen").parents[1])
    env = {"RANK": "0", "WORLD_SIZE": "1", "VIRTUAL_ENV": str(theirs), "NCCL_NET_PLUGIN": f"{theirs}/x.so"}
    pid = job.start([f"{theirs}/bin/python", "600"], program, env=env, user=STRANGER)
    assert os.stat(f"/proc/{pid}").st_uid == 0
    assert why_not_taken(pid).startswith(f"the training process {pid} is uid {STRANGER}'s: run the probe as")
    with pytest.raises(NoTorch) as error:
        find_torch("", [], True, NEVER, not_taken=[job_process(pid)])
    assert f"the training process {pid} is uid {STRANGER}'s" in str(error.value)
    assert not (public / "seen").exists()


# As root: what is named, by whomever.


@needs_root
@pytest.mark.parametrize("how", ["named", "variable", "activated", "path", "job", "behind a script"])
def test_root_does_not_start_what_a_stranger_can_change(
    how: str, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = give(spy(tmp_path / "theirs/bin/python", tmp_path / "seen").parents[1])
    (theirs / "bin/python3").symlink_to("python")
    path, named, jobs = f"{theirs}/bin/python", "", []
    if how == "named":
        named = path
    elif how == "variable":
        monkeypatch.setenv("MLTOP_PROBE_PYTHON", path)
    elif how == "activated":
        monkeypatch.setenv("VIRTUAL_ENV", str(theirs))
    elif how == "path":
        monkeypatch.setenv("PATH", f"{theirs}/bin:{os.environ['PATH']}")
    elif how == "behind a script":
        path = named = str(script(tmp_path / "wrapper", f"#!{path}\n"))
    else:
        jobs = [JobProcess(7, path, path, (str(theirs),))]
    with pytest.raises(NoTorch) as error:
        find_torch(named, jobs, True, NEVER)
    if how == "path":
        assert str(theirs) not in str(error.value)  # it is no place to look for anything
    else:
        assert f"{path} (" in str(error.value)
        assert f"root does not run what others can change: {theirs} belongs to uid {STRANGER}" in str(error.value)
        assert error.value.fix.startswith("run the probe as the user whose Python it is, or name one that only root")
    assert not (tmp_path / "seen").exists()


@needs_root
def test_root_does_not_load_what_a_stranger_can_change(tmp_path: Path) -> None:
    """By where the interpreter, behind a script of root's, finds modules."""
    python = torch_python(tmp_path)
    assert find_torch(python, [], True, NEVER) is not None
    give(tmp_path / "lib/torch")
    with pytest.raises(NoTorch, match=f"{tmp_path}/lib/torch belongs to uid {STRANGER}"):
        find_torch(python, [], True, NEVER)


@needs_root
def test_root_runs_it_when_the_user_trusts_those_who_can_change_it(tmp_path: Path) -> None:
    python = torch_python(tmp_path)
    give(tmp_path)
    with pytest.raises(NoTorch) as error:
        find_torch(python, [], True, NEVER)
    assert "--torch-python PATH --trust-python" in error.value.fix
    found = find_torch(python, [], True, NEVER, trust=True)
    assert found is not None and found.path == python


@needs_root
def test_what_root_leaves_out_of_its_path_is_named(tmp_path: Path) -> None:
    """An agent's PATH no longer has the folder: the user hears why its Python was not found."""
    theirs = give(Path(torch_python(tmp_path / "theirs")).parent)
    code = (
        "import threading; from mltop.probes.system import as_root; as_root.clean_here();"
        "from mltop.probes.active.supervisor.pythons import find_torch; find_torch('', [], True, threading.Event())"
    )
    environ = {"PATH": f"{theirs}:/usr/bin:/bin", "HOME": "/root"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    said = done.stderr.splitlines()[-1]
    assert f"root looks for none where others can change it: PATH ({theirs} belongs to uid {STRANGER})" in said


@needs_root
def test_root_takes_no_library_or_plugin_of_a_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    give(theirs)
    monkeypatch.setenv("LD_PRELOAD", f"{theirs}/a.so")
    monkeypatch.setenv("NCCL_COMM_ID", "10.0.0.1:4711")  # another job's place to meet
    variables = {"LD_LIBRARY_PATH": f"{theirs}:/usr/lib", "NCCL_TUNER_PLUGIN": f"{theirs}/b.so", "NCCL_IB_HCA": "mlx5"}
    environ, left_out = with_job(JobProcess(7, variables=variables), True)
    assert {"LD_PRELOAD", "NCCL_TUNER_PLUGIN", "NCCL_COMM_ID"}.isdisjoint(environ)
    assert (environ["LD_LIBRARY_PATH"], environ["NCCL_IB_HCA"]) == ("/usr/lib", "mlx5")
    assert set(left_out) == {"LD_PRELOAD", "LD_LIBRARY_PATH", "NCCL_TUNER_PLUGIN"}


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("a\nb", "has '\\n'"),
        ("it's", 'has "\'"'),
        ("x" * 5000, "longer than any path"),
        ("python3 -u", "is not one word"),
    ],
)
def test_the_nodes_own_variable_may_hold_anything(named: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_PROBE_PYTHON", named)
    with pytest.raises(NoTorch) as error:
        find_torch("", [], False, NEVER)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_devices_are_seen_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("PYTHONHOME", "/somewhere")
    devices = [ProbeDevice("GPU-a"), ProbeDevice("MIG-b", kind="mig")]
    environ = with_devices(with_job(None, False)[0], devices)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,MIG-b"
    assert "RANK" not in environ
    assert "PYTHONHOME" not in environ
    assert with_devices({}, [ProbeDevice("cpu", kind="cpu")])["CUDA_VISIBLE_DEVICES"] == ""
