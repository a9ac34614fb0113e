"""What probe processes ask of torch beside their work: loading it, versions, why it finds no GPU, errors in words."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

from mltop.probes.active import child
from mltop.probes.system import paths
from mltop.probes.system.limits import read_text

_BROKEN = "mltop check; the kernel log has the Xid"
_NO_MEMORY = ("not enough free memory", "end what uses the device")
# (words of the message in lower case, what they mean or "" where the message is clear, what would help)
_MEANINGS = (
    ("not yet initialized", "", "systemctl status nvidia-fabricmanager"),  # CUDA error 802
    ("out of memory", *_NO_MEMORY),
    ("can't allocate memory", *_NO_MEMORY),  # of a machine's own
    ("no kernel image", "this torch is built for other GPUs", "--torch-python with a torch for this GPU"),
    ("built without cuda", "", "--torch-python with a CUDA build of torch"),
    ("no gpu it can use", "", "nvidia-smi; a driver too old for this torch looks like that"),
    ("ecc error", "the GPU's memory failed", _BROKEN),
    ("launch failure", "a kernel was aborted on the GPU", _BROKEN),
    ("illegal memory access", "a kernel was aborted on the GPU", _BROKEN),
    ("illegal instruction", "a kernel was aborted on the GPU", _BROKEN),
    ("busy or unavailable", "the GPU is in exclusive mode or in use", "nvidia-smi -q -d COMPUTE"),
)


class Unusable(Exception):
    """Why nothing can be measured, and what would help."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def in_words(error: BaseException) -> tuple[str, str]:
    """(why, fix) of an exception of torch: its first line, and what is known about such; of Unusable its own."""
    if isinstance(error, Unusable):
        return error.why, error.fix
    text = first_line(error)
    for words, why, fix in _MEANINGS:
        if words in str(error).lower():
            return (f"{why} ({text})" if why else text), fix
    return (f"{_NO_MEMORY[0]} ({text})", _NO_MEMORY[1]) if isinstance(error, MemoryError) else (text, "")


@contextlib.contextmanager
def failures_told(device: str = "") -> Iterator[None]:
    """What nothing can be measured for is an event; what is no error of torch's or of the node goes on."""
    try:
        yield
    except (Unusable, RuntimeError, MemoryError) as error:  # torch's own, out of memory among them
        why, fix = in_words(error)
        child.failed(why, device, fix=fix)


def import_torch(module: str = "torch") -> Any:
    """Raises Unusable."""
    # It says on stderr that there is no numpy; nothing here needs it.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # a broken or foreign torch
        raise Unusable(f"torch does not import: {error}", "--torch-python PATH of one that has torch") from error


def why_no_gpu(torch: Any) -> str:
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # raises what is_available() only warns of
    except (RuntimeError, AssertionError) as error:
        return f"torch {torch.__version__} finds no GPU it can use: {first_line(error)}"
    return f"torch {torch.__version__} finds no GPU it can use"


def versions(torch: Any, driver: str = "", **libraries: str | None) -> dict[str, str]:
    """torch, cuda or hip, the ``libraries``, driver: those that are known. ``driver``: as NVML has it, else the
    kernel module's.
    """
    version_of = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        **libraries,
        "driver": driver or read_text(paths.sys("module", "nvidia", "version")),
    }
    return {name: version for name, version in version_of.items() if version}


def gemm_versions(torch: Any, driver: str) -> dict[str, str]:
    """The versions that a GEMM on a GPU depends on: only results with equal ones are compared. Copies
    need no library.
    """
    try:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    except RuntimeError:  # another cuDNN than torch was built with: no GEMM needs it
        cudnn = None
    loaded = read_text("/proc/self/maps").splitlines()  # proc_pid_maps(5)
    paths_of_it = (line.split(None, 5)[5].strip() for line in loaded if "/libcublas.so" in line)
    cublas = cublas_version(next(paths_of_it, ""))
    return versions(torch, driver, cublas=cublas, cudnn=None if cudnn is None else str(cudnn))


def cublas_version(path: str) -> str:
    """The version of the library that this process has loaded (cublasGetProperty: major, minor, patch), or ""."""
    if not path:
        return ""
    try:
        get_property = ctypes.CDLL(path).cublasGetProperty
    except (OSError, AttributeError):
        return ""
    parts = []
    for which in range(3):
        value = ctypes.c_int()
        if get_property(which, ctypes.byref(value)) != 0:
            return ""
        parts.append(str(value.value))
    return ".".join(parts)
