"""What probe processes ask of torch beside their work: loading it, versions, why it finds no GPU."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from mltop.probes import paths
from mltop.probes.active.torch_errors import first_line


class Unusable(Exception):
    """Why nothing can be measured, and what would help."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix


def import_torch() -> Any:
    """Raises Unusable."""
    # It says on stderr that there is no numpy; nothing here needs it.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # a broken or foreign torch
        raise Unusable(f"torch does not import: {error}", "--torch-python PATH of one that has torch") from error


def versions(torch: Any) -> dict[str, str]:
    """torch, cuda or hip, driver: those that are known. Copies depend on no library."""
    found = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "driver": driver(),
    }
    return {name: version for name, version in found.items() if version}


def why_no_gpu(torch: Any) -> str:
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # raises what is_available() only warns of
    except (RuntimeError, AssertionError) as error:
        return f"torch {torch.__version__} finds no GPU it can use: {first_line(error)}"
    return f"torch {torch.__version__} finds no GPU it can use"


def driver() -> str:
    """Version of the kernel module, "" where there is none. For who does without NVML."""
    try:
        with open(paths.sys("module", "nvidia", "version"), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
