"""Of a rank's environment what changes how a training job runs. An allow-list: everything else is never kept.

Names: NCCL's, PyTorch's, CUDA's, Transformer Engine's, UCX's and libfabric's lists of environment variables, OpenMP.
"""

from __future__ import annotations

from functools import lru_cache

from mltop.probes.collect.ranks.command_line import shown_command
from mltop.probes.collect.ranks.secret_names import is_harmless, names_secret

MAX_SETTINGS = 40
MAX_CHARACTERS = 100

# fmt: off
_NAMES = frozenset((
    "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING", "CUDA_INJECTION64_PATH", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_PRELOAD",
    "MALLOC_ARENA_MAX", "MALLOC_CHECK_", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "PYTHONMALLOC", "PYTHONDEVMODE",
    "PYTHONTRACEMALLOC", "PYTHONFAULTHANDLER", "PYTHONASYNCIODEBUG", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DEBUG", "TORCH_LOGS", "TORCH_SHOW_CPP_STACKTRACES", "TORCH_USE_CUDA_DSA", "TORCHDYNAMO_DISABLE",
    "TP_SOCKET_IFNAME", "FI_PROVIDER", "RDMAV_FORK_SAFE",
))
# fmt: on
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "NSIGHT_", "NVTE_", "GLOO_", "UCX_", "FI_EFA_", "NVSHMEM_", "SHARP_COLL_")
_MARKS = tuple(name.encode() for name in (*_NAMES, *_PREFIXES))


def settings_of(environ: bytes) -> dict[str, str]:
    """The settings in /proc/PID/environ by name, in order; at most 40, values cut at 100 characters."""
    found: dict[str, str] = {}
    for item in environ.split(b"\0"):
        if not item.startswith(_MARKS):
            continue
        raw_name, separator, raw_value = item.partition(b"=")
        name, value = raw_name.decode("utf-8", "replace"), raw_value.decode("utf-8", "replace")
        if separator and (name in _NAMES or name.startswith(_PREFIXES)) and _may_be_shown(name, value):
            found.setdefault(name, _short(value))
    # The well-known names first, when there are too many.
    kept = sorted(found, key=lambda name: (name not in _NAMES, name))[:MAX_SETTINGS]
    return {name: found[name] for name in sorted(kept)}


def _may_be_shown(name: str, value: str) -> bool:
    return not names_secret(name) or is_harmless(name, value)


@lru_cache(maxsize=256)  # ranks have the same ones
def _short(value: str) -> str:
    text = shown_command([value])  # also without tokens and passwords inside of it
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
