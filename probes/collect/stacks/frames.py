"""From py-spy's frames to normalised ones: short files, integer locals, no decorators."""

from __future__ import annotations

import re
from itertools import takewhile
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

_MAX_NATIVE_FRAMES = 12  # shown
NO_SYMBOL = "??"  # as gdb says
_MAX_SYMBOL_CHARS = 120
_MAX_DEMANGLED_CHARS = 2000  # of what a template may make longer than this, the beginning
_ADDRESS = re.compile(r"0x[0-9a-f]+\Z")
# Rust's hash, gcc's and llvm's copies of a function.
_COMPILERS = re.compile(r"\.(?:cold|part|constprop|isra|llvm|lto_priv|\d)[.\w]*\Z| \[clone .*\Z|::h[0-9a-f]{16}\Z")
# A name in parts: operators whose own name has brackets (also "->"), brackets, anything else.
_ANGLES = re.compile(r"operator(?:<=>|->\*?|<<=?|>>=?|<=?|>=?)|->|[<>]|[^<>o-]+|.")


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
    """py-spy names the shared object of native frames in ``module`` and leaves it null for Python frames, and for
    addresses that belong to no file (compiled on the fly).
    """
    return raw.get("module") is not None or (raw["filename"] == "?" and bool(_ADDRESS.match(raw["name"])))


def python_frames(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leaf first, as they are without ``--native``."""
    return [frame for frame in raw if not is_native(frame)]


def native_leaf(raw: list[dict[str, Any]]) -> list[Frame]:
    """Leaf-first native frames that the innermost Python frame called into (those further out are the interpreter's).

    Neither an address nor the arguments of a template says anything to a reader, and both differ between equal
    processes: they are taken out, and what is then one and the same place stands once. Addresses below a function of
    their own file are not told.
    """
    found: list[Frame] = []
    for frame in takewhile(is_native, raw):
        file = shorten(frame["filename"])
        made = Frame(symbol(frame["name"]), file, frame["line"])
        if not made.native:  # Cython's own Python files
            made.file = f"[{file}]"
        if found and found[-1].function == NO_SYMBOL and found[-1].file == made.file:
            found[-1] = made
        elif not found or made != found[-1]:
            found.append(made)
    return found


def symbol(name: str) -> str:
    """A native function's name without what a compiler added to it; ``NO_SYMBOL`` for an address.

    ``std::future<bool>::get`` → ``std::future::get``; ``poll.part.0`` → ``poll``. Operators keep theirs.
    """
    if _ADDRESS.match(name):
        return NO_SYMBOL
    kept, depth = "", 0
    for token in _ANGLES.findall(_COMPILERS.sub("", name[:_MAX_DEMANGLED_CHARS])):
        depth += (token == "<") - (token == ">")
        if depth == 0 and token != ">":
            kept += token
    return kept.strip(": ")[:_MAX_SYMBOL_CHARS] or NO_SYMBOL


def is_wrapper(frame: Frame) -> bool:
    return (frame.file, last_name(frame.function)) in WRAPPERS


def cut_at_child_root(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leaf-first frames up to and including the worker's entry; all of them when there is none."""
    for index, frame in enumerate(raw):
        if (shorten(frame["filename"]), last_name(frame["name"])) in CHILD_ROOTS:
            return raw[: index + 1]
    return raw


def normalise(raw: list[dict[str, Any]], ints: bool) -> list[Frame]:
    """Leaf-first model frames of one py-spy thread: what its leaf called into below Python, then Python without
    wrappers.
    """
    frames = [
        Frame(
            function=without_tokens(frame["name"]),
            file=without_tokens(shorten(frame["filename"])),
            line=frame["line"],
            ints=integer_locals(frame.get("locals") or []) if ints else {},
        )
        for frame in python_frames(raw)
    ]
    kept = [frame for frame in frames if not is_wrapper(frame)]
    return native_leaf(raw) + (kept or frames)


def without_depth(frames: list[Frame]) -> list[Frame]:
    """With the innermost native frames only."""
    first = next((index for index, frame in enumerate(frames) if not frame.native), len(frames))
    return frames[: min(first, _MAX_NATIVE_FRAMES)] + frames[first:]
