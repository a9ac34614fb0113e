"""Known places in which a process looks again and again for something, or sleeps until it is there: for what, and what
to do. And what else a stack says of a process that stands without being to blame: a garbage collection, an event loop
without work, a lock that another thread of it holds.

Such a process wakes up and so looks like one that moves: only its stack says that it gets nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mltop.probes.judge.hang.frames import key_of, last_name, leaf_of, python_frames, user_frame
from mltop.probes.judge.hang.view import RankView
from mltop.probes.model import EVENT_LOOPS, Frame, StackDigest


@dataclass(frozen=True)
class Poll:
    """``what`` is waited for, to be said behind "waits for" or "polls for"; ``advice``: a whole sentence."""

    what: str
    advice: str


@dataclass(frozen=True)
class _Place:
    """``file``: the start of the frame's; ``functions``: last parts of names, None for any; ``below``: the start of
    the file of a frame further out among the library's, "" for none: who it is done for.
    """

    file: str
    functions: frozenset[str] | None
    poll: Poll
    below: str = ""


def _names(*functions: str) -> frozenset[str]:
    return frozenset(functions)


_BUILD = Poll(
    "the lock file of a C++ extension's build",
    "A lock file that a killed build left behind is waited for without end: if no compiler (ninja, nvcc, c++) runs for "
    "it on any node that shares the folder, delete the file `lock` in the extension's build folder "
    "(TORCH_EXTENSIONS_DIR, or ~/.cache/torch_extensions/*/NAME), and it goes on.",
)
_FILE_LOCK = (
    "Look who holds it: `lslocks` on each node that shares the folder. If nobody does, delete the lock file (*.lock): "
    "a killed process left it, or the file system keeps a lock of a node that is gone."
)
_NETWORK = "Look whether this node reaches the server (proxy, name service, firewall), and whether the server is well."
_DOWNLOADS = Poll(
    "the lock file of the Hugging Face cache",
    "Another process downloads or prepares the same files, or one that was killed left the lock: if nothing is "
    "written below HF_HOME (~/.cache/huggingface), delete its *.lock files. " + _FILE_LOCK,
)
_COMPILING = Poll(
    "the compile workers of torch.compile",
    "Look whether compilers run below it (`ps --forest`): a first compilation takes minutes. If none does, restart "
    "with TORCHINDUCTOR_COMPILE_THREADS=1, or delete the cache (TORCHINDUCTOR_CACHE_DIR, /tmp/torchinductor_USER).",
)
_COMPILE_LOCK = Poll(
    "a lock file of torch.compile's cache",
    "Another process compiles the same code, or one that was killed left the lock: if no compiler runs, delete the "
    "locks below TORCHINDUCTOR_CACHE_DIR (/tmp/torchinductor_USER/locks). " + _FILE_LOCK,
)
_ACQUIRE = _names("acquire", "_poll_until_acquired", "_acquire", "__enter__", "_try_acquire", "trylock")
_SLEEPS_FOR_LOCK = Poll("a file lock", _FILE_LOCK)
_HTTP = Poll("an answer over the network", _NETWORK)
_DEBUGGER = Poll(
    "somebody at a debugger's prompt (breakpoint(), pdb)",
    "Answer at the job's terminal; or end the job and take the breakpoint out (PYTHONBREAKPOINT=0 switches those of "
    "breakpoint() off).",
)
_PROGRAM = Poll("a program that it started", "Look what that program does: `ps --forest` shows it below the rank.")

# The most particular ones first. Sources: the packages named.
_PLACES = (
    *(_Place(file, None, _DEBUGGER) for file in ("pdb.py", "bdb.py", "ipdb/", "pudb/", "IPython/core/debugger.py")),
    _Place("torch/utils/file_baton.py", _names("wait"), _BUILD),
    _Place("filelock/", None, _COMPILE_LOCK, below="torch/_inductor/"),
    _Place("filelock/", None, _DOWNLOADS, below="huggingface_hub/"),
    _Place("filelock/", None, _DOWNLOADS, below="datasets/"),
    _Place("filelock/", None, _DOWNLOADS, below="transformers/"),
    _Place("filelock/", _ACQUIRE, _SLEEPS_FOR_LOCK),
    _Place("torch/utils/_filelock.py", _ACQUIRE, _SLEEPS_FOR_LOCK),
    _Place("fasteners/", _ACQUIRE | _names("acquire_read_lock", "acquire_write_lock"), _SLEEPS_FOR_LOCK),
    _Place("portalocker/", _ACQUIRE | _names("_timeout_generator", "lock"), _SLEEPS_FOR_LOCK),
    _Place("oslo_concurrency/", _ACQUIRE | _names("lock"), _SLEEPS_FOR_LOCK),
    _Place("diskcache/recipes.py", _ACQUIRE, _SLEEPS_FOR_LOCK),
    _Place("torch/_inductor/async_compile.py", _names("wait", "_wait_futures", "wait_pool_ready"), _COMPILING),
    _Place("torch/_inductor/compile_worker/", None, _COMPILING),
    _Place("torch/_inductor/codecache.py", _names("result", "wait_for_compile"), _COMPILING),
    _Place(
        "torch/distributed/elastic/rendezvous/",
        None,
        Poll(
            "the rendezvous of torchrun",
            "Not all nodes have come: compare --nnodes with the nodes that were started, and --rdzv-id and "
            "--rdzv-endpoint between them.",
        ),
    ),
    _Place(
        "torch/distributed/elastic/utils/store.py",
        None,
        Poll("the other agents of torchrun in a barrier", "Look on which node the agent does not get there."),
    ),
    _Place("wandb/", None, Poll("Weights & Biases", "WANDB_MODE=offline keeps it out of the training. " + _NETWORK)),
    _Place("mlflow/", None, Poll("the MLflow server", "MLFLOW_ENABLE_ASYNC_LOGGING=true helps. " + _NETWORK)),
    _Place("neptune/", None, Poll("the Neptune server", _NETWORK)),
    _Place("comet_ml/", None, Poll("the Comet server", _NETWORK)),
    _Place("huggingface_hub/", None, Poll("the Hugging Face Hub", "HF_HUB_OFFLINE=1 uses the cache. " + _NETWORK)),
    _Place("botocore/", None, Poll("object storage (S3)", _NETWORK)),
    _Place("google/cloud/storage/", None, Poll("object storage (GCS)", _NETWORK)),
    _Place("azure/storage/", None, Poll("object storage (Azure)", _NETWORK)),
    _Place("fsspec/asyn.py", _names("sync"), Poll("storage that is reached through fsspec", _NETWORK)),
    *(_Place(package, None, _HTTP) for package in ("requests/", "urllib3/", "httpx/", "httpcore/", "aiohttp/")),
    *(_Place(file, None, _HTTP) for file in ("http/client.py", "urllib/request.py")),
    _Place("socket.py", _names("create_connection", "getaddrinfo"), _HTTP),
    _Place("ray/_private/worker.py", _names("get", "wait", "get_objects"), Poll(
        "a result of another Ray task or actor",
        "`ray summary tasks` and `ray summary actors` say what has not run: often no node has the resources.",
    )),
    _Place("subprocess.py", _names("wait", "_wait", "_try_wait", "communicate", "_communicate"), _PROGRAM),
)  # fmt: skip
# What a process sleeps in that has asked the kernel for a lock on a file (flock, fcntl), locally and over NFS.
_KERNEL_LOCKS = re.compile(
    r"(flock|posix)_lock|locks_lock_(inode|file)_wait|do_lock_file_wait|fcntl_setlk|nlmclnt_|setlk"
)

_FILE_CALLS = ("flock", "lockf")  # what StackDigest.acquires says of these
# Of these nothing comes until somebody lets go: who looks for one does no work, however often it wakes up.
_HELD = (_BUILD, _DOWNLOADS, _COMPILE_LOCK, _SLEEPS_FOR_LOCK, _DEBUGGER)


def held_by_others(digests: Sequence[StackDigest]) -> Poll | None:
    """What all dumps of a thread show it to look for, and that only another can let go; None: for no such thing."""
    polls = {known_poll(digest) for digest in digests}
    poll = polls.pop() if len(polls) == 1 else None
    return poll if poll in _HELD else None


def known_poll(digest: StackDigest) -> Poll | None:
    """What the thread polls or sleeps for, known from what its user's line called into, by the line itself and by the
    kernel function that it sleeps in; None when it is no place that we know.
    """
    called = list(_called_by_user(digest.frames))
    for place in _PLACES:
        ats = (at for at, frame in enumerate(called) if frame.file.startswith(place.file))
        at = next((at for at in ats if place.functions is None or last_name(called[at]) in place.functions), None)
        if at is not None and any(frame.file.startswith(place.below) for frame in called[at:]):
            return place.poll
    if digest.acquires in _FILE_CALLS or (digest.wchan and _KERNEL_LOCKS.search(digest.wchan)):
        return _SLEEPS_FOR_LOCK
    return None


_POLLED_IN = tuple(place.file for place in _PLACES)


def _called_by_user(frames: Sequence[Frame]) -> Iterator[Frame]:
    """The Python frames from the leaf to the user's, without it; all, when there is none."""
    user = next((frame for frame in frames if frame.user), None)
    if user is None:  # not marked: then a library that we know is none
        user = user_frame([frame for frame in frames if not frame.file.startswith((*_POLLED_IN, *EVENT_LOOPS))])
    for frame in frames:
        if frame is user:
            return
        if not frame.native:
            yield frame


_COLLECTORS = re.compile(r"\b(_?PyGC_Collect|gc_collect(_\w+)?|collect_with_callback|_PyObject_GC_Link|_Py_RunGC)\b")


def collects_garbage(digest: StackDigest) -> bool:
    """True when Python's garbage collector runs in the thread. Only native frames show it (``--native``)."""
    return any(_COLLECTORS.search(frame.function) for frame in digest.frames if frame.native)


@dataclass(frozen=True)
class LockWait:
    """A thread waits for the lock that its source calls ``lock``. ``holders``: the threads of the same process that
    stand inside of a block of that lock, those that stand still first. Empty: none that has a Python stack does, as
    in a worker that was forked while the lock was held.
    """

    lock: str
    holders: tuple[StackDigest, ...]


def lock_wait(digest: StackDigest, digests: Iterable[StackDigest]) -> LockWait | None:
    """Which lock ``digest``'s thread waits for, and who of ``digests`` (of any processes) holds it; None: for none.

    Told by the lock's name in the source lines (``with self.lock:``), which the node has read.
    """
    if not digest.acquires or digest.acquires in _FILE_CALLS:
        return None
    name = digest.acquires.rpartition(".")[2]
    same = (other for other in digests if (other.node, other.pid) == (digest.node, digest.pid))
    inside = [
        other
        for other in same
        if other.thread != digest.thread and any(held.rpartition(".")[2] == name for held in other.holds)
    ]
    inside.sort(key=lambda other: (other.acquires == digest.acquires, other.state == "R", key_of(other)))
    return LockWait(digest.acquires, tuple(inside))


# Who holds the lock that a rank's main thread waits for: another thread of the rank that stands inside of it. A lock
# has no name. The source lines give one ("self.lock": what the leaf's line asks for, what blocks stand around the
# frames of others); where they could not be read, logging's handlers and the script's own file tell who may hold it.

_LOGGING = "logging/__init__.py"
_HANDLE = (_LOGGING, "handle")
_LOGGING_WAITS = ("acquire", "handle", "_acquireLock")  # where logging asks for a handler's lock, by Python's version
_FUTEX = "futex"  # how the kernel's functions are called that a wait for a lock sleeps in
_EVENT_WAIT = ("threading.py", "wait")  # a thread that waits for an event or for work holds nothing, as a rule


@dataclass(frozen=True)
class Holder:
    """``rounds``: the thread's digests, oldest first. ``sure``: by the lock's name, or by logging's own lock."""

    rounds: list[StackDigest]
    sure: bool


def lock_holder(view: RankView) -> Holder | None:
    """The thread that holds what ``view``'s main thread waits for; None when it waits for no lock, or nobody has it."""
    main = view.now
    leaf, own = leaf_of(main), user_frame(main.frames)
    logs = leaf is not None and leaf.file == _LOGGING and last_name(leaf) in _LOGGING_WAITS
    # In user code and on a futex: ``with lock:`` has no frame of its own.
    if not (main.acquires or logs or (leaf is own and leaf is not None and (main.wchan or "").startswith(_FUTEX))):
        return None
    threads = [rounds for rounds in view.threads() if rounds[-1].frames and not _asks_alike(rounds[-1], main)]
    lock = lock_wait(main, (rounds[-1] for rounds in threads))
    if lock is not None and lock.holders:
        return Holder(next(rounds for rounds in threads if rounds[-1] is lock.holders[0]), True)
    if logs:
        # It is inside of a handler: its stack goes on above ``handle``.
        above = ((rounds, list(python_frames(rounds[-1].frames))[1:]) for rounds in threads)
        writes = (rounds for rounds, frames in above if any((f.file, last_name(f)) == _HANDLE for f in frames))
        writing = next(writes, None)
        return None if writing is None else Holder(writing, True)
    near = [
        rounds
        for rounds in threads
        if own is not None and any(frame.file == own.file for frame in python_frames(rounds[-1].frames))
        if (its := leaf_of(rounds[-1])) is None or (its.file, last_name(its)) != _EVENT_WAIT
    ]
    return Holder(near[0], False) if len(near) == 1 else None


def _asks_alike(thread: StackDigest, main: StackDigest) -> bool:
    """It waits at the same line, or for the same lock."""
    mine, its = leaf_of(main), leaf_of(thread)
    same_line = mine is not None and its is not None and (mine.file, mine.line) == (its.file, its.line)
    return key_of(thread) == key_of(main) or same_line or (bool(main.acquires) and thread.acquires == main.acquires)
