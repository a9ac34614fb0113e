"""Of a rank's environment what changes how a training job runs. An allow-list: everything else is never kept.

Kept are the variables of ``NAMES`` and those that begin with one of ``PREFIXES``, unless their name sounds as if they
held a secret; of their values the plain words, paths, addresses and GPUs' UUIDs (``shapes.is_plain``), the rest is
``***``. ``probes/record/`` and README list the names.

Names: NCCL's, PyTorch's, CUDA's, Transformer Engine's, UCX's and libfabric's lists of environment variables, OpenMP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from mltop.probes.collect.ranks.secret_names import is_harmless, names_secret
from mltop.probes.collect.ranks.values import shown_path, shown_url
from mltop.probes.collect.shapes import HIDDEN, UUID, is_plain, masked

MAX_SETTINGS = 40
MAX_CHARACTERS = 100
_LOOKED_AT = 1000  # characters of a value

# fmt: off
NAMES = frozenset((
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
PREFIXES = ("NCCL_", "TORCH_NCCL_", "NSIGHT_", "NVTE_", "GLOO_", "UCX_", "FI_EFA_", "NVSHMEM_", "SHARP_COLL_")
_MARKS = tuple(name.encode() for name in (*NAMES, *PREFIXES))
_NAME = re.compile("[\\w\ufffd]{1,64}")
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s,;|]*")
_DEVICE = re.compile(rf"(?:GPU-|MIG-)+{UUID.pattern}(?:/\d+)*")
# Between the words of such values: "mlx5_0:1,mlx5_1", "^lo,docker0", "expandable_segments:True", "{0:4},{4:4}".
_WORD = re.compile(r"[^\s,;:|^=(){}\[\]]+")


def settings_of(environ: bytes) -> dict[str, str]:
    """The settings in /proc/PID/environ by name, in order; at most 40, values cut at 100 characters."""
    found: dict[str, str] = {}
    for item in environ.split(b"\0"):
        if item.startswith(_MARKS) and b"=" in item:
            raw_name, _, raw_value = item.partition(b"=")
            value = raw_value[: 4 * _LOOKED_AT].decode("utf-8", "replace")
            found.setdefault(raw_name.decode("utf-8", "replace"), value)
    return shown_settings(found)


def shown_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Of these variables those that may be shown, with as much of their values as may be."""
    found = {
        name: _shown(value if len(value) <= _LOOKED_AT else value[:_LOOKED_AT] + "…")
        for name, value in variables.items()
        if (name in NAMES or name.startswith(PREFIXES)) and _may_be_shown(name, value)
    }
    # The well-known names first, when there are too many.
    kept = sorted(found, key=lambda name: (name not in NAMES, name))[:MAX_SETTINGS]
    return {name: found[name] for name in sorted(kept)}


def _may_be_shown(name: str, value: str) -> bool:
    return bool(_NAME.fullmatch(name)) and is_plain(name) and (not names_secret(name) or is_harmless(name, value))


@lru_cache(maxsize=256)  # ranks have the same ones
def _shown(value: str) -> str:
    text = " ".join(masked(value).split())
    text = shown_url(text) if _URL.fullmatch(text) else _WORD.sub(lambda found: _shown_word(found[0]), text)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def _shown_word(word: str) -> str:
    return word if is_plain(word) or _DEVICE.fullmatch(word) else shown_path(word) or HIDDEN
