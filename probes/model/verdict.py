"""What is said of samples and stacks: findings, digests, classes, verdicts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mltop.probes.model.evidence.collectives import ProgressVerdict
from mltop.probes.model.gap import Gap
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.sample import JobKey, RankSample
from mltop.probes.model.vocabulary import Act, Confidence, CulpritKind, Remedy, Severity, VerdictKind

# What a frame below Python is said to be in: a shared object, a C, C++, CUDA, Rust or Cython source, or nothing known
# ("?", "[vdso]"). A program's own code has no line where there is no debugging information: "bin/python3.11", line 0.
_NATIVE_FILE = re.compile(r"\.so[\d.]*\Z|\.(c|cc|cpp|cxx|cu|h|hh|hpp|cuh|S|s|rs|pyx|pxd|pxi)\Z|^\[.*\]\Z|^\??\Z")

_GPU = re.compile(r"GPU (\d{1,6})")
_ALL_GPUS = re.compile(r"all \d{1,6} GPUs")


@lru_cache(maxsize=1024)
def gpu_name(index: int) -> str:
    """``GPU 3``: the subject of findings about it."""
    return f"GPU {index}"


def all_gpus_name(count: int) -> str:
    """The subject of findings about all GPUs of a node."""
    return f"all {count} GPUs"


@dataclass
class Finding:
    """What a health rule says. Times are unix s, ``until`` None: still so.

    ``subject``: what it is about ("GPU 3", "mlx5_4", "host", "/ckpt"), for keys, columns and filters; ``message`` is a
    whole sentence without it. ``act``: what mltop does about it, before the ``action`` of others. ``key`` tells
    several of one rule on one subject apart (two different Xids).
    ``remedy``: what ``action`` comes to; "none" where it does nothing to the hardware that it is about.
    ``folded``: "id subject" of what it explains, ``explains``: the same, whole, without any of its own; of very many
    alike not all. ``about``: other names of what it is about, ``server``: the file server that does not serve. Where it
    is about a job, its ranks or a process: ``job`` of ``uid``, ``ranks``, ``pid``; no ranks are all of it.
    """

    id: str
    severity: Severity
    node: str
    subject: str
    message: str
    action: str = ""
    evidence: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    since: float | None = None
    until: float | None = None
    remedy: Remedy = "none"
    key: str = ""
    about: list[str] = field(default_factory=list)
    server: str = ""
    job: str = ""
    uid: int | None = None
    ranks: Ranges = field(default_factory=Ranges)
    pid: int | None = None
    explains: list[Finding] = field(default_factory=list)
    act: Act = ""

    @property
    def gpu(self) -> int | None:
        """The index of the GPU that it is about, None: another subject."""
        match = _GPU.fullmatch(self.subject)
        return int(match[1]) if match else None

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for copies of one finding, whatever they advise."""
        return self.id, self.node, self.subject, self.key, self.job, self.uid, self.since, self.until

    @property
    def gpus(self) -> list[int]:
        """The indexes of all GPUs that it is about."""
        matches = map(_GPU.fullmatch, dict.fromkeys((self.subject, *self.about)))
        return [int(match[1]) for match in matches if match]

    @property
    def job_key(self) -> JobKey | None:
        """None where it is about no job that is known."""
        return JobKey(self.job, self.uid) if self.job else None

    @property
    def is_of_all_gpus(self) -> bool:
        return _ALL_GPUS.fullmatch(self.subject) is not None


@dataclass
class Unknown:
    """What could not be judged: ``rules`` (ids) need ``what``, which is not known; why, and the command that helps.

    ``severity``: the gravest that these rules say as a rule. "info": nothing is missed (what is only worth knowing, or
    hardware that does not tell it at all).
    """

    node: str
    what: str
    why: str
    fix: str = ""
    rules: list[str] = field(default_factory=list)
    severity: Severity = "warning"


@dataclass
class Frame:
    """One frame. ``file`` is relative to site-packages or its last parts; ``ints`` are integer locals.
    ``user``: the code of who runs the job, not of a library, the standard library or a generator.

    Those that the leaf called into below Python (``--native``) come first; of these ``line`` is 0 where unknown.
    """

    function: str
    file: str
    line: int
    ints: dict[str, int] = field(default_factory=dict)
    user: bool = False

    @property
    def native(self) -> bool:
        """Below Python. Such frames differ between equal ranks and from look to look: nothing is told from them."""
        return _is_native_file(self.file, self.line == 0)


@lru_cache(maxsize=4096)  # asked per dump, while jobs share a few hundred files
def _is_native_file(file: str, no_line: bool) -> bool:
    if file.endswith(".py") or file.startswith("<"):
        return False
    return no_line or _NATIVE_FILE.search(file) is not None


@dataclass
class StackDigest:
    """One thread's stack, normalised next to the process, leaf first.

    ``key`` is equal for equal normalised frames (integer locals left out): ranks are merged by it. Of a child that
    is not Python, whose name is ``program``, it stays equal while that child does not run.
    ``child_of`` is the rank's pid when ``pid`` is one of its children (a dataloader worker).
    ``samples`` counts the dumps in which this same stack was seen in a row. ``error`` says in plain words why
    there are no frames, ``fix`` what would help. ``acquires``: the lock that its leaf's source line asks for
    ("self.lock", of a file "flock" or "lockf"); ``holds``: those of the blocks that its user's frames stand in.
    ``switches``, ``cpu_s`` (on a CPU) and ``syscalls`` (reads and writes): so far, of a thread that is not the main
    one.
    """

    rank: int | None
    pid: int
    thread: str = "MainThread"
    state: str = ""
    frames: list[Frame] = field(default_factory=list)
    waiting_in: str | None = None
    samples: int = 1
    key: str = ""
    node: str = ""
    job: str = ""
    child_of: int | None = None
    wchan: str | None = None
    error: str | None = None
    fix: str = ""
    taken_at: float | None = None
    program: str = ""  # of a child that is not Python, "" of Python processes
    dead: bool = False  # the process has exited
    acquires: str = ""
    holds: list[str] = field(default_factory=list)
    switches: int | None = None
    cpu_s: float | None = None
    syscalls: int | None = None


EVENT_LOOPS = ("asyncio/", "uvloop/", "trio/", "anyio/", "nest_asyncio.py")
_LOOP_WAITS = frozenset(
    {"select", "poll", "_poll", "_run_once", "run_forever", "run_until_complete", "run", "get_events"}
)


def idle_event_loop(digest: StackDigest) -> bool:
    """True for an event loop that waits for the next event: a serving process without a request, no culprit."""
    for frame in digest.frames:
        if frame.native:
            continue
        is_loops = frame.file.startswith(EVENT_LOOPS)
        if not (is_loops or frame.file == "selectors.py") or frame.function.rpartition(".")[2] not in _LOOP_WAITS:
            return False
        if is_loops:
            return True
    return False


@dataclass
class StackClass:
    """All ranks of a job with one and the same stack (``count`` processes); JSON has ``ranks`` as "0-12,14-63"."""

    ranks: Ranges
    count: int
    waiting_in: str | None
    frames: list[Frame] = field(default_factory=list)


@dataclass
class Culprit:
    """``where`` is "function (file:line)" of the user's, with what it called in brackets, or the kernel function;
    ``in_reason``: whether ``reason`` says it, too. ``pid`` is the rank's own, ``child_pid`` its worker's where this
    one is stuck, ``gpu`` is its first one.
    ``rank`` None: a node, or a process without a number.
    """

    rank: int | None
    node: str
    pid: int | None
    reason: str
    where: str
    in_reason: bool = False
    gpu: int | None = None
    how: CulpritKind = ""
    child_pid: int | None = None


@dataclass
class Waiting:
    """Ranks that wait in one place; JSON has them folded."""

    ranks: Ranges
    where: str


@dataclass
class Verdict:
    """Moving jobs accuse nobody. ``stragglers`` names their slow ranks: these are observations, not accusations.

    ``ended``: every rank of the job is gone, and nothing is left to be judged. ``since``: unix s since when nothing is
    known to have moved. ``circle``: ranks that wait for one another, each for the next; which of them is wrong nobody
    can tell.
    """

    kind: VerdictKind
    culprits: list[Culprit] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    stragglers: list[Culprit] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    confidence: Confidence = "low"
    gaps: list[Gap] = field(default_factory=list)
    ended: bool = False
    since: float | None = None
    circle: list[int] = field(default_factory=list)

    @property
    def stands_still(self) -> bool:
        """Whether it accuses, or would if it knew whom."""
        return self.kind in ("hang", "suspect")


@dataclass
class RankStacks:
    """One dump of one rank: its counters just before and just after, and the digests of its threads and children.

    Progress is judged between one dump's ``after`` and the next one's ``before``, because the dump itself
    stops the process for a moment and so moves its switch counter. ``raw`` is py-spy's JSON per process with
    all locals but integers removed, only when it was asked for: ``[{"pid": .., "threads": [..]}]``.
    """

    pid: int
    rank: int | None
    job: str = ""
    node: str = ""
    taken_at: float = 0.0
    took_s: float = 0.0
    before: RankSample | None = None
    after: RankSample | None = None
    digests: list[StackDigest] = field(default_factory=list)
    raw: list[Any] = field(default_factory=list)
    uid: int | None = None


@dataclass
class JobReport:
    """What `mltop stacks` says of one job: what ``uid`` (``user``) runs under the name ``job``.

    ``error``: why it could not be judged, "" when it was; its verdict is "unclear" then and says so, too.
    ``progress``: what the job's own records of its collectives say, the surest first.
    """

    job: str
    world_size: int | None
    verdict: Verdict
    classes: list[StackClass] = field(default_factory=list)
    digests: list[StackDigest] = field(default_factory=list)
    uid: int | None = None
    user: str = ""
    error: str = ""
    progress: list[ProgressVerdict] = field(default_factory=list)

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.job, self.uid)
