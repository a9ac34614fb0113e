"""What kind of program a process is, told from its executable and command line."""

from __future__ import annotations

import re

PYTHON = "python"  # may be a rank
WORKER = "worker"  # Python's own helper processes: never a rank
LAUNCHER = "launcher"  # starts ranks or wraps one
SHELL = "shell"
TOOL = "tool"  # watches or edits; carries a rank's variables only because it was started in its shell
OTHER = "other"  # may be a rank when no Python process is (an MPI program)

# The kinds that a rank may be, best first.
RANK_ROLES = (PYTHON, OTHER)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS = _words(
    """
    sh bash dash ash zsh ksh mksh fish csh tcsh busybox tmux screen login su sudo script sshd
    """
)

# With the wrappers that stay above what they run.
_LAUNCHERS = _words(
    """
    srun salloc sbatch slurmstepd slurmd slurm_script mpirun mpiexec mpiexec.hydra mpirun_rsh
    orterun orted prun prte prted prterun hydra_pmi_proxy hydra_bstrap_proxy pmi_proxy jsrun aprun
    flux pdsh ssh env numactl taskset nice ionice chrt timeout time stdbuf setsid nohup prlimit
    unshare nsenter chroot xargs parallel conda micromamba mamba pixi uv uvx poetry pipenv hatch
    singularity apptainer starter starter-suid enroot docker podman tini dumb-init docker-init
    catatonit systemd nsys nsys-launcher ncu strace ltrace perf valgrind
    """
)

_TOOLS = _words(
    """
    mltop py-spy pystack gdb nvidia-smi nvtop dcgmi rocm-smi top htop btop atop watch tail less more
    man vi vim nvim nano emacs cat tee git rsync scp wandb-core dstat iostat vmstat pidstat sleep
    """
)

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]*(?:-[0-9.]+)?(?:-dbg)?", re.ASCII)

# Python programs that start ranks: console scripts, and modules run with -m or by path.
_LAUNCHER_SCRIPTS = _words(
    """
    torchrun deepspeed ds accelerate accelerate-launch composer colossalai horovodrun fabric conda
    conda-script.py mamba poetry pipenv hatch
    """
)
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "deepspeed.launcher",
    "accelerate.commands",
    "composer.cli.launcher",
    "conda",
)
_LAUNCHER_FILES = (
    "/torch/distributed/run.py",
    "/torch/distributed/launch.py",
    "/deepspeed/launcher/launch.py",
    "/deepspeed/launcher/runner.py",
    "/accelerate/commands/launch.py",
)
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
_WORKER_FILES = ("/torch/_inductor/compile_worker/__main__.py",)
_WORKER_CODE = ("from multiprocessing.", "from joblib.externals.loky", "from loky.")
_WORKER_NAMES = ("pt_data_worker", "pt_data_pin")  # torch/utils/data/_utils/worker.py names its processes


def role_of(argv: list[str], exe: str | None, comm: str) -> str:
    """The role of a process. ``exe`` is the target of /proc/PID/exe, None when unreadable."""
    names = [_basename(exe)] if exe else []
    names.append(_basename(argv[0].lstrip("-")) if argv else comm)
    if any(map(is_python_name, names)):
        return _python_role(argv, comm)
    for name in names:
        for role, members in ((SHELL, _SHELLS), (LAUNCHER, _LAUNCHERS), (TOOL, _TOOLS)):
            if name in members:
                return role
    return OTHER


def is_python_name(program: str) -> bool:
    """By the name of a program, or its path."""
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


def _python_role(argv: list[str], comm: str) -> str:
    if comm in _WORKER_NAMES:
        return WORKER
    kind, target = python_target(argv)
    if kind == "c":
        return _code_role(target)
    if kind == "m":
        return _module_role(target)
    return _script_role(target)


def _code_role(code: str) -> str:
    if code.startswith(_WORKER_CODE) or "torch._inductor" in code:
        return WORKER
    # The agent's first stage stands in a command line; the demo's ranks are ranks.
    return TOOL if "mltop" in code and "demo" not in code else PYTHON


def _module_role(module: str) -> str:
    if _within(module, _LAUNCHER_MODULES):
        return LAUNCHER
    if _within(module, _WORKER_MODULES):
        return WORKER
    return TOOL if module == "mltop" or _within(module, _TOOL_MODULES) else PYTHON


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _script_role(path: str) -> str:
    name = _basename(path)
    if name in _LAUNCHER_SCRIPTS or path.endswith(_LAUNCHER_FILES):
        return LAUNCHER
    if path.endswith(_WORKER_FILES):
        return WORKER
    if name in _TOOL_SCRIPTS or name.startswith("mltop") or "/.cache/mltop/" in path:
        return TOOL
    return PYTHON


def _basename(path: str) -> str:
    return path.replace(" (deleted)", "").rpartition("/")[2]
