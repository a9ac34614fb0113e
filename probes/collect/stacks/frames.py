"""From py-spy's frames to normalised ones (short files, integer locals, no decorators), and what of them may leave.

Of texts no tokens leave the node, of local variables some integers: when the name matters to the verdict (loop and step
counters, sizes, ranks) and there are fewer than ten digits, when it is small, and, with up to twelve digits, when it
counts steps; never when its name sounds like a secret's.

A frame's code is the user's when it was neither installed (site-packages, the standard library) nor generated and is of
no framework: the whole path says it, which only the node has. So a project of theirs that is installed from its
checkout (``pip install -e``, ``python -m``) is theirs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import takewhile
from typing import Any, Callable

from mltop.probes.collect.redaction.values import is_harmless, mentions_secret, names_secret, shown_text, without_tokens
from mltop.probes.model import Frame
from mltop.probes.model.local_names import meaning_of

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

# multiprocessing, and its copies: of pathos and Hugging Face datasets, of celery.
FORKS = ("multiprocessing", "multiprocess", "billiard")
LOKY = ("loky", "joblib/externals/loky")

# A forked worker keeps its parent's frames below these: they say nothing about the worker.
CHILD_ROOTS = frozenset(
    {
        ("torch/utils/data/_utils/worker.py", "_worker_loop"),
        ("concurrent/futures/process.py", "_process_worker"),
        *((f"{name}/process_executor.py", "_process_worker") for name in LOKY),
        ("billiard/pool.py", "workloop"),
        *((f"{name}/process.py", "run") for name in FORKS),
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

# py-spy prints a Python int as its digits; bool is "True", a string is quoted, a huge int is "+bigint".
# It prints the float 1.0 as "1", so a whole float passes as an integer: harmless, and not distinguishable.
_INTEGER = re.compile(r"-?[0-9]{1,20}\Z")
_SMALL = 1000
_MOST_DIGITS = 9
_MOST_DIGITS_OF_STEPS = 12  # a step a microsecond for eleven days; numbers of cards have more
# Of py-spy's threads, frames and locals: not the command line (process_info), nor what later versions may add.
_OF_THREAD = ("pid", "thread_id", "thread_name", "os_thread_id", "active", "owns_gil")
_OF_FRAME = ("name", "filename", "module", "short_filename", "line", "is_entry", "is_shim_entry")
_OF_LOCAL = ("name", "addr", "arg", "repr")


def last_name(function: str) -> str:
    """``DS.__getitem__`` → ``__getitem__``; ``f.<locals>.wrapper`` → ``wrapper``."""
    return function.rpartition(".")[2]


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
    frames: list[Frame] = []
    for frame in takewhile(is_native, raw):
        file = short_file(frame)
        leaf = Frame(symbol(frame["name"]), file, frame["line"])
        if not leaf.native:  # Cython's own Python files
            leaf.file = f"[{file}]"
        if frames and frames[-1].function == NO_SYMBOL and frames[-1].file == leaf.file:
            frames[-1] = leaf
        elif not frames or leaf != frames[-1]:
            frames.append(leaf)
    return frames


def symbol(name: str) -> str:
    """A native function's name without what a compiler added to it; ``NO_SYMBOL`` for an address.

    ``std::future<bool>::get`` → ``std::future::get``; ``poll.part.0`` → ``poll``. Operators keep theirs.
    """
    if _ADDRESS.match(name):
        return NO_SYMBOL
    plain, depth = "", 0
    for token in _ANGLES.findall(_COMPILERS.sub("", name[:_MAX_DEMANGLED_CHARS])):
        depth += (token == "<") - (token == ">")
        if depth == 0 and token != ">":
            plain += token
    return plain.strip(": ")[:_MAX_SYMBOL_CHARS] or NO_SYMBOL


def cut_at_child_root(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leaf-first frames up to and including the worker's entry; all of them when there is none."""
    for index, frame in enumerate(raw):
        if (short_file(frame), last_name(frame["name"])) in CHILD_ROOTS:
            return raw[: index + 1]
    return raw


def normalise(raw: list[dict[str, Any]], ints: bool) -> list[Frame]:
    """Leaf-first model frames of one py-spy thread: what its leaf called into below Python, then Python without
    wrappers.
    """
    frames = [
        Frame(
            function=without_tokens(frame["name"]),
            file=without_tokens(short_file(frame)),
            line=frame["line"],
            ints=integer_locals(frame.get("locals") or []) if ints else {},
            user=is_users(frame),
        )
        for frame in python_frames(raw)
    ]
    calling = [frame for frame in frames if (frame.file, last_name(frame.function)) not in WRAPPERS]
    return native_leaf(raw) + (calling or frames)


def without_depth(frames: list[Frame]) -> list[Frame]:
    """The frames with the innermost native ones only."""
    first = next((index for index, frame in enumerate(frames) if not frame.native), len(frames))
    return frames[: min(first, _MAX_NATIVE_FRAMES)] + frames[first:]


def looks_secret(name: str) -> bool:
    """``api_key``, ``hfToken`` and ``PIN`` do; ``num_tokens``, ``spin`` and ``keys_seen`` do not."""
    return names_secret(name) and not is_harmless(name, "0")


def may_leave(name: str, digits: str) -> bool:
    """Whether the integer ``digits`` in a local of this name is kept."""
    if looks_secret(name) or without_tokens(name) != name:
        return False
    meaning, length = meaning_of(name), len(digits.lstrip("-"))
    if abs(int(digits)) < _SMALL:
        return True
    if length > _MOST_DIGITS:
        return meaning == "step" and length <= _MOST_DIGITS_OF_STEPS and not mentions_secret(name)
    return meaning != "other"


def integer_locals(raw: list[dict[str, Any]]) -> dict[str, int]:
    """Name → value of py-spy's locals that may leave the node. Source: py-spy ``dump --locals --json``."""
    return {local["name"]: int(local["repr"]) for local in raw if _is_kept(local)}


def _is_kept(local: dict[str, Any]) -> bool:
    text = local.get("repr")
    return isinstance(text, str) and bool(_INTEGER.match(text)) and may_leave(local["name"], text)


def redact_threads(threads: list[dict[str, Any]], ints: bool) -> list[dict[str, Any]]:
    """py-spy's threads with nothing but what is known to be harmless; ``ints``: and the integers that may leave."""
    return [
        {
            **_texts(_only(thread, _OF_THREAD), shown_text),
            "frames": [
                {
                    **_texts(_only(frame, _OF_FRAME), without_tokens),
                    "locals": [
                        _only(local, _OF_LOCAL) for local in frame.get("locals") or [] if ints and _is_kept(local)
                    ],
                }
                for frame in thread["frames"]
            ],
        }
        for thread in threads
    ]


def _only(entry: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: entry[name] for name in names if name in entry}


def _texts(entry: dict[str, Any], clean: Callable[[str], str]) -> dict[str, Any]:
    return {name: clean(value) if isinstance(value, str) else value for name, value in entry.items()}
