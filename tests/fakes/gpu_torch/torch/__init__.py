"""A torch whose CUDA GPUs are those of the fake NVML's scenario."""

from __future__ import annotations

from torch import cuda, version

__version__ = version.__version__
__all__ = ["cuda", "version"]
