"""All ranks of this node at once: counters, dump, digest, children, one answer per rank."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.collect.stacks import pyspy
from mltop.probes.collect.stacks.children import children_of, waits_for_child
from mltop.probes.collect.stacks.digest import Origin, digest_threads, is_idle_worker, main_thread, stack_key
from mltop.probes.collect.stacks.frames import redact_threads
from mltop.probes.collect.stacks.process import (
    STOPPED,
    ProcessFacts,
    SourceLines,
    activity,
    name_of,
    read_facts,
    read_tasks,
)
from mltop.probes.collect.stacks.pyspy import Failure
from mltop.probes.model import RankSample, RankStacks, StackDigest

_MAX_CHILDREN = 32  # dumped per rank: 16 dataloader workers of two loaders
_MAX_FOREIGN = 8  # told per rank: the newest programs that are not Python

Counters = Callable[[RankSample], Optional[RankSample]]


@dataclass
class StackOptions:
    """``native``: C frames of the leaf too (slower, pauses longer). ``ints``: integer locals. ``raw``: keep
    py-spy's JSON (redacted). ``deadline_s`` is for one py-spy run; ``children``: look into a rank's workers.
    """

    native: bool = False
    ints: bool = True
    raw: bool = False
    deadline_s: float = 3.0
    parallel: int = 8
    children: bool = True


@dataclass
class _Read:
    """One process's threads, or why there are none. ``facts`` are those from just before the dump."""

    facts: ProcessFacts
    taken_at: float
    threads: list[dict[str, Any]] | None = None
    failure: Failure | None = None
    cancelled: bool = False


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
        """None when it was cancelled on the way."""
        if self.stopped():
            return None
        began = time.monotonic()
        before = self._counters(rank)
        read = self._read_process(rank.pid)
        after = self._counters(rank)
        stacks = RankStacks(
            pid=rank.pid,
            rank=rank.rank,
            job=rank.job,
            uid=rank.uid,
            taken_at=read.taken_at,
            before=before,
            after=after,
        )
        stacks.digests = self._digests(rank, read, child_of=None)
        self._keep_raw(stacks, read)
        if self.options.children and read.threads is not None:
            self._add_children(rank, read, stacks)
        stacks.took_s = time.monotonic() - began
        return None if self.stopped() else stacks

    def _read_process(self, pid: int) -> _Read:
        """py-spy in the mode that fits the process's state; once more without pausing it if that fails."""
        facts = read_facts(pid)
        read = _Read(facts, time.time(), failure=pyspy.hopeless(facts))
        if read.failure is None and self._py_spy is None:
            read.failure = pyspy.missing(pyspy.why_no_py_spy())
        if read.failure is not None:
            return read
        dump = self._run(pid, nonblocking=facts.must_not_block)
        if dump.threads is None and not dump.cancelled and _worth_a_retry(dump, read_facts(pid)):
            dump = self._run(pid, nonblocking=True)
        read.threads, read.cancelled = dump.threads, dump.cancelled
        if dump.threads is None:
            now = read_facts(pid)
            late = dump.timed_out
            read.failure = pyspy.deadline(now, self.options.deadline_s) if late else pyspy.classify(dump.stderr, now)
        return read

    def _run(self, pid: int, nonblocking: bool) -> pyspy.Dump:
        options = self.options
        # py-spy refuses --native together with --nonblocking: unwinding needs a stopped process.
        native = options.native and not nonblocking
        assert self._py_spy is not None
        mode = pyspy.Mode(nonblocking, with_locals=options.ints, native=native)
        return pyspy.dump(self._py_spy, pid, mode, options.deadline_s, cancelled=self.stopped)

    def _digests(self, rank: RankSample, read: _Read, child_of: int | None) -> list[StackDigest]:
        origin = _origin(rank, read, child_of)
        if read.threads is None:
            failure = read.failure or pyspy.GONE
            return [_failed(origin, failure)]
        pid = read.facts.pid
        found = digest_threads(
            read.threads, origin, self.options.ints, lambda file, line: self._source.line(pid, file, line)
        )
        return found or [_failed(origin, Failure("no Python frame in any thread (starting up or exiting)"))]

    def _keep_raw(self, stacks: RankStacks, read: _Read) -> None:
        if self.options.raw and read.threads is not None:
            redacted = redact_threads(read.threads, self.options.ints)
            stacks.raw.append({"pid": read.facts.pid, "threads": redacted})

    def _add_children(self, rank: RankSample, read: _Read, stacks: RankStacks) -> None:
        main = main_thread(read.threads or [], read.facts.inner_pid)
        if main is None or not waits_for_child(main):
            return
        children = children_of(rank.pid, rank.children)
        pids = children.python
        give_up = time.monotonic() + 2 * self.options.deadline_s
        reads: list[_Read] = []
        for pid in pids[:_MAX_CHILDREN]:
            if self.stopped() or time.monotonic() > give_up:
                break
            reads.append(self._read_process(pid))
        for child in _without_idle(reads):
            stacks.digests += self._digests(rank, child, child_of=rank.pid)
        for child in reads:
            self._keep_raw(stacks, child)
        if len(reads) < len(pids):
            left = pids[len(reads) :]
            origin = _origin(rank, _Read(read_facts(left[0]), time.time()), rank.pid)
            stacks.digests.append(_failed(origin, Failure(f"{len(left)} children were not dumped, this is the first")))
        stacks.digests += [_foreign(rank, pid) for pid in children.others[-_MAX_FOREIGN:]]


def _worth_a_retry(dump: pyspy.Dump, facts: ProcessFacts) -> bool:
    """Not for what a second look cannot change: a dead process, no Python, no permission."""
    if pyspy.hopeless(facts):
        return False
    return dump.timed_out or "Failed to get stack traces" in dump.stderr or "Failed to suspend" in dump.stderr


def _without_idle(reads: list[_Read]) -> list[_Read]:
    """Workers that wait for their next index say nothing beside one that works; alone they say it all."""
    busy = [read for read in reads if not _is_idle(read)]
    return busy or reads


def _is_idle(read: _Read) -> bool:
    main = main_thread(read.threads or [], read.facts.inner_pid)
    return main is not None and is_idle_worker(main)


def _origin(rank: RankSample, read: _Read, child_of: int | None) -> Origin:
    facts = read.facts
    return Origin(
        pid=facts.pid,
        rank=rank.rank,
        job=rank.job,
        state=facts.state,
        wchan=facts.wchan,
        inner_pid=facts.inner_pid,
        child_of=child_of,
        uses_gpu=bool(rank.gpus),
        taken_at=read.taken_at,
        tasks=read_tasks(facts.pid) if len(read.threads or []) > 1 else {},
    )


def _foreign(rank: RankSample, pid: int) -> StackDigest:
    """A child that is not Python: what the kernel tells. Its key stays the same while it does not run at all."""
    read = _Read(read_facts(pid), time.time())
    digest = _failed(_origin(rank, read, rank.pid), Failure(f"not Python: {shown_text(name_of(pid)) or 'gone'}"))
    stopped = read.facts.state in STOPPED  # whoever looks at it moves its counters, too
    digest.key = stack_key(read.facts.state if stopped else activity(pid), [])
    return digest


def _failed(origin: Origin, failure: Failure) -> StackDigest:
    return StackDigest(
        rank=origin.rank,
        pid=origin.pid,
        state=origin.state,
        job=origin.job,
        child_of=origin.child_of,
        wchan=origin.wchan,
        error=failure.error,
        fix=failure.fix,
        taken_at=origin.taken_at,
    )
