"""From py-spy's frames to normalised ones: short files, integer locals, no decorators."""

from __future__ import annotations

import re
from typing import Any

from mltop.probes.collect.shapes import without_tokens
from mltop.probes.model import Frame

from .redact import integer_locals

_INSTALLED = re.compile(r"/(?:site|dist)-packages/(.+)$")
_STDLIB = re.compile(r"/lib(?:64)?/python3(?:\.\d+t?)?/(?!(?:site|dist)-packages/)(.+)$")
# A source checkout of torch (editable install) keeps the names that the rules match.
_TORCH_CHECKOUT = re.compile(r"/(torch/(?:distributed|nn|utils|cuda|autograd|optim|_dynamo|_inductor)/.+)$")

# (end of the file's path, last part of the function's name): frames that only pass a call on.
# Names are the last part because py-spy prints qualified names from Python 3.11 on and bare ones before.
WRAPPERS = frozenset(
    {
        ("torch/distributed/c10d_logger.py", "wrapper"),
        ("torch/distributed/elastic/multiprocessing/errors/__init__.py", "wrapper"),
        ("torch/utils/_contextlib.py", "decorate_context"),
        ("torch/autograd/grad_mode.py", "decorate_context"),
        ("torch/nn/modules/module.py", "_wrapped_call_impl"),
        ("torch/nn/modules/module.py", "_call_impl"),
        ("torch/optim/optimizer.py", "profile_hook_step"),
        ("torch/_dynamo/eval_frame.py", "_fn"),
        ("torch/_dynamo/eval_frame.py", "compile_wrapper"),
        ("torch/_dynamo/external_utils.py", "inner"),
        ("contextlib.py", "inner"),
        ("deepspeed/utils/nvtx.py", "wrapped_fn"),
        ("deepspeed/comm/comm.py", "log_wrapper"),
    }
)

# A forked worker keeps its parent's frames below these: they say nothing about the worker.
CHILD_ROOTS = frozenset(
    {
        ("torch/utils/data/_utils/worker.py", "_worker_loop"),
        ("multiprocessing/process.py", "run"),
        ("concurrent/futures/process.py", "_process_worker"),
    }
)

_MAX_NATIVE_FRAMES = 12


def last_name(function: str) -> str:
    """``DS.__getitem__`` → ``__getitem__``; ``f.<locals>.wrapper`` → ``wrapper``."""
    return function.rpartition(".")[2]


def shorten(path: str) -> str:
    """The file as a reader knows it: below site-packages or the standard library, else its last two parts."""
    for pattern in (_INSTALLED, _STDLIB, _TORCH_CHECKOUT):
        found = pattern.search(path)
        if found:
            return found.group(1)
    return "/".join(path.rsplit("/", 2)[-2:]).lstrip("/")


def is_user_code(path: str) -> bool:
    """True when the file is neither an installed package nor the standard library nor generated."""
    if path.startswith("<"):
        return False
    return not any(pattern.search(path) for pattern in (_INSTALLED, _STDLIB, _TORCH_CHECKOUT))


def is_native(raw: dict[str, Any]) -> bool:
    """py-spy names the shared object of native frames in ``module`` and leaves it null for Python frames."""
    return raw.get("module") is not None


def calling_part(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Python frames, and only those native frames that the leaf called into (the rest is the interpreter)."""
    python = [index for index, frame in enumerate(raw) if not is_native(frame)]
    first = python[0] if python else len(raw)
    return raw[:first][:_MAX_NATIVE_FRAMES] + [raw[index] for index in python]


def is_wrapper(frame: Frame) -> bool:
    return (frame.file, last_name(frame.function)) in WRAPPERS


def cut_at_child_root(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leaf-first frames up to and including the worker's entry; all of them when there is none."""
    for index, frame in enumerate(raw):
        if (shorten(frame["filename"]), last_name(frame["name"])) in CHILD_ROOTS:
            return raw[: index + 1]
    return raw


def normalise(raw: list[dict[str, Any]], ints: bool) -> list[Frame]:
    """Leaf-first model frames of one py-spy thread, without wrappers."""
    frames = [
        Frame(
            function=without_tokens(frame["name"]),
            file=without_tokens(shorten(frame["filename"])),
            line=frame["line"],
            ints=integer_locals(frame.get("locals") or []) if ints else {},
        )
        for frame in calling_part(raw)
    ]
    kept = [frame for frame in frames if not is_wrapper(frame)]
    return kept or frames
