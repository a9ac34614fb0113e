"""One rank as the judge sees it: its dumps in order of time, and what changed between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.evidence import RankSeen, add, grown, process_calls_between, works
from mltop.probes.judge.hang.frames import UserFrames, in_backward, key_of, python_frames, waits_for_thread, where
from mltop.probes.judge.values import grouped
from mltop.probes.model import Culprit, RankStacks, StackDigest
from mltop.probes.model.vocabulary import CulpritKind

STOPPED = ("T", "t")  # by a signal, by a debugger
MAIN = "MainThread"
BACKWARD = "backward (for gradients)"  # a wait that the stack does not prove: it may also compute


@dataclass(frozen=True)
class Motion:
    """Counters of one thread between the dumps, summed over all pairs. None: they could not be read.

    ``syscalls`` None: what its process did counts instead (``process_calls``: of all threads).
    """

    window_s: float
    switches: int | None
    syscalls: int | None
    main_cpu_s: float | None = None
    process_calls: int | None = None

    def switching(self) -> bool:
        """The main thread goes to sleep and wakes up, and does something when awake."""
        return self._fast(self.switches, limit.MOVE_PER_S) and works(self.main_cpu_s, self.window_s)

    def calling(self) -> bool:
        return self.process_calling() if self.syscalls is None else self._fast(self.syscalls, limit.MOVE_PER_S)

    def process_calling(self) -> bool:
        return self._fast(self.process_calls, limit.MOVE_PROCESS_CALLS_PER_S)

    def _fast(self, count: int | None, per_s: float) -> bool:
        if count is None or self.window_s <= 0:
            return False
        return count >= limit.MOVE_COUNT and count / self.window_s >= per_s


_NO_MOTION = Motion(0.0, None, None)


@dataclass
class RankView:
    """A rank with a live process. ``mains``: its readable main-thread digests, one per round, oldest first.

    ``waits`` (what it waits in) and ``times`` (unix s) go with them. ``thread``: the one that trains, if it is not the
    main one all of these, and ``motion``, are its.
    """

    seen: RankSeen
    rounds: list[RankStacks]
    mains: list[StackDigest] = field(default_factory=list)
    waits: list[str | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    states: list[str] = field(default_factory=list)  # the kernel's, one per round as its dump saw it
    motion: Motion = _NO_MOTION
    same_stack: bool = True  # one and the same stack and integer locals of user code in all dumps
    thread: str = MAIN
    polls: bool = False  # it wakes up to look whether it may go on (assumed.py): its switches are no movement

    @property
    def rank(self) -> int | None:
        return self.seen.sample.rank

    @property
    def pid(self) -> int:
        return self.seen.sample.pid

    @property
    def node(self) -> str:
        return self.seen.node

    @property
    def name(self) -> str:
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank}"

    @property
    def now(self) -> StackDigest:
        """Its newest stack; only for readable ranks."""
        return self.mains[-1]

    @property
    def readable(self) -> bool:
        return bool(self.mains)

    @property
    def error(self) -> StackDigest | None:
        """The newest digest that says why there is no stack."""
        newest_first = (digest for stacks in reversed(self.rounds) for digest in stacks.digests)
        return next((digest for digest in newest_first if digest.error and digest.child_of is None), None)

    @property
    def window_s(self) -> float:
        """The time from the first to the last readable dump."""
        return self.times[-1] - self.times[0] if self.times else 0.0

    @property
    def quiet_s(self) -> float | None:
        """For how long before the first dump it stood still, as far as its counters tell."""
        if self.is_led:
            return None  # samples tell of main threads
        return self.seen.polled_s if self.polls else self.seen.quiet_s

    @property
    def is_led(self) -> bool:
        """Its training runs in another thread than the main one."""
        return self.thread != MAIN

    @property
    def waiting_in(self) -> str | None:
        return self.waits[-1] if self.waits else None

    @property
    def steady(self) -> bool:
        """Waits in the same place in every dump."""
        return self.same_stack and self.waits[0] is not None and len(set(self.waits)) == 1

    @property
    def passes(self) -> bool:
        """Went in or out of a collective, or from one to the next, between dumps."""
        return any(self.waits) and not self.steady

    @property
    def cpu_fraction(self) -> float | None:
        dumped = (sample for stacks in reversed(self.rounds) for sample in (stacks.after, stacks.before))
        fractions = (sample.cpu_fraction for sample in dumped if sample is not None)
        return next((fraction for fraction in fractions if fraction is not None), self.seen.sample.cpu_fraction)

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger held it at every look: whatever its counters say, others moved them."""
        return all(state in STOPPED for state in self.states)

    @property
    def calls(self) -> bool:
        """Its counters move: it goes in and out of the kernel."""
        return not self.stopped and (self.switches or self.motion.calling())

    @property
    def switches(self) -> bool:
        """Its main thread goes to sleep and wakes up, and not in the rhythm of a poll."""
        return not self.polls and self.motion.switching()

    @property
    def spins(self) -> bool:
        """It computes or loops without calling into the kernel."""
        changes = self.readable and not self.same_stack
        return not self.calls and not self.stopped and (changes or self.runs)

    @property
    def runs(self) -> bool:
        """It has a core, or would have one on a machine with fewer ranks."""
        if (self.cpu_fraction or 0.0) >= limit.BUSY_CPU or runs_mostly(self.states):
            return True
        main_cpu_s, window_s = self.motion.main_cpu_s, self.motion.window_s
        return main_cpu_s is not None and window_s > 0 and main_cpu_s / window_s >= limit.BUSY_MAIN_CPU

    @property
    def moves(self) -> bool:
        """Counters or the stack move. CPU time alone is not progress: a wait for the GPU may spin."""
        return self.calls or (self.readable and not self.same_stack and not self.stopped)

    def threads(self) -> list[list[StackDigest]]:
        """Its own other threads of the newest round: digests of all rounds, oldest first."""
        newest = self.rounds[-1].digests if self.rounds else []
        every = (digest for stacks in self.rounds for digest in stacks.digests if self._is_other_thread(digest))
        by_name = grouped(every, lambda digest: digest.thread)
        names = dict.fromkeys(digest.thread for digest in newest if self._is_other_thread(digest))
        return [by_name[name] for name in names]

    def _is_other_thread(self, digest: StackDigest) -> bool:
        """A thread of the rank itself that neither is its main one nor trains."""
        return digest.child_of is None and digest.thread not in (MAIN, self.thread)

    def digests_of(self, thread: str) -> list[StackDigest]:
        """Of one of its own threads, oldest first."""
        every = (digest for stacks in self.rounds for digest in stacks.digests if digest.child_of is None)
        return [digest for digest in every if digest.thread == thread and digest.frames]

    def follow(self, thread: str, users: UserFrames) -> None:
        """Look at this thread from here on, where it was seen."""
        self.thread, self.mains, self.waits, self.times = thread, [], [], []
        self._read(users)
        self.motion = _thread_motion(self.mains, self.times, self.motion)

    def _read(self, users: UserFrames) -> None:
        digests = [leading_digest(stacks, self.thread) for stacks in self.rounds]
        waits = known_waits(digest for digest in digests if digest is not None) if len(digests) > 1 else {}
        for stacks, digest in zip(self.rounds, digests, strict=True):
            if digest is not None:
                self.mains.append(with_wait(digest, waits))
                self.times.append(stacks.taken_at)
                self.waits.append(wait_of(self.now, stacks.digests))
        if len(digests) > 1:
            self.same_stack = _all_same(self.mains, users)

    def children(self) -> list[list[StackDigest]]:
        """Its children of the newest round with any: main-thread digests of all rounds, oldest first."""
        by_round = ([digest for digest in stacks.digests if digest.child_of is not None] for stacks in self.rounds)
        of_rounds = [digests for digests in by_round if digests]
        every = (digest for digests in of_rounds for digest in digests if digest.thread == MAIN)
        mains = grouped(every, attrgetter("pid"))
        pids = dict.fromkeys(digest.pid for digest in of_rounds[-1]) if of_rounds else ()
        return [mains[pid] for pid in pids if pid in mains]

    def culprit(
        self, reason: str, place: str | None = None, child_pid: int | None = None, how: CulpritKind = ""
    ) -> Culprit:
        """The rank accused. ``place``: where it stands, None: by its newest stack; ``child_pid``: of its child."""
        place = where(self.now) if place is None else place
        gpu = next(iter(self.seen.sample.gpus), None)
        return Culprit(self.rank, self.node, self.pid, reason, place, place in reason, gpu, how, child_pid)


def view_of(seen: RankSeen, rounds: list[RankStacks], users: UserFrames) -> RankView:
    """All that is asked of every rank is worked out here, once: jobs have thousands of them."""
    view = RankView(seen, sorted(rounds, key=attrgetter("taken_at")) if len(rounds) > 1 else rounds)
    view.states = [state for state in map(_state_of, view.rounds) if state] or [seen.sample.state]
    view._read(users)
    if len(rounds) > 1:
        # Outside collectives a main thread on a futex waits until another thread of its process wakes it up.
        is_helped = view.readable and not view.waiting_in and (view.now.wchan or "").startswith("futex")
        view.motion = motion_between(view.rounds)
        view.motion = replace(view.motion, syscalls=None) if is_helped else view.motion
    return view


def known_waits(mains: Iterable[StackDigest]) -> dict[str, str]:
    """What is waited in, by stack: one and the same place in Python is one wait, also where one look does not show it.

    Native frames tell it or not, as the moment and py-spy's mode have it, and so does a source file on a slow disk.
    """
    waits: dict[str, str] = {}
    for main in mains:
        if main.waiting_in:
            waits.setdefault(key_of(main), main.waiting_in)
    return waits


def with_wait(main: StackDigest, waits: Mapping[str, str]) -> StackDigest:
    wait = waits.get(key_of(main)) if waits else None
    return main if wait is None or wait == main.waiting_in else replace(main, waiting_in=wait)


def leading_digest(stacks: RankStacks, thread: str = MAIN) -> StackDigest | None:
    """The rank's own main thread, or the one that trains, with its frames; None when it could not be read."""
    own = (digest for digest in stacks.digests if digest.child_of is None and digest.frames)
    return next((digest for digest in own if digest.thread == thread), None)


def wait_of(main: StackDigest, digests: Sequence[StackDigest]) -> str | None:
    """What the rank waits in. Autograd runs hooks in threads of its own: while it runs, theirs count too, as
    those of any thread that the main one waits for.
    """
    if main.waiting_in:
        return main.waiting_in
    backward = in_backward(main)
    if backward or (len(digests) > 1 and waits_for_thread(main)):
        for digest in digests:
            if digest.child_of is None and digest.waiting_in:
                return digest.waiting_in
    return BACKWARD if backward else None


def motion_between(rounds: Sequence[RankStacks]) -> Motion:
    """Sums from each dump's ``after`` to the next one's ``before``: the dump itself moves the counters."""
    window_s, switches, syscalls, main_cpu_s, process_calls = 0.0, None, None, None, None
    for earlier, later in pairwise(rounds):
        old, new = earlier.after, later.before
        if old is None or new is None:
            continue
        window_s += max(0.0, later.taken_at - earlier.taken_at)
        switches = add(switches, grown(old.voluntary_switches, new.voluntary_switches))
        syscalls = add(syscalls, grown(old.main_syscalls, new.main_syscalls))
        process_calls = add(process_calls, process_calls_between(old, new))
        main_cpu_s = add(main_cpu_s, grown(old.main_cpu_s, new.main_cpu_s))
    return Motion(window_s, switches, syscalls, main_cpu_s, process_calls)


def _thread_motion(digests: Sequence[StackDigest], times: Sequence[float], of_process: Motion) -> Motion:
    """Of one thread, by its own counters."""
    if len(digests) < 2:
        return _NO_MOTION
    switches = grown(digests[0].switches, digests[-1].switches)
    cpu_s = grown(digests[0].cpu_s, digests[-1].cpu_s)
    syscalls = grown(digests[0].syscalls, digests[-1].syscalls)
    return Motion(times[-1] - times[0], switches, syscalls, cpu_s, of_process.process_calls)


def runs_mostly(states: Sequence[str]) -> bool:
    return states.count("R") > limit.BUSY_ROUNDS * len(states)


def is_dead(digest: StackDigest) -> bool:
    """A zombie, or a process that was gone when it was to be dumped."""
    return digest.dead or digest.state in ("Z", "X")


def _state_of(stacks: RankStacks) -> str:
    sample = stacks.after or stacks.before
    states = (digest.state for digest in stacks.digests if digest.child_of is None and digest.state)
    return next(states, sample.state if sample else "")


def _all_same(mains: Sequence[StackDigest], users: UserFrames) -> bool:
    """Locals of libraries do not count: the time left of a wait is one of them."""
    if len({key_of(main) for main in mains}) > 1:
        return False
    # A loop, not all(): this runs for the frames of every dump.
    first, *others = [python_frames(main.frames) for main in mains] or [()]
    for at in users.indexes(mains[0]) if others else ():
        ints = first[at].ints
        for later in others:
            if later[at].ints != ints:
                return False
    return True


# Ranks whose training runs in a thread of theirs (Ray Train, servers): that thread is judged, not the main one. The
# main thread then waits in an event loop or polls for the thread's end, so its stack and its switches say nothing of
# the training.

# What starts a thread: the frames below the function that it was started with.
_STARTERS = ("threading.py", "concurrent/futures/thread.py")

Entry = tuple[str, str]  # a thread's first function of its own, and its file


def follow_training_threads(views: Sequence[RankView]) -> None:
    """Turn to the thread that trains, where at least two thirds of the ranks have one that was started with the same
    function and stands in a collective in one of them, and where no main thread does more than wait.
    """
    running = [view for view in views if view.readable and not view.stopped]
    if not running or any(_trains(main) for view in running for main in view.mains):
        return
    threads = {id(view): _threads_by_entry(view) for view in running}
    training = {
        entry
        for view in running
        for entry, name in threads[id(view)].items()
        if any(_trains(digest) for digest in view.digests_of(name))
    }
    counts = Counter(entry for view in running for entry in threads[id(view)] if entry in training)
    (entry, count), *others = counts.most_common(2) or [(("", ""), 0)]
    alone = not others or others[0][1] < count
    if not alone or count < limit.ALIKE_SHARE * len(running):
        return
    led = [view for view in running if entry in threads[id(view)]]
    if all(_only_waits(view) for view in led):
        users = UserFrames()
        for view in led:
            view.follow(threads[id(view)][entry], users)


def _trains(digest: StackDigest) -> bool:
    return digest.waiting_in is not None or in_backward(digest)


def _threads_by_entry(view: RankView) -> dict[Entry, str]:
    """The names of its newest other threads; not of those that are there twice."""
    newest = view.rounds[-1].digests
    others = [digest for digest in newest if digest.child_of is None and digest.thread != MAIN and digest.frames]
    by_entry = grouped(others, _entry)
    names = Counter(digest.thread for digest in others)
    return {
        entry: alike[0].thread
        for entry, alike in by_entry.items()
        if entry is not None and len(alike) == 1 and names[alike[0].thread] == 1
    }


def _entry(digest: StackDigest) -> Entry | None:
    outermost = (frame for frame in reversed(python_frames(digest.frames)) if not frame.file.startswith(_STARTERS))
    first = next(outermost, None)
    return None if first is None else (first.function, first.file)


def _only_waits(view: RankView) -> bool:
    """Its main thread is in one place in most dumps, and next to no time on a CPU."""
    places = Counter(map(key_of, view.mains))
    motion = view.motion
    idle = motion.main_cpu_s is None or motion.main_cpu_s < limit.POLL_CPU * motion.window_s
    return idle and max(places.values()) >= limit.POLL_PLACE_SHARE * len(view.mains)
