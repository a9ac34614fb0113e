"""Which Python has torch, found without importing torch.

In this order: the one that was named (by the request, or MLTOP_PROBE_PYTHON), the one of a running training process,
the one of the environment that the agent was started in, the agent's own, python3 on PATH. Each is asked in a process
of its own (some 50 ms) whether it would find torch, and what torch/version.py says. The first that will do is taken.
Root asks none that others could change, with anything that it loads (``as_root.py``), whoever named it, unless the user
says that they may.

It then runs ``main()`` of a module of ours. It has its own site-packages, where torch is, and must not get ours: of
everything that this process can import it sees the package ``mltop`` alone, as a module object with a path. That works
from a source tree, from a virtual environment and from a bundle in memory, which is a zip below /proc.

The environment of a probe process is ours, with what the training job's own processes have set for its libraries. Of
another process's environment only the names below are taken, whatever else stands there (tokens, passwords).
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mltop.probes
from mltop.probes.active import endings
from mltop.probes.active.supervisor.process import ProbeProcess
from mltop.probes.model.probe import ProbeDevice
from mltop.probes.system import as_root, owner, paths
from mltop.probes.system.spawn import PROBE_MARK, why_no_program
from mltop.probes.system.writable import in_time, user_name

_ANSWERS_S = 1.0
_ACTIVATED = ("VIRTUAL_ENV", "CONDA_PREFIX")
# Belong to that job's Python.
_OF_ITS_PYTHON = ("LD_LIBRARY_PATH", "PYTHONPATH")
# Say how this cluster is to be used.
_OF_THE_CLUSTER = ("NCCL_", "GLOO_", "CUDA_")
# What a job set to be debugged or profiled, what names its files or its rendezvous, and what is ours to choose.
_NOT_TAKEN = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH"),
        *("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "NCCL_COMM_ID"),
        *("NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"),
    )
)
# Would make a foreign Python another one, or a rank of somebody's job.
_NOT_KEPT = frozenset(
    (
        *("PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        "TORCHELASTIC_RUN_ID",
        *(_NOT_TAKEN & {"CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "NCCL_COMM_ID"}),
    )
)


@dataclass(frozen=True)
class JobProcess:
    """A training process as far as its Python is concerned. ``argv0``: as it was called, "" where that names another
    program; ``python``: what it runs.

    ``activated``: folders of VIRTUAL_ENV and CONDA_PREFIX; ``variables``: the allowed ones of its environment.
    """

    pid: int
    argv0: str = ""
    python: str = ""
    activated: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NotTaken:
    """A training process that is no witness for what we may run. ``why``: the end of a sentence that begins with it."""

    pid: int
    why: str

    def __str__(self) -> str:
        return f"the training process {self.pid} {self.why}"


def job_process(pid: int) -> JobProcess | NotTaken | None:
    """What a training process says of its Python; None for one that is gone.

    It takes part only if it is ours by every user id (mltop may be root, and a setuid program that a stranger started
    has root's effective one), runs a Python, and sees the files that we see (namespaces(7), chroot(2)). What it says
    is a hint where to look: root still asks who may write there. Sources, all in /proc/PID: status, exe, ns, root,
    environ, cmdline.
    """
    try:
        folder = os.open(paths.proc(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        uids = owner.ids(folder, "Uid")
        others = [user_name(uid) for uid in uids if uid != os.geteuid()]
        if others or not uids:
            torch = f"is {others[0]}'s: run the probe as {others[0]} to use its torch" if others else ""
            return NotTaken(pid, torch or "says not whose it is")
        why = owner.why_no_python_of_ours(folder)
        if why:
            return NotTaken(pid, why)
        before = owner.identity(folder)
        job = _witness(pid, folder)
        return job if owner.identity(folder) == before else NotTaken(pid, "became another program meanwhile")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        return NotTaken(pid, f"cannot be looked at: {error.strerror}")
    finally:
        os.close(folder)


def _witness(pid: int, folder: int) -> JobProcess:
    program = os.stat("exe", dir_fd=folder)
    items = (os.fsdecode(item).partition("=") for item in owner.read(folder, "environ").split(b"\0"))
    variables = {name: value for name, _, value in items}
    argv0 = os.fsdecode(owner.read(folder, "cmdline").split(b"\0", 1)[0])
    return JobProcess(
        pid=pid,
        argv0=argv0 if _is(program, argv0) else "",
        python=os.readlink("exe", dir_fd=folder),
        activated=tuple(variables[name] for name in _ACTIVATED if variables.get(name)),
        variables={
            name: value
            for name, value in variables.items()
            if name in _OF_ITS_PYTHON or (name.startswith(_OF_THE_CLUSTER) and name not in _NOT_TAKEN)
        },
    )


def _is(program: os.stat_result, path: str) -> bool:
    """Whether this absolute path leads to that very file. A job hangs most often where a file server does."""
    try:
        file = in_time(lambda: os.stat(path), _ANSWERS_S) if path.startswith("/") else None  # noqa: PTH116
    except OSError:
        return False
    return file is not None and os.path.samestat(program, file)


def with_job(job: JobProcess | None, is_its_python: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Our environment, and over it what ``job`` has set; of its Python's only when that is the one to run. Then what
    root left out of it, and why, by name.
    """
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_KEPT}
    for name, value in job.variables.items() if job is not None else ():
        if is_its_python or name not in _OF_ITS_PYTHON:
            environ[name] = value
    cleaned, left_out = as_root.cleaned(environ)
    return cleaned, {**as_root.LEFT_OUT, **left_out}


def with_devices(environ: Mapping[str, str], devices: Sequence[ProbeDevice]) -> dict[str, str]:
    """What the process may see: its GPUs by UUID, or none."""
    gpus = [device.uuid for device in devices if device.kind != "cpu"]
    return {**environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


ASK_S = 5.0
VARIABLE = "MLTOP_PROBE_PYTHON"
OLDEST, OLDEST_TORCH = (3, 9), (2, 4)
_MOST_SAID = 3
_ACTIVATED_HERE = "activated where the agent was started"
_ANSWER = b"mltop-torch "  # start-up files of a Python may print, too
_FIX = f"name one that has it: --torch-python PATH (or export {VARIABLE}=PATH on the node)"
_FIX_ROOT = (
    "run the probe as the user whose Python it is, or name one that only root can change: --torch-python PATH; "
    "to run one that others can change: --torch-python PATH --trust-python"
)
_LED_TO_PYTHONS = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX")

# For any Python 3: what is older than 3.9 has to say so. Of torch nothing is run, of version.py the plain assignments
# are read: nobody has looked yet at where it was found.
_QUESTION = """
import ast, json, sys
sys.path[:] = [entry for entry in sys.path if entry]
answer = {"python": "%d.%d.%d" % sys.version_info[:3], "path": sys.executable, "folders": sys.path}
try:
    from importlib.util import find_spec
    spec = find_spec("torch")
    if spec is not None and spec.origin:
        folder, names = spec.origin.rpartition("/")[0], {}
        answer["folders"] = sys.path + [folder]
        for line in ast.parse(open(folder + "/version.py").read()).body:
            target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
            if isinstance(target, ast.Name):
                try:
                    names[target.id] = ast.literal_eval(line.value)
                except ValueError:
                    pass
        answer.update(torch=str(names["__version__"]), cuda=names.get("cuda"), hip=names.get("hip"))
except Exception as error:
    answer["error"] = "%s: %s" % (type(error).__name__, error)
print("\\n" + "ANSWER" + json.dumps(answer))
""".replace("ANSWER", _ANSWER.decode())


@dataclass(frozen=True)
class Candidate:
    """``path``, or a name to be found on PATH; ``origin``: whose it is, in words; ``job``: whose process it was."""

    path: str
    origin: str
    job: JobProcess | None = None


@dataclass(frozen=True)
class TorchPython:
    """``path``: to start it by, which may be a script around it; ``executable``: itself. ``python``, ``torch``:
    versions; ``cuda``, ``hip``: that torch was built with, None without. ``environ``: but for the devices;
    ``left_out``: of it, by root, and why, by name.
    """

    path: str
    executable: str
    python: str
    torch: str
    cuda: str | None
    hip: str | None
    origin: str
    environ: dict[str, str]
    left_out: dict[str, str]


class NoTorch(Exception):
    """Why there is no Python to run a probe with; ``fix``: what would help."""

    def __init__(self, why: str, fix: str = _FIX) -> None:
        super().__init__(why)
        self.fix = fix


def find_torch(
    named: str,
    jobs: Sequence[JobProcess],
    for_gpus: bool,
    cancelled: threading.Event,
    *,
    not_taken: Sequence[NotTaken] = (),
    trust: bool = False,
) -> TorchPython | None:
    """The first Python with a torch that can use the devices; None when cancelled. Raises NoTorch.

    ``named``: in the request, "" for none. One that was named must do: no other is looked for. ``jobs``: a process of
    each training job that runs here; ``not_taken``: those whose Python is not for us. ``trust``: root runs it whoever
    can change it.
    """
    reasons: list[str] = []
    fix = _FIX
    for candidate in candidates(named, jobs):
        why = why_no_program(candidate.path)  # in the environment of this node may stand anything
        if why:
            reasons.append(f"{candidate.path[:100]!r} ({candidate.origin}) {why}")
            continue
        environ, left_out = with_job(candidate.job or (jobs[0] if jobs else None), candidate.job is not None)
        why = "" if trust else as_root.why_not_environment(candidate.path, environ.get("PATH"))
        answer = {} if why else ask(candidate.path, environ, cancelled)
        # A script has become the interpreter, which finds modules where it likes.
        if answer and isinstance(answer, dict) and not trust:
            why = as_root.why_not_environment(str(answer.get("path")), told=answer.get("folders", ()))
        if cancelled.is_set():
            return None
        fix = _FIX_ROOT if why else fix
        why = why or (answer if isinstance(answer, str) else unfit(answer, for_gpus))
        if isinstance(answer, dict) and not why:
            executable = answer.get("path") or candidate.path
            built = (answer["python"], answer["torch"], answer.get("cuda"), answer.get("hip"))
            return TorchPython(candidate.path, executable, *built, candidate.origin, environ, left_out)
        reasons.append(f"{candidate.path} ({candidate.origin}): {why}")
    if not named:  # also which Pythons were not looked at, and why
        reasons += map(str, not_taken[:_MOST_SAID])
        left_out = {name: as_root.LEFT_OUT[name] for name in _LED_TO_PYTHONS if name in as_root.LEFT_OUT}
        if left_out:
            reasons.append(f"root looks for none where others can change it: {as_root.in_words(left_out)}")
            fix = _FIX_ROOT
    raise NoTorch("no Python with a torch that will do: " + "; ".join(reasons), fix)


def candidates(named: str, jobs: Sequence[JobProcess]) -> list[Candidate]:
    """The Pythons in the order in which they are asked, each once."""
    of_jobs = [candidate for job in jobs for candidate in _of_job(job)]
    for path, origin in ((named, "named for this probe"), (os.environ.get(VARIABLE), f"{VARIABLE} on this node")):
        if path:
            job_of = {candidate.path: candidate.job for candidate in reversed(of_jobs)}
            return [Candidate(path, origin, job_of.get(path))]
    in_order = [
        *of_jobs,
        *(
            Candidate(f"{folder}/bin/python", _ACTIVATED_HERE)
            for name in _ACTIVATED
            if (folder := os.environ.get(name))
        ),
        *([Candidate(sys.executable, "the agent's own")] if sys.executable else []),
        Candidate("python3", "on PATH"),
    ]
    first_of_path: dict[str, Candidate] = {}
    for candidate in in_order:
        first_of_path.setdefault(candidate.path, candidate)
    return list(first_of_path.values())


def _of_job(job: JobProcess) -> Iterable[Candidate]:
    """A full path in the command line is the interpreter itself (it may be another than the activated one); behind a
    bare "python" is the activated one. What /proc/PID/exe says comes last: it resolves past virtual environments.
    """
    origin = f"of the training process {job.pid}"
    if job.argv0.startswith("/"):
        yield Candidate(job.argv0, origin, job)
    for folder in job.activated:
        yield Candidate(f"{folder}/bin/python", origin, job)
    if job.python.startswith("/"):
        yield Candidate(job.python, origin, job)


def unfit(answer: Mapping[str, Any], for_gpus: bool) -> str:
    """Why a Python that answered will not do, "" when it will. Pure."""
    version, torch = str(answer.get("python", "")), str(answer.get("torch") or "")
    if _numbers(version) < OLDEST:
        return f"it is Python {version}, older than {'.'.join(map(str, OLDEST))}"
    if answer.get("error"):
        return f"its torch cannot be looked at: {answer['error']}"
    if not torch:
        return "torch is not installed"
    if _numbers(torch) < OLDEST_TORCH:
        return f"its torch {torch} is older than {'.'.join(map(str, OLDEST_TORCH))}"
    if for_gpus and not (answer.get("cuda") or answer.get("hip")):
        return f"its torch {torch} is built without CUDA"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """The first two of a version ("2.9.1+cu128")."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def ask(
    path: str, environ: Mapping[str, str], cancelled: threading.Event, ask_s: float = ASK_S
) -> dict[str, Any] | str:
    """What a Python says of itself, or why it says nothing. Does not wait for what hangs in the kernel."""
    try:
        process = ProbeProcess([*_start_words(path), _QUESTION], environ)
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"
    try:
        return _answer(process, cancelled, ask_s)
    finally:
        process.end_now()


def _answer(process: ProbeProcess, cancelled: threading.Event, ask_s: float) -> dict[str, Any] | str:
    poller = select.poll()
    poller.register(process.out, select.POLLIN)
    while not cancelled.is_set():
        ended = process.has_ended()
        for line in process.receive():
            if line.startswith(_ANSWER):
                answer: dict[str, Any] = json.loads(line[len(_ANSWER) :])
                return answer
        if ended:
            words = endings.last_words(process.stderr_end())
            return words or f"ended with exit code {process.reap()} and no answer"
        if time.monotonic() - process.started_s > ask_s:
            return f"did not answer within {ask_s:g} s"
        if process.is_silent:
            cancelled.wait(0.01)
        else:
            poller.poll(50)
    return "cancelled"


def probe_command(python: str, target: str, kind: str, key: str) -> list[str]:
    """``target``: a module's name, or the path of a file (NAME.py); ``python``: a path, or a name to be found on PATH.

    A shell becomes the Python: an interpreter on a file server that does not answer then hangs a process that has a
    deadline, not us. Run it in "/".
    """
    return [*_start_words(python), _code(target), PROBE_MARK, kind, key]


def _code(target: str) -> str:
    """No bytecode of ours is written: a foreign Python, perhaps root's, has no business in our folders."""
    if target.endswith(".py"):
        load = f"import runpy; main = runpy.run_path({target!r})['main']"
    else:
        load = f"from {target} import main"
    package = os.path.dirname(os.path.dirname(os.path.abspath(mltop.probes.__file__)))  # noqa: PTH100, PTH120
    return "; ".join(
        (
            "import sys, types",
            "sys.path[:] = [entry for entry in sys.path if entry]",
            "sys.modules['mltop'] = types.ModuleType('mltop')",
            f"sys.modules['mltop'].__path__ = [{package!r}]",
            "kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True",
            load,
            "sys.dont_write_bytecode = kept",
            "main()",
        )
    )


def _start_words(python: str) -> list[str]:
    return ["/bin/sh", "-c", 'exec "$0" "$@"', python, "-W", "ignore", "-c"]
