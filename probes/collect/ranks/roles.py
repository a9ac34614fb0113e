"""What kind of program a process is, told from its executable and command line."""

from __future__ import annotations

import re
from typing import Literal

from mltop.probes.collect.ranks.identity import LAUNCHERS

# python may be a rank; spawned: started by multiprocessing, a rank only by what it has set itself; worker: Python's own
# helper processes, never a rank; launcher: starts ranks; wrapper: stays above what it runs, be it one rank or all that
# runs on the machine; tool: watches or edits, and carries a rank's variables only because it was started in its shell;
# other may be a rank when no Python process is (an MPI program).
Role = Literal["python", "spawned", "worker", "launcher", "wrapper", "shell", "tool", "other"]

# The roles that a rank may have, best first.
RANK_ROLES: tuple[Role, ...] = ("python", "spawned", "other")
PYTHON_ROLES: tuple[Role, ...] = ("python", "spawned")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS = _words(
    """
    sh bash dash ash zsh ksh mksh fish csh tcsh busybox tmux screen login su sudo script sshd
    """
)

_WRAPPERS = _words(
    """
    pdsh ssh env numactl taskset nice ionice chrt timeout time stdbuf setsid nohup prlimit
    unshare nsenter chroot xargs parallel conda micromamba mamba pixi uv uvx poetry pipenv hatch
    singularity apptainer starter starter-suid enroot docker podman tini dumb-init docker-init
    catatonit systemd nsys nsys-launcher ncu strace ltrace perf valgrind
    """
)
_PYTHON_WRAPPERS = _words("composer colossalai horovodrun fabric conda conda-script.py mamba poetry pipenv hatch")
_LAUNCHER_PROGRAMS = _words(" ".join(row.programs for row in LAUNCHERS))
_LAUNCHERS = _LAUNCHER_PROGRAMS | _words("jsrun aprun flux")  # these set no variables that we know
_LAUNCHER_SCRIPTS = _LAUNCHER_PROGRAMS | _PYTHON_WRAPPERS
_LAUNCHER_MODULES = (*(module for row in LAUNCHERS for module in row.modules), "composer.cli.launcher", "conda")

_TOOLS = _words(
    """
    mltop py-spy pystack gdb nvidia-smi nvtop dcgmi rocm-smi top htop btop atop watch tail less more
    man vi vim nvim nano emacs cat tee git rsync scp wandb-core dstat iostat vmstat pidstat sleep
    """
)

_PROGRAMS: tuple[tuple[Role, frozenset[str]], ...] = (
    ("shell", _SHELLS),
    ("launcher", _LAUNCHERS),
    ("wrapper", _WRAPPERS),
    ("tool", _TOOLS),
)

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]*(?:-[0-9.]+)?(?:-dbg)?", re.ASCII)

_TOOL_SCRIPTS = _words(
    """
    mltop nvitop gpustat tensorboard wandb jupyter jupyter-lab jupyter-notebook ipython ipython3 pip
    pip3
    """
)
_TOOL_MODULES = (
    "mltop.probes.agent",
    "mltop.probes.collect",
    "mltop.tui",
    "nvitop",
    "tensorboard",
    "ipykernel",
    "jupyter",
    "jupyterlab",
    "IPython",
    "pip",
)
_WORKER_MODULES = ("torch._inductor.compile_worker", "wandb", "multiprocessing")
# multiprocessing/spawn.py get_command_line; multiprocess is its copy that pickles more
_SPAWNED_CODE = ("from multiprocessing.spawn import spawn_main", "from multiprocess.spawn import spawn_main")
_WORKER_CODE = ("from multiprocessing.", "from joblib.externals.loky", "from loky.")
_WORKER_NAMES = ("pt_data_worker", "pt_data_pin")  # torch/utils/data/_utils/worker.py names its processes


def role_of(argv: list[str], exe: str | None, comm: str) -> Role:
    """The role of a process. ``exe`` is the target of /proc/PID/exe, None when unreadable."""
    names = [_basename(exe)] if exe else []
    names.append(_basename(argv[0].lstrip("-")) if argv else comm)
    if any(map(is_python_name, names)):
        kind, target = python_target(argv)
        roles = {"c": _code_role, "m": _module_role, "": _script_role}
        return "worker" if comm in _WORKER_NAMES else roles[kind](target)
    for name in names:
        for role, members in _PROGRAMS:
            if name in members:
                return role
    return "other"


def is_python_name(program: str) -> bool:
    """Whether a program is a Python, by its name or path."""
    return _PYTHON.fullmatch(_basename(program)) is not None


def looks_like_python(argv: list[str], exe: str | None, comm: str) -> bool:
    """Whether this may be somebody's Python program; scripts of the operating system itself do not count."""
    names = (_basename(exe or ""), _basename(argv[0]) if argv else "", comm)
    if not any(map(is_python_name, names)):
        return False
    script = python_target(argv)[1]
    return not script.startswith(("/usr/bin/", "/usr/sbin/", "/usr/lib/", "/usr/share/", "/usr/libexec/"))


def interpreter(argv: list[str], exe: str | None) -> str | None:
    """Path of the Python interpreter, None for other programs.

    A virtual environment's path stands only in the command line: its /proc/PID/exe is the base interpreter.
    """
    named = argv[0] if argv and is_python_name(argv[0]) else None
    if named and named.startswith("/"):
        return named
    if exe is None:
        return named
    path = exe.replace(" (deleted)", "")
    return path if is_python_name(path) else None


def python_target(argv: list[str]) -> tuple[str, str]:
    """What an interpreter was told to run: ("m", module), ("c", code) or ("", script), ("", "") a prompt."""
    index = 1
    while index < len(argv):
        argument = argv[index]
        index += 1
        if argument in ("-", "") or not argument.startswith("-"):
            return "", argument
        if argument.startswith("--"):
            index += argument == "--check-hash-based-pycs"
            continue
        for position, letter in enumerate(argument[1:], start=1):
            if letter in "mcWX":
                value = argument[position + 1 :] or (argv[index] if index < len(argv) else "")
                if letter in "mc":
                    return letter, value
                index += not argument[position + 1 :]
                break
    return "", ""


def _code_role(code: str) -> Role:
    if code.startswith(_SPAWNED_CODE):
        return "spawned"
    if code.startswith(_WORKER_CODE) or "torch._inductor" in code:
        return "worker"
    # The agent's first stage stands in a command line; the demo's ranks are ranks.
    return "tool" if "mltop" in code and "demo" not in code else "python"


def _module_role(module: str) -> Role:
    if _within(module, _LAUNCHER_MODULES):
        return "launcher"
    if _within(module, _WORKER_MODULES):
        return "worker"
    return "tool" if module == "mltop" or _within(module, _TOOL_MODULES) else "python"


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _is_file_of(path: str, packages: tuple[str, ...]) -> bool:
    """Whether a path is a file of these; only of those within packages: a folder that is called as a top-level package
    may hold anything.
    """
    files = [f"/{package.replace('.', '/')}" for package in packages if "." in package]
    return any(f"{file}/" in path or path.endswith(f"{file}.py") for file in files)


def _script_role(path: str) -> Role:
    name = _basename(path)
    if name in _LAUNCHER_SCRIPTS or _is_file_of(path, _LAUNCHER_MODULES):
        return "launcher"
    if _is_file_of(path, _WORKER_MODULES):
        return "worker"
    if name in _TOOL_SCRIPTS or name.startswith("mltop") or "/.cache/mltop/" in path:
        return "tool"
    return "python"


def _basename(path: str) -> str:
    return path.replace(" (deleted)", "").rpartition("/")[2]
