"""Which machine this is: versions, GPUs, and the Pythons that have what is needed. Asked in children: NVML may hang."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mltop.probes.version import __version__
from tests.hardware import sources
from tests.hardware.context import CHECKOUT, Machine, Pythons

ASK_S = 60.0  # nvmlInit without persistence mode
TORCH_S = 180.0  # for the first time, from a disk of the network
NO_TORCH = "no Python here has torch: MLTOP_GPU_PYTHON=/path/to/python names one that has"

# nvidia-ml-py as it is published: for machines on which no Python has one, and nothing may be installed.
WHEELS = Path(__file__).with_name("wheels")
HAS = """
import json, sys
from importlib.util import find_spec
print(json.dumps([sys.version_info >= (3, 10), *(find_spec(name) is not None for name in sys.argv[1:])]))
"""
NVML = """
import json, pynvml
from importlib.metadata import PackageNotFoundError, version
def text(value): return value.decode() if isinstance(value, bytes) else value
def ask(call, *args):
    try: return text(call(*args))
    except pynvml.NVMLError: return None
def bindings():
    try: return version("nvidia-ml-py")
    except PackageNotFoundError: return None
pynvml.nvmlInit()
cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
gpus = []
for index in range(pynvml.nvmlDeviceGetCount()):
    found = dict(index=index, uuid=None, name="", serial=None)
    try: handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError: pass
    else: found.update(uuid=ask(pynvml.nvmlDeviceGetUUID, handle), serial=ask(pynvml.nvmlDeviceGetSerial, handle),
                       name=ask(pynvml.nvmlDeviceGetName, handle) or "")
    gpus.append(found)
print(json.dumps(dict(
    pynvml=bindings(), driver=ask(pynvml.nvmlSystemGetDriverVersion), nvml=ask(pynvml.nvmlSystemGetNVMLVersion),
    cuda_driver=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}", gpus=gpus,
)))
"""
TORCH = """
import json, platform, torch
cuda = torch.cuda.is_available()
found = dict(torch=torch.__version__, cuda=torch.version.cuda, available=cuda, torch_python=platform.python_version())
print(json.dumps(found))
"""
# In the Python that an mltop runs in. Its package is a namespace: only what is in it has a place.
MLTOP = """
import json, os, platform, sys
from importlib.util import find_spec
found = find_spec("mltop") and find_spec("mltop.probes")
missing = [name for name in sys.argv[1:] if find_spec(name) is None]
version = package = None
if found:
    package = os.path.dirname(os.path.dirname(found.origin))
    from mltop.probes.version import __version__ as version
print(json.dumps(dict(package=package, version=version, python=platform.python_version(), missing=missing)))
"""
NEEDS = ("click", "msgspec", "rich", "textual", "ClusterShell", "psutil", "pynvml")
# The first line of a script; where the path of its Python has spaces or is long, the second.
_FIRST_LINE = re.compile(r"#!\s*(/\S*python[\d.]*)\s")
_SECOND_LINE = re.compile(r"#!/bin/sh\n'''exec' [\"']?(/[^\n\"']*python[\d.]*)[\"']?\s")
HOW = "MLTOP=/path/to/mltop bash tests/gpu …, or python3 -m venv .venv && .venv/bin/pip install . in this checkout"


def find_pythons(directory: Path) -> Pythons:
    """The mltop to test with its Python, and a Python with torch, which may be another one.

    Where mltop's has no nvidia-ml-py, all that is started from now on finds our own copy, in a folder below
    ``directory``: from within its archive it would be compiled, and its source kept in memory, in every process anew.
    """
    program = find_program()
    found = {path: has(path, "pynvml", "psutil", "torch") for path in candidates()}
    with_torch = [path for path, there in found.items() if there and there[3]]
    if isinstance(program, Program):
        return Pythons(program.python, first_with_gpu(with_torch), program.path, program.package)
    fit = {path: there for path, there in found.items() if there and there[0]}
    mltop = next((path for path, there in fit.items() if there[1] and there[2]), None)
    mltop = mltop or next((path for path, there in fit.items() if there[1]), None)
    if mltop is None:
        mltop = next((path for path, there in fit.items() if there[2]), sys.executable)
        own = directory / "nvidia-ml-py"
        for wheel in WHEELS.glob("nvidia_ml_py-*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(own)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(own)]))
    return Pythons(mltop, first_with_gpu(with_torch), package=str(CHECKOUT / ".dev/mltop"), no_program=program)


@dataclass(frozen=True)
class Program:
    """An mltop that can be started: the script, the Python that it names, the package that is found there."""

    path: str
    python: str
    package: str


def find_program() -> Program | str:
    """The one that MLTOP names, else the first of those beside us that can be started; or why there is none.

    Beside us: in the environment of this Python, in the active one, in the checkout's, on PATH.
    """
    named = os.environ.get("MLTOP")
    if named:
        paths = [shutil.which(named) or named]
    else:
        folders = [sys.prefix, os.environ.get("VIRTUAL_ENV", ""), CHECKOUT / ".venv", CHECKOUT / ".venv-test"]
        beside = [shutil.which("mltop", path=f"{folder}/bin") for folder in folders if folder]
        paths = [path for path in dict.fromkeys([*beside, shutil.which("mltop")]) if path]
    why = []
    for path in paths:
        found = program_at(path)
        if isinstance(found, Program):
            return found
        why.append(f"{path}: {found}")
    return f"no mltop can be started here ({'; '.join(why) or 'none is installed'}): {HOW}"


def program_at(path: str) -> Program | str:
    """Or why it cannot be started."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return error.strerror or str(error)
    named = _FIRST_LINE.match(text) or _SECOND_LINE.match(text)
    if named is None or not os.access(path, os.X_OK):
        return "it is no script of a Python environment"
    told = ask(named[1], MLTOP, *NEEDS)
    if isinstance(told, str):
        return f"{named[1]}: {told}"
    if told["missing"] or not told["package"]:
        return f"{named[1]} has no {', '.join(told['missing']) or 'mltop'}"
    return Program(path, named[1], told["package"])


def first_with_gpu(pythons: list[str]) -> str:
    """The first whose torch finds a GPU, else the first."""
    for python in pythons:
        told = ask_torch(python)
        if not isinstance(told, str) and told["available"]:
            return python
    return pythons[0] if pythons else ""


@lru_cache
def ask_torch(python: str) -> Any:
    return ask(python, TORCH, timeout_s=TORCH_S)


def describe(pythons: Pythons) -> Machine:
    versions: dict[str, str | None] = {"kernel": platform.release(), "host": platform.node()}
    gaps: dict[str, str] = {}
    if pythons.no_program:
        gaps["mltop"] = pythons.no_program
    elif has(pythons.mltop, "pyte")[1:] != [True]:
        gaps["pyte"] = f"pyte, which reads what a terminal shows, is missing: {pythons.mltop} -m pip install pyte"
    mltop = ask(pythons.mltop, MLTOP)
    if isinstance(mltop, dict):
        versions.update(mltop=mltop["version"] or __version__, python=mltop["python"])
    nvml = ask(pythons.mltop, NVML)
    if isinstance(nvml, str):
        gaps["gpu"] = f"NVML does not answer: {nvml}"
        nvml = {}
    gpus = nvml.pop("gpus", [])
    if not gpus:
        gaps.setdefault("gpu", "NVML lists no GPU")
    torch = ask_torch(pythons.torch) if pythons.torch else NO_TORCH
    if isinstance(torch, str):
        gaps["torch"] = torch
        torch = {}
    elif not torch["available"]:
        gaps["torch"] = f"torch {torch['torch']} finds no CUDA GPU: MLTOP_GPU_PYTHON=/path/to/python names another"
    module = sources.kernel_module_version()
    versions.update(driver=nvml.get("driver") or module, nvml=nvml.get("nvml"), cuda_driver=nvml.get("cuda_driver"))
    versions.update(pynvml=nvml.get("pynvml"))
    versions.update({name: torch.get(name) for name in ("torch", "cuda", "torch_python")}, nvidia_module=module)
    return Machine(versions, gpus, gaps)


def ask(python: str, code: str, *args: str, timeout_s: float = ASK_S) -> Any:
    """The JSON that ``code`` prints as its last line, or in one line why there is none."""
    try:
        done = sources.run_for(timeout_s, [python, "-c", code, *args])
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return str(error)
    if done.returncode != 0:
        return sources.last_words(done.stderr) or f"ended with {done.returncode} and no word"
    lines = done.stdout.strip().splitlines()
    if not lines:
        return "ended without a word"
    try:
        return json.loads(lines[-1])
    except ValueError:
        return f"answered {lines[-1]!r}"


def candidates() -> list[str]:
    """Pythons that may have torch. The one that MLTOP_GPU_PYTHON names is the only one; it is this one.

    Of all PATH: an environment that is active hides the Python with torch behind it.
    """
    if os.environ.get("MLTOP_GPU_PYTHON"):
        return [sys.executable]
    folders = [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    paths = [sys.executable, *(f"{folder}/bin/python" for folder in folders)]
    paths += [f"{folder}/{name}" for folder in os.get_exec_path() for name in ("python3", "python")]
    paths += [f"{CHECKOUT}/.venv/bin/python", f"{CHECKOUT}/.venv-test/bin/python"]
    found: dict[tuple[str, str], str] = {}
    for path in [*paths, "/opt/conda/bin/python", "/usr/bin/python3"]:
        if os.access(path, os.X_OK):  # an environment is where it lies, whatever its Python is a link to
            found.setdefault((os.path.realpath(os.path.dirname(path)), os.path.realpath(path)), path)
    return list(found.values())


def has(python: str, *modules: str) -> list[bool]:
    answer = ask(python, HAS, *modules, timeout_s=20)
    return [] if isinstance(answer, str) else answer
