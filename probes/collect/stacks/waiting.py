"""Where a thread waits for other ranks (or for the GPU): rules as data, matched on normalised frames.

A frame of torch/distributed alone is not a wait: FSDP's and the pipeline schedules' forward, and the
checkpoint writer, stand below user code for most of a step. Nor is one that is called like a collective when it has
called back: a checkpoint's ``all_reduce`` runs the storage's own code before it asks the other ranks. So only frames
above the innermost work count: the user's code, what reads or writes. Whether a source line that calls ``.wait(`` waits
for other ranks is told by what the handle is called.
"""

from __future__ import annotations

import re
from typing import Callable, Optional

from mltop.probes.collect.stacks.frames import last_name
from mltop.probes.model import Frame

C10D = "torch/distributed/distributed_c10d.py"
# The outermost frame's function names the collective: the inner ones were renamed between torch releases.
C10D_NAMES = {
    "_new_process_group_helper": "new_group",
    "_new_group_with_tag": "new_group",
    "_store_based_barrier": "init_process_group",
}

# The launcher's own processes and decorators: they wait for their ranks, not in a collective.
NOT_COLLECTIVE = ("torch/distributed/elastic/", "torch/distributed/run.py", "torch/distributed/launch")

COLLECTIVES = frozenset(
    ["all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall", "barrier"]
)
_MPI = COLLECTIVES | frozenset(["broadcast", "broadcast_object", "allgather_object", "synchronize", "join"])

# What is read, written or planned: a collective may have called it, and what stands below it is no wait then.
_STORAGE = (
    *(
        "torch/distributed/checkpoint/",
        "torch/serialization.py",
        "torch/package/",
        "torch/multiprocessing/reductions.py",
    ),
    *("safetensors/", "fsspec/", "s3fs/", "gcsfs/", "adlfs/", "boto3/", "botocore/", "s3transfer/", "google/cloud/"),
    *("azure/", "pyarrow/", "h5py/", "zarr/", "tensorstore/", "orbax/", "webdataset/", "datasets/", "huggingface_hub/"),
    *("pickle.py", "_compat_pickle.py", "dill/", "cloudpickle/", "json/", "shutil.py", "pathlib.py", "pathlib/"),
    *("zipfile.py", "zipfile/", "tarfile.py", "gzip.py", "bz2.py", "lzma.py", "tempfile.py", "glob.py", "numpy/lib/"),
    *("filelock/", "urllib3/", "requests/", "httpx/", "PIL/"),
)
_IO_WORDS = frozenset({
    "read", "reads", "reader", "write", "writes", "writer", "save", "saves", "load", "loads", "dump", "open", "upload",
    "download", "flush", "validate", "checkpoint",
})  # fmt: skip

# (start of the file's path, functions or None for any, name or None for the outermost function's own)
FRAME_RULES: tuple[tuple[str, frozenset[str] | None, str | None], ...] = (
    ("torch/distributed/rendezvous.py", frozenset({"_create_c10d_store", "rendezvous"}), "rendezvous"),
    ("torch/distributed/_functional_collectives.py", frozenset({"wait_tensor", "trigger_wait", "wait"}), "wait_tensor"),
    ("torch/distributed/pipelining/", frozenset({"_wait_batch_p2p"}), "batch_isend_irecv"),
    ("torch/distributed/_functional_collectives.py", COLLECTIVES | {"broadcast", "all_gather_tensor"}, None),
    (
        "torch/distributed/fsdp/",
        frozenset({"unshard", "_unshard", "wait_for_unshard", "foreach_all_gather", "_wait_unshard_streams"}),
        "fsdp.unshard",
    ),
    (
        "torch/distributed/fsdp/",
        frozenset({"foreach_reduce", "post_backward", "_reduce_grad", "_post_backward_hook"}),
        "fsdp.reduce_grads",
    ),
    ("torch/cuda/__init__.py", frozenset({"synchronize"}), "cuda.synchronize"),
    ("torch/cuda/streams.py", frozenset({"synchronize"}), "cuda.synchronize"),
    ("horovod/", _MPI, None),
    ("deepspeed/comm/", None, None),
    ("", COLLECTIVES, None),  # stand-ins and own wrappers, in any file
)

# Native leaves (py-spy --native). Source: torch's ProcessGroup*, TCPStore and Reducer, the CUDA runtime.
NATIVE_RULES = (
    (re.compile(r"TCPStore.*::(doWait|doGet|wait|get)\b"), "store.wait"),
    (re.compile(r"Reducer::finalize_backward"), "ddp.backward"),
    (re.compile(r"c10d::.*(Work|Recv|Send).*::wait|c10d::Work::wait"), "work.wait"),
    (re.compile(r"cu(da)?(Stream|Device|Event|Ctx)Synchronize"), "cuda.synchronize"),
    (re.compile(r"ncclCommInit"), "new_group"),
)

# The leaf's source line, for waits that leave no frame of their own. Only for leaves in user code.
LINE_RULES = (
    (re.compile(r"\b\w*(?<!re)store\.(wait|get)\(", re.I), "store.wait"),
    (re.compile(r"\bcomm(_world)?\.(all_?reduce|bcast|barrier|all_?gather|all_?to_?all)v?\(", re.I), "mpi"),
)
# Reading a tensor's value waits for the GPU; on a CPU it is plain work.
CUDA_LINE_RULES = ((re.compile(r"\.(item|tolist|cpu)\(\)|\bcuda\.synchronize\("), "cuda.synchronize"),)

# In this order: a quote inside a comment opens no string, and a # inside a string no comment.
_TEXT_OR_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|#.*""")
_WAIT = re.compile(r"\.wait\(")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# What people call a torch.distributed.Work, and the calls that return one.
_HANDLES = frozenset({
    "work", "handle", "req", "request", "fut", "future", "op", "w", "h", "r", "pending", "barrier", "isend", "irecv",
    "send", "recv", "reduce", "allreduce", "gather", "allgather", "scatter", "broadcast", "bcast", "alltoall",
})  # fmt: skip
_NO_HANDLES = frozenset({
    "os", "event", "evt", "cond", "condition", "proc", "process", "popen", "p", "child", "thread", "lock", "queue",
})  # fmt: skip
_CLOSING = {")": "(", "]": "["}

_BEGINS = re.compile(r"\b(isend|irecv|async_op)\b")
_DEFINES = re.compile(r"\s*(?:async )?def ")
_MOST_LINES = 30  # above a wait, where what it waits for may have begun
LineText = Callable[[], Optional[str]]


def waiting_in(frames: list[Frame], leaf_line: LineText, uses_gpu: bool) -> str | None:
    """The collective (or "work.wait", "store.wait", "cuda.synchronize", …) that this stack waits in, or None.

    ``frames`` are leaf first; ``leaf_line`` gives the leaf's source text when it is user code, and is called
    only when the frames alone say nothing.
    """
    python = [frame for frame in frames if not frame.native and not frame.file.startswith(NOT_COLLECTIVE)]
    native = [frame for frame in frames if frame.native]
    called = _above_work(python)
    return _by_c10d(called) or _by_frames(called) or _by_native(native) or _by_line(leaf_line, uses_gpu)


def _above_work(frames: list[Frame]) -> list[Frame]:
    """The frames from the leaf to the innermost work, without it.

    A collective of the user's own (a wrapper, a stand-in for torch's) is work, too: with the helpers that it calls in
    its own file, as far as none of them reads or writes, it counts as what it is called.
    """
    for at, frame in enumerate(frames):
        if frame.user:
            return [*frames[:at], *_own_collective(frames[at:])]
        if frame.file.startswith(_STORAGE):
            return frames[:at]
    return frames


def _own_collective(frames: list[Frame]) -> list[Frame]:
    """``frames`` (from the user's leaf-most one on) up to a collective in the same file; none, if there is no such."""
    for at, frame in enumerate(frames):
        name = last_name(frame.function)
        words = {word.lower() for word in _WORDS.findall(name)}
        if not frame.user or frame.file != frames[0].file or words & _IO_WORDS:
            break
        if name in COLLECTIVES:
            return frames[: at + 1]
    return []


def _by_c10d(frames: list[Frame]) -> str | None:
    for frame in reversed(frames):
        if frame.file == C10D:
            name = last_name(frame.function)
            return C10D_NAMES.get(name, name)
    return None


def _by_frames(frames: list[Frame]) -> str | None:
    for prefix, functions, name in FRAME_RULES:
        for frame in reversed(frames):
            function = last_name(frame.function)
            if frame.file.startswith(prefix) and (functions is None or function in functions):
                return name or function
    # A leaf inside torch.distributed (a collective on its way) that no rule names.
    leaf = frames[0] if frames else None
    if leaf and leaf.file.startswith("torch/distributed/"):
        return last_name(leaf.function)
    return None


def _by_native(frames: list[Frame]) -> str | None:
    """The outermost one that is known: what is below it changes from look to look while one wait lasts."""
    for frame in reversed(frames):
        for pattern, name in NATIVE_RULES:
            if pattern.search(frame.function):
                return name
    return None


def _by_line(leaf_line: LineText, uses_gpu: bool) -> str | None:
    text = leaf_line()
    if not text:
        return None
    code = code_of(text)
    for pattern, name in (*LINE_RULES, *(CUDA_LINE_RULES if uses_gpu else ())):
        match = pattern.search(code)
        if match:
            return str(match.group(2)).lower() if name == "mpi" else name
    # Some ``X.wait(`` has an X that looks like a work handle, or one from the lines above.
    calls = _WAIT.finditer(code)
    return "work.wait" if any(_is_handle(_names_before(code, call.start())) for call in calls) else None


def transfer(line_above: Callable[[int], str | None]) -> str | None:
    """ "irecv" or "isend": what began the transfer that a line waits for, if its function began no collective above it;
    "batch_isend_irecv": both, as its part in either has been handed over then.
    """
    kinds: set[str] = set()
    for above in range(_MOST_LINES):
        code = code_of(line_above(above) or "")
        if above and _DEFINES.match(code):
            break
        kinds.update(_BEGINS.findall(code))
    return None if not kinds or "async_op" in kinds else kinds.pop() if len(kinds) == 1 else "batch_isend_irecv"


def code_of(line: str) -> str:
    """The line without its comment, and with its strings emptied."""
    return _TEXT_OR_COMMENT.sub(lambda found: '""' if found.group(1) else "", line)


def _is_handle(names: list[str]) -> bool:
    if not any(names):  # ").wait()": the call began further up, as that of an async collective does
        return True
    words = [_last_word(name) for name in names]
    return not any(word in _NO_HANDLES for word in words) and any(word in _HANDLES for word in words)


def _last_word(name: str) -> str:
    """``pending_reqs`` → ``req``; ``all_to_all`` and other names of several words come back without "_"."""
    joined = name.lower().replace("_", "")
    if joined in _HANDLES:
        return joined
    words = _WORDS.findall(name)
    last = words[-1].lower() if words else ""
    return last[:-1] if len(last) > 1 and last.endswith("s") and last[:-1] in _HANDLES else last


def _names_before(code: str, end: int) -> list[str]:
    """The names of the dotted expression that ends there: ``self.reqs[pick(i)]`` has self and reqs."""
    open_brackets: list[str] = []
    names, name = [], ""
    for letter in reversed(code[:end]):
        if letter in _CLOSING:
            open_brackets.append(_CLOSING[letter])
        elif open_brackets:
            if letter == open_brackets[-1]:
                open_brackets.pop()
        elif letter.isalnum() or letter == "_":
            name = letter + name
        elif letter == ".":
            names.append(name)
            name = ""
        else:
            break
    return [*names, name]
