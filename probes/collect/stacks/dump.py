"""All ranks of this node at once: counters, dump, digest, children, one answer per rank."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from mltop.probes.collect.ranks import procfs
from mltop.probes.collect.ranks.roles import is_python_name
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.collect.stacks import pyspy
from mltop.probes.collect.stacks.digest import Origin, digest_threads, is_idle_worker, main_thread, places, stack_key
from mltop.probes.collect.stacks.frames import FORKS, LOKY, is_users, python_frames, redact_threads
from mltop.probes.collect.stacks.process import (
    STOPPED,
    ProcessFacts,
    SourceLines,
    activity,
    kernel_ids,
    name_of,
    read_facts,
    read_tasks,
)
from mltop.probes.collect.stacks.pyspy import Failure
from mltop.probes.model import RankSample, RankStacks, StackDigest
from mltop.probes.model.vocabulary import WAITS_FOR_CHILD
from mltop.probes.system import paths

# A rank's own children, two levels down: dataloader, multiprocessing and subprocess workers, other programs.

# multiprocessing's helpers: they never run user code, only their own children may.
_HELPERS = (
    *(f"{name}.{helper}" for name in (*FORKS, "loky.backend") for helper in ("resource_tracker", "forkserver")),
    "torch._inductor.compile_worker",
)

# (start of the file's path, functions or None for any): the parent waits for a child.
CHILD_WAITS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data", "_shutdown_workers"})),
    *((f"{name}/", None) for name in FORKS),
    *((f"{name}/", None) for name in LOKY),
    ("subprocess.py", frozenset({"wait", "_wait", "_try_wait", "communicate", "_communicate"})),
    ("concurrent/futures/_base.py", frozenset({"result", "exception", "wait", "as_completed", "result_iterator"})),
    ("concurrent/futures/process.py", None),
)


def waits_for_child(thread: dict[str, Any]) -> bool:
    """True when the library code above the user's leaf line waits for a child process."""
    for frame, (file, function) in zip(python_frames(thread["frames"]), places(thread)):
        if is_users(frame):
            return False
        if any(file.startswith(start) and (names is None or function in names) for start, names in CHILD_WAITS):
            return True
    return False


@dataclass
class Children:
    """Pids, a rank's own before those of its children. ``others`` are programs that are not Python and have no
    child of their own: a shell waits for what it started.
    """

    python: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)


def children_of(pid: int, seen: list[int]) -> Children:
    """Children and grandchildren of a rank, without multiprocessing's helper processes, oldest first.

    ``seen``: children of earlier; those that have another parent now (a reused pid) are left out.
    """
    own = {*_kernel_children(pid), *(child for child in seen if read_facts(child).parent_pid == pid)}
    below = {child: _kernel_children(child) for child in sorted(own)}
    nested = [grandchild for grandchildren in below.values() for grandchild in grandchildren]
    children = Children()
    for child in [*below, *nested]:
        command = " ".join(procfs.read_argv(paths.proc(), child))
        if any(helper in command for helper in _HELPERS):
            continue
        if _is_python(child, pid):
            children.python.append(child)
        elif name_of(child) and not below.get(child) and not _kernel_children(child):
            children.others.append(child)
    return children


def _kernel_children(pid: int) -> list[int]:
    try:
        return sorted(procfs.read_children(paths.proc(), pid) or [])
    except (*procfs.GONE, PermissionError):
        return []


def _is_python(pid: int, rank_pid: int) -> bool:
    """Told by the executable: the rank's own, or one called python. A zombie has none left: it is told by its name."""
    executable, name = procfs.read_exe(paths.proc(), pid), name_of(pid)
    if executable is None:
        return is_python_name(name) or name == name_of(rank_pid) or name.startswith("pt_data_worker")
    return executable == procfs.read_exe(paths.proc(), rank_pid) or is_python_name(executable)


DEADLINE_S = 3.0  # of one py-spy run; a process whose symbols must be read takes 1 s
_MAX_CHILDREN = 32  # dumped per rank: 16 dataloader workers of two loaders
_MAX_FOREIGN = 8  # told per rank: the newest programs that are not Python

Counters = Callable[[RankSample], Optional[RankSample]]


@dataclass
class StackOptions:
    """``native``: C frames of the leaf too (slower, pauses longer). ``ints``: integer locals. ``raw``: keep
    py-spy's JSON (redacted). ``deadline_s`` is for one py-spy run. ``children``: look
    into a rank's workers.
    """

    native: bool = False
    ints: bool = True
    raw: bool = False
    deadline_s: float = DEADLINE_S
    parallel: int = 8
    children: bool = True


@dataclass
class _Read:
    """One process's threads, or why there are none."""

    origin: Origin
    threads: list[dict[str, Any]] | None = None
    failure: Failure = pyspy.GONE

    @property
    def main(self) -> dict[str, Any] | None:
        return main_thread(self.threads or [], self.origin.inner_pid)

    @property
    def waits_for_child(self) -> bool:
        if self.main is None:
            return False
        return self.origin.digest.wchan == WAITS_FOR_CHILD or waits_for_child(self.main)

    def failed(self, failure: Failure | None = None) -> StackDigest:
        """The digest that says why there is no other."""
        failure = failure or self.failure
        return replace(self.origin.digest, error=failure.error, fix=failure.fix, dead=failure.dead)


def dump_ranks(
    ranks: list[RankSample],
    options: StackOptions,
    counters: Counters,
    emit: Callable[[RankStacks], None],
    cancelled: threading.Event,
) -> None:
    """Dump every rank, ``options.parallel`` at a time, and ``emit`` each as it finishes (one call at a time).

    Returns when all are done, or soon after ``cancelled`` is set; ranks that were cut short are not emitted.
    A rank that cannot be dumped is emitted with a digest that says why. Raises what ``counters`` or ``emit``
    raise.
    """
    if not ranks:
        return
    job = _DumpJob(options, counters, cancelled)
    emitting = threading.Lock()

    def work(rank: RankSample) -> None:
        stacks = job.dump_rank(rank)
        if stacks is not None:
            with emitting:
                emit(stacks)

    workers = max(1, min(options.parallel, len(ranks)))
    import concurrent.futures  # with logging, which it imports, a megabyte of an agent that dumps no stacks

    with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="mltop stacks") as pool:
        running = [pool.submit(work, rank) for rank in ranks]
        try:
            for future in concurrent.futures.as_completed(running):
                future.result()
        finally:
            job.abort.set()  # only matters after an exception: the others must not run on


class _DumpJob:
    """What one call of dump_ranks shares between its threads."""

    def __init__(self, options: StackOptions, counters: Counters, cancelled: threading.Event) -> None:
        self.options = options
        self.abort = threading.Event()
        self._counters = counters
        self._cancelled = cancelled
        self._py_spy = pyspy.find_py_spy()
        self._source = SourceLines()

    def stopped(self) -> bool:
        return self._cancelled.is_set() or self.abort.is_set()

    def dump_rank(self, rank: RankSample) -> RankStacks | None:
        """Dumps one rank; None when it was cancelled on the way."""
        if self.stopped():
            return None
        began, taken_at = time.monotonic(), time.time()
        before = self._counters(rank)
        read = self._read(rank, rank.pid)
        stacks = RankStacks(
            pid=rank.pid,
            rank=rank.rank,
            job=rank.job,
            uid=rank.uid,
            taken_at=taken_at,
            before=before,
            after=self._counters(rank),
        )
        self._add(stacks, read)
        if self.options.children and read.waits_for_child:
            self._add_children(rank, stacks)
        stacks.took_s = time.monotonic() - began
        return None if self.stopped() else stacks

    def _read(self, rank: RankSample, pid: int) -> _Read:
        """py-spy in the mode that fits the process's state; once more without pausing it if that fails."""
        facts = read_facts(pid)
        read = _Read(_origin(rank, facts))
        failure = pyspy.hopeless(facts)
        if failure is None and self._py_spy is None:
            failure = pyspy.missing(pyspy.why_no_py_spy())
        if failure is not None:
            read.failure = failure
            return read
        dump = self._run(pid, nonblocking=facts.must_not_block)
        if dump.threads is None and dump.met_another and self.options.native:
            dump = self._run(pid, nonblocking=facts.must_not_block)
        if dump.threads is None and dump.is_worth_a_retry and not pyspy.hopeless(read_facts(pid)):
            dump = self._run(pid, nonblocking=True)
        read.threads = dump.threads
        if dump.threads is None:
            read.failure = dump.failure(read_facts(pid), self.options.deadline_s)
            return read
        if len(dump.threads) > 1:
            read.origin.tasks = read_tasks(pid)
        _identify(dump.threads, read.origin)
        return read

    def _run(self, pid: int, nonblocking: bool) -> pyspy.Dump:
        # py-spy refuses --native together with --nonblocking: unwinding needs a stopped process.
        switches = {
            "--nonblocking": nonblocking,
            "--locals": self.options.ints,
            "--native": self.options.native and not nonblocking,
        }
        options = [option for option, is_wanted in switches.items() if is_wanted]
        assert self._py_spy is not None
        return pyspy.dump(self._py_spy, pid, options, self.options.deadline_s, cancelled=self.stopped)

    def _add(self, stacks: RankStacks, read: _Read, digest: bool = True) -> None:
        """What was read of one process."""
        pid, ints = read.origin.digest.pid, self.options.ints
        if digest and read.threads is None:
            stacks.digests.append(read.failed())
        if digest and read.threads is not None:
            digests = digest_threads(
                read.threads, read.origin, ints, lambda file, line: self._source.line(pid, file, line)
            )
            no_frame = Failure("no Python frame in any thread (starting up or exiting)")
            stacks.digests += digests or [read.failed(pyspy.free_threaded(pid) or no_frame)]
        if self.options.raw and read.threads is not None:
            stacks.raw.append({"pid": pid, "threads": redact_threads(read.threads, ints)})

    def _add_children(self, rank: RankSample, stacks: RankStacks) -> None:
        children = children_of(rank.pid, rank.children)
        give_up = time.monotonic() + 2 * self.options.deadline_s
        reads: list[_Read] = []
        for pid in children.python[:_MAX_CHILDREN]:
            if self.stopped() or time.monotonic() > give_up:
                break
            reads.append(self._read(rank, pid))
        # Workers that wait for their next index say nothing beside one that works; alone they say it all.
        busy = [read for read in reads if read.main is None or not is_idle_worker(read.main)]
        for read in reads:
            self._add(stacks, read, digest=read in busy or not busy)
        left = children.python[len(reads) :]
        if left:
            not_dumped = Failure(f"{len(left)} children were not dumped, this is the first")
            stacks.digests.append(_Read(_origin(rank, read_facts(left[0]))).failed(not_dumped))
        stacks.digests += [_foreign(rank, pid) for pid in children.others[-_MAX_FOREIGN:]]


def _origin(rank: RankSample, facts: ProcessFacts) -> Origin:
    """``facts``: the rank's, or its child's, read just before the dump."""
    digest = StackDigest(
        rank=rank.rank,
        pid=facts.pid,
        state=facts.state,
        job=rank.job,
        child_of=None if facts.pid == rank.pid else rank.pid,
        wchan=facts.wchan,
        taken_at=time.time(),
    )
    return Origin(digest, facts.inner_pid or facts.pid, uses_gpu=bool(rank.gpus))


def _identify(threads: list[dict[str, Any]], origin: Origin) -> None:
    """Fill in the ids in the process's own namespace where py-spy gives none, or others: of Python <= 3.10 in another
    mount or PID namespace, or read without stopping it.
    """
    known = set(origin.tasks) or {origin.inner_pid}
    unknown = [thread for thread in threads if thread.get("os_thread_id") not in known]
    ids = kernel_ids(origin.digest.pid, (thread["thread_id"] for thread in unknown), known) if unknown else {}
    for thread in unknown:
        thread["os_thread_id"] = ids.get(thread["thread_id"])
    # Python lists its threads newest first.
    if unknown and threads[-1] is unknown[-1] and main_thread(threads, origin.inner_pid) is None:
        threads[-1]["os_thread_id"] = origin.inner_pid


def _foreign(rank: RankSample, pid: int) -> StackDigest:
    """A child that is not Python: what the kernel tells. Its key stays the same while it does not run at all."""
    read = _Read(_origin(rank, read_facts(pid)))
    program = shown_text(name_of(pid)) or "gone"
    digest = replace(read.failed(Failure(f"not Python: {program}")), program=program)
    is_stopped = digest.state in STOPPED  # whoever looks at it moves its counters, too
    digest.key = stack_key(digest.state if is_stopped else activity(pid), [])
    return digest
