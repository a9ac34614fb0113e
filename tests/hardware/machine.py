"""Which machine this is: versions, GPUs, and the Pythons that have what is needed. Asked in children: NVML may hang."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from mltop.probes.version import __version__
from tests.hardware import sources
from tests.hardware.context import Machine, Pythons

ASK_S = 60.0  # nvmlInit without persistence mode
TORCH_S = 180.0  # the first import, from a slow disk

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
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps(dict(torch=torch.__version__, cuda=torch.version.cuda, available=cuda)))
"""


def find_pythons(directory: Path) -> Pythons:
    """This one where it has what is needed, else the next: of the environment, of PATH, of the usual places.

    Where none has nvidia-ml-py, all that is started from now on finds our own copy, in a folder below ``directory``:
    from within its archive it would be compiled, and its source kept in memory, in every process anew.
    """
    found = {path: has(path, "pynvml", "psutil", "torch") for path in candidates()}
    fit = {path: there for path, there in found.items() if there and there[0]}
    torch = next((path for path, there in found.items() if there and there[3]), "")
    mltop = next((path for path, there in fit.items() if there[1] and there[2]), None)
    mltop = mltop or next((path for path, there in fit.items() if there[1]), None)
    if mltop is None:
        mltop = next((path for path, there in fit.items() if there[2]), sys.executable)
        own = directory / "nvidia-ml-py"
        for wheel in WHEELS.glob("nvidia_ml_py-*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(own)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(own)]))
    return Pythons(mltop, torch)


def describe(pythons: Pythons) -> Machine:
    versions: dict[str, str | None] = {
        "mltop": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "host": platform.node(),
    }
    gaps: dict[str, str] = {}
    nvml = ask(pythons.mltop, NVML)
    if isinstance(nvml, str):
        gaps["gpu"] = f"NVML does not answer: {nvml}"
        nvml = {}
    gpus = nvml.pop("gpus", [])
    if not gpus:
        gaps.setdefault("gpu", "NVML lists no GPU")
    torch = ask(pythons.torch, TORCH, timeout_s=TORCH_S) if pythons.torch else "no Python here has torch"
    if isinstance(torch, str):
        gaps["torch"] = torch
        torch = {}
    elif not torch["available"]:
        gaps["torch"] = f"torch {torch['torch']} finds no CUDA GPU"
    module = sources.kernel_module_version()
    versions.update(driver=nvml.get("driver") or module, nvml=nvml.get("nvml"), cuda_driver=nvml.get("cuda_driver"))
    versions.update(pynvml=nvml.get("pynvml"))
    versions.update(torch=torch.get("torch"), cuda=torch.get("cuda"), nvidia_module=module)
    return Machine(versions, gpus, gaps)


def ask(python: str, code: str, *args: str, timeout_s: float = ASK_S) -> Any:
    """The JSON that ``code`` prints as its last line, or in one line why there is none."""
    try:
        done = subprocess.run(
            [python, "-c", code, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return str(error)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode != 0 or not lines:
        return lines[-1] if lines else f"ended with {done.returncode} and no word"
    try:
        return json.loads(lines[-1])
    except ValueError:
        return f"answered {lines[-1]!r}"


def candidates() -> list[str]:
    """The one that MLTOP_GPU_PYTHON names is the only one; it is this one."""
    if os.environ.get("MLTOP_GPU_PYTHON"):
        return [sys.executable]
    folders = [os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    paths = [sys.executable, *(f"{folder}/bin/python" for folder in folders if folder)]
    paths += [shutil.which(name) or "" for name in ("python3", "python")]
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths += [f"{checkout}/.venv-test/bin/python", "/opt/conda/bin/python", "/usr/bin/python3"]
    return [path for path in dict.fromkeys(paths) if path and os.access(path, os.X_OK)]


def has(python: str, *modules: str) -> list[bool]:
    answer = ask(python, HAS, *modules, timeout_s=20)
    return [] if isinstance(answer, str) else answer
