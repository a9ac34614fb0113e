"""What a job's log files tell, as data: who said what, where it stands, and what kind of thing it is.

An event's class decides what may be told from it. "root": can be the first failure. "named": says of other ranks that
they are it. "timeout": waited in vain, itself. "cascade": followed from somebody's end. "teardown": was told to end.
"outside": the job was ended from outside. "hint": makes another reading surer, accuses nobody. "unread":
a severe line that no row knows, which counts where nothing else explains a failure. "fact": no trouble.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mltop.probes.model.gap import Gap
from mltop.probes.model.incident import Evidence, Incident
from mltop.probes.model.vocabulary import DeathKind

EventClass = Literal["root", "named", "timeout", "cascade", "teardown", "outside", "hint", "unread", "fact"]
EventKind = Literal[
    "exception",  # a traceback that speaks of no other rank
    "fatal_signal",  # the interpreter's last words: Fatal Python error
    "device_assert",  # an assertion in a kernel
    "oom_kill",  # the kernel or Slurm ended a process for want of memory
    "xid",
    "node_failure",
    "died",  # a launcher says that a process was ended by a signal that nobody sends as a rule
    "worker_lost",  # a supervisor (raylet, an engine's client) says that a worker's process is gone
    "barrier_named",  # monitoredBarrier, and who did not come
    "desync_named",  # TORCH_NCCL_DESYNC_DEBUG: lagging, dead, mismatched ranks
    "heartbeat_named",  # a launcher's monitor of one rank: no heartbeat, a section that does not end
    "remote_named",  # TORCH_NCCL_PROPAGATE_ERROR: the first rank with an error
    "mismatch",  # TORCH_DISTRIBUTED_DEBUG=DETAIL: two ranks in different collectives
    "child_named",  # torch.multiprocessing.spawn: which child ended
    "collective_timeout",
    "gloo_timeout",
    "counters",  # the triple of enqueued, started, completed
    "dump_signal",  # a rank that did not time out itself: its counters of the default group
    "first_to_dump",
    "peer_exception",  # a traceback that says that others are gone or did not come
    "peer_lost",
    "network",  # InfiniBand's completion errors: a peer's address
    "port",  # this host's own network port
    "aborted",
    "store",
    "exit",  # a launcher says: this rank ended with that code
    "terminated",  # SIGTERM of the launcher, KeyboardInterrupt
    "time_limit",
    "cancelled",
    "preempted",
    "interrupted",
    "stuck_watchdog",
    "gil_held",
    # Of severe last lines that no row knows:
    "blamed",  # names a rank: "worker 3 died"
    "complaint",  # is about others: a peer, a connection, a wait
    "severe",  # is about the writer itself, as far as anybody can tell
    "agent_failed",  # torchrun's agent: an attempt has ended
    "launcher_failed",  # another launcher, of some child of its own
    "world",  # how many ranks there are
    "stack",  # faulthandler's, of one thread
]
CLASS_OF: dict[EventKind, EventClass] = {
    "exception": "root",
    "fatal_signal": "root",
    "device_assert": "root",
    "oom_kill": "root",
    "xid": "root",
    "node_failure": "root",
    "died": "root",
    "worker_lost": "root",
    "barrier_named": "named",
    "desync_named": "named",
    "heartbeat_named": "named",
    "remote_named": "named",
    "mismatch": "named",
    "child_named": "named",
    "collective_timeout": "timeout",
    "gloo_timeout": "timeout",
    "counters": "fact",
    "dump_signal": "fact",
    "first_to_dump": "fact",
    "peer_exception": "cascade",
    "peer_lost": "cascade",
    "network": "cascade",
    "port": "hint",
    "aborted": "cascade",
    "store": "cascade",
    "exit": "fact",
    "terminated": "teardown",
    "time_limit": "outside",
    "cancelled": "outside",
    "preempted": "outside",
    "interrupted": "outside",
    "stuck_watchdog": "hint",
    "gil_held": "hint",
    "blamed": "unread",
    "complaint": "unread",
    "severe": "unread",
    "agent_failed": "fact",
    "launcher_failed": "fact",
    "world": "fact",
    "stack": "fact",
}
# What a failure is about, as its words say.
Topic = Literal[
    "shm", "disk", "port", "gpu memory", "memory", "ecc", "device assert", "build", "gpu fault", "communicator", "hca",
    "files", "threads", "file system", "name", "checkpoint", "module", "path", "slots",
]  # fmt: skip


@dataclass(frozen=True)
class Speaker:
    """Who wrote a line, as far as its prefixes tell. ``task``: Slurm's, which is a rank only where each has its own;
    ``process``: its name, as in "(EngineCore_DP1 pid=7)".
    """

    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    node: str = ""
    pid: int | None = None
    process: str = ""


@dataclass
class LogEvent:
    """One line, or block of lines, of a log. ``text`` is quoted, cleaned of secrets; ``at``: unix s, ``is_dated``:
    by its own stamp, not that of a line before it.

    ``rank``: the speaker's number in the whole job once that is known; of "exit" and "died" whom it is about.
    ``named``: the ranks that it names. ``group``: as its prefix names it, "" for the default one; ``sequence``, ``op``,
    ``sizes``: of the collective; ``ran_s``: for how long it was waited for. ``place``: where an exception was raised.
    """

    kind: EventKind
    file: str
    line: int
    text: str
    speaker: Speaker = field(default_factory=Speaker)
    rank: int | None = None
    node: str = ""
    at: float | None = None
    is_dated: bool = False
    attempt: int = 0
    group: str = ""
    group_name: str = ""
    group_rank: int | None = None
    sequence: int | None = None
    op: str = ""
    sizes: tuple[int, int] | None = None
    ran_s: float | None = None
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    named: tuple[int, ...] = ()
    peer: str = ""
    device: str = ""
    code: int | None = None
    how: DeathKind = "unknown"
    pid: int | None = None
    place: str = ""
    process: str = ""
    topic: Topic | None = None  # of a root
    pattern: str = ""  # its text without numbers: equal of those that failed alike
    is_first: bool = False  # of "exit": the launcher says that it was the first that it saw
    step: int | None = None  # the last one before it
    survived: bool = False  # the file goes on with steps after it
    by_launcher: bool = False  # the launcher's table repeats what a rank said
    frames: tuple[str, ...] = ()
    is_of_hardware: bool = False  # of a CUDA error: it says that the GPU is broken

    @property
    def event_class(self) -> EventClass:
        return CLASS_OF[self.kind]

    @property
    def stamped_at(self) -> float | None:
        """By its own stamp; unix s. Only this may be shown as its time: a line before it may be hours older."""
        return self.at if self.is_dated else None

    @property
    def waited_since(self) -> float | None:
        """When it began to wait; unix s."""
        return self.at - self.ran_s if self.is_dated and self.at is not None and self.ran_s is not None else None

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class GoodEnds:
    """The last lines at which a file reports them, 0: none. ``served``: a server answers a request, ``refused``: it
    fails to; ``trained``: a trainer is done; ``succeeded``: a launcher says so of the whole job; ``latest``: of
    ``trained``, ``succeeded``, and of a process that exits well at the end of the file; ``text``: that line.
    """

    served: int = 0
    refused: int = 0
    trained: int = 0
    succeeded: int = 0
    latest: int = 0
    text: str = ""


@dataclass
class LogFile:
    """One file, read. ``rank``, ``local_rank``, ``attempt``, ``slurm_job``, ``run``, ``run_parent`` are what its path
    says: ``run`` is torchrun's own folder of one agent.

    ``number`` is the last one of its name, which may be a rank's or anything; ``series``: the name without it.

    ``speakers``: those that the lines at its beginning and end, and its events have. ``last_at``, ``last_step``: of its
    last lines, ``last_steps``: where its last three begin; ``first_step``: of its first ones; ``is_cut``: it ends
    within a line, ``is_cut_in_traceback``: or before what an exception says surely ends; ``is_thinned``: lines were
    left out by who wrote it (Ray). ``telling``: the most severe of its last
    lines that no row knows, else its last one. ``is_of_agent``: torchrun's agent writes there; ``is_of_training``: it
    reads like the log of a training or serving job.
    ``mentions``: torchrun folders and Slurm jobs that its lines name.
    """

    path: str
    size_bytes: int = 0
    lines: int = 0
    events: list[LogEvent] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    speakers: set[Speaker] = field(default_factory=set)
    rank: int | None = None
    number: int | None = None
    series: str = ""
    local_rank: int | None = None
    attempt: int | None = None
    slurm_job: str = ""
    run: str = ""
    run_parent: str = ""
    is_error_file: bool = False
    first_at: float | None = None
    last_at: float | None = None
    last_step: int | None = None
    last_step_line: int = 0
    last_steps: list[int] = field(default_factory=list)
    good_ends: GoodEnds = field(default_factory=GoodEnds)
    is_of_agent: bool = False
    is_of_training: bool = False
    telling: str = ""
    telling_line: int = 0
    first_step: int | None = None
    first_step_line: int = 0
    is_cut: bool = False
    is_cut_in_traceback: bool = False
    is_thinned: bool = False
    mentions: set[str] = field(default_factory=set)
    gaps: list[Gap] = field(default_factory=list)


@dataclass
class Death:
    """How one rank ended, as far as anybody says. ``at``: unix s."""

    how: DeathKind = "unknown"
    code: int | None = None
    at: float | None = None


@dataclass
class RankEnd:
    """What is known of one rank's end; ``file``: where its lines stand."""

    rank: int
    node: str = ""
    death: Death | None = None
    enqueued: int | None = None
    completed: int | None = None
    last_line_at: float | None = None
    file: str = ""


@dataclass
class ExplainedJob:
    """What became of one job. ``incident`` None: no failure. ``attempts``: how often it was started;
    ``coverage``: the share of its ranks (0..1) that have any line, None: how many ranks there are is not known.
    ``first_at``: of its log lines, unix s. ``incident`` None and ``is_told``: a good end was seen, ``good_end``.
    """

    job: str
    world_size: int | None = None
    incident: Incident | None = None
    good_end: list[Evidence] = field(default_factory=list)
    ranks: list[RankEnd] = field(default_factory=list)
    attempts: int = 1
    files: list[str] = field(default_factory=list)
    coverage: float | None = None
    gaps: list[Gap] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    is_told: bool = True
    first_at: float | None = None
