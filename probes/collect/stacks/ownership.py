"""Whose code a frame is, and its file as a reader knows it: told by the whole path, which only the node has.

The user's is what neither was installed (site-packages, the standard library) nor was generated, nor belongs to a
framework. So a project of theirs that is installed from its checkout (``pip install -e``, ``python -m``) is theirs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_INSTALLED = re.compile(r"/(?:site|dist)-packages/(?:[^/]+\.egg/)?(.+)$")
# Zipped or unpacked beside site-packages: eggs, wheels (pex), what Ray or Spark unpack of them.
_ARCHIVED = re.compile(r"\.(?:egg|whl|pyz)/(?:\.deps/[^/]+/)?(.+)$")
_STDLIB = re.compile(
    r"/(?:lib(?:64)?/(?:python3(?:\.\d+t?)?|pypy3(?:\.\d+)?)|python3\d*\.zip)/(?!(?:site|dist)-packages/)(.+)$"
)
# A source checkout of torch (editable install) keeps the names that the rules match.
_TORCH_CHECKOUT = re.compile(r"/(torch/(?:distributed|nn|utils|cuda|autograd|optim|_dynamo|_inductor)/.+)$")

# What programs write and then run: torch.compile's code (by its folders, and by the names of its files, whose folder
# can be chosen), Triton's, the classes that torch makes for RPC, code that came with a model or a data set.
_GENERATED = re.compile(
    r"/torchinductor_[^/]+/|/[a-z2-7]{2}/c[a-z2-7]{50,52}\.py\Z|/\.triton/|/triton_cache/|/torch_extensions/"
    r"|/_remote_module_\w+\.py\Z|/huggingface/modules/|__autograph_generated_file"
)
# Typed by the user, though not in a file: `python - <<EOF`, cells of notebooks.
_TYPED = re.compile(r"<stdin>\Z|<ipython-input-|/ipykernel_\d+/")

# Packages that somebody else wrote, also where they run from a checkout: people build these from source all the time,
# and what a training script does is told by its own line above theirs. Told by the package, not by a folder's name:
# someone whose home is /home/ray or whose project lies in jax/ is no framework.
_FRAMEWORKS = frozenset({
    "torch", "torchvision", "torchaudio", "torchdata", "torchrec", "functorch", "fbgemm_gpu", "torch_xla", "torch_npu",
    "intel_extension_for_pytorch", "megatron", "deepspeed", "lightning", "lightning_fabric", "pytorch_lightning",
    "transformers", "accelerate", "diffusers", "peft", "trl", "huggingface_hub", "vllm", "sglang", "jax", "jaxlib",
    "flax", "optax", "orbax", "tensorflow", "keras", "transformer_engine", "flash_attn", "triton", "horovod",
    "colossalai", "fairscale", "bitsandbytes", "xformers", "tensorrt_llm", "mpi4py", "numpy", "scipy", "wandb",
})  # fmt: skip
# Names that people give packages of their own, too: in a project's checkout it lies in one of these, or in its own.
_COMMON_NAMES = frozenset({"datasets", "ray", "apex", "composer", "nemo", "haiku"})
_SOURCES = ("src", "python")
_WITHOUT_INIT = frozenset({"megatron", "orbax"})  # whose outermost folder has no __init__.py


def short_file(frame: dict[str, Any]) -> str:
    """The file of py-spy's frame below site-packages, the standard library or a framework's checkout, else its last two
    parts.
    """
    return _known(frame["filename"], frame.get("short_filename"))[0]


def is_users(frame: dict[str, Any]) -> bool:
    """Whether the frame (of Python, as py-spy has it) is the user's code."""
    return _known(frame["filename"], frame.get("short_filename"))[1]


@lru_cache(maxsize=4096)  # asked for every frame, while jobs share some hundred files
def _known(path: str, in_package: str | None) -> tuple[str, bool]:
    """(short file, is the user's). ``in_package``: py-spy's ``short_filename``, the path below the innermost folder
    without an ``__init__.py``.
    """
    users = "/".join(path.rsplit("/", 2)[-2:]).lstrip("/")
    if path.startswith("<") or _TYPED.search(path):
        return users, bool(_TYPED.search(path))
    for pattern in (_INSTALLED, _STDLIB, _ARCHIVED):
        match = pattern.search(path)
        if match:
            return match.group(1), False
    if _GENERATED.search(path):
        return users, False
    framework = _in_framework(path, in_package)
    return framework or users, framework is None


def _in_framework(path: str, in_package: str | None) -> str | None:
    """``deepspeed/comm/comm.py`` of a checkout's file, None of one that is in none."""
    checkout = _TORCH_CHECKOUT.search(path)
    if checkout:
        return checkout.group(1)
    if not in_package or not path.endswith("/" + in_package):
        return None
    package, is_below, _ = in_package.partition("/")
    outer = path[: -len(in_package)].rstrip("/").rpartition("/")[2]
    if not is_below:
        return None
    if package in _FRAMEWORKS or (package in _COMMON_NAMES and outer.lower() in (*_SOURCES, package)):
        return in_package
    return f"{outer}/{in_package}" if outer in _WITHOUT_INIT else None
