"""What is said of samples and stacks: findings, digests, classes, verdicts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mltop.probes.model.gap import Gap
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.sample import RankSample
from mltop.probes.model.vocabulary import Confidence, Remedy, Severity, VerdictKind

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
    whole sentence without it. ``key`` tells several of one rule on one subject apart (two different Xids).
    ``remedy``: what ``action`` comes to; "none" where it does nothing to the hardware that it is about.
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

    @property
    def gpu(self) -> int | None:
        """The index of the GPU that it is about, None: another subject."""
        match = _GPU.fullmatch(self.subject)
        return int(match[1]) if match else None

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

    Those that the leaf called into below Python (``--native``) come first; of these ``line`` is 0 where unknown.
    """

    function: str
    file: str
    line: int
    ints: dict[str, int] = field(default_factory=dict)

    @property
    def native(self) -> bool:
        """Below Python. Such frames differ between equal ranks and from look to look: nothing is told from them."""
        return _is_native_file(self.file, self.line == 0)


@lru_cache(maxsize=4096)  # asked per dump, while jobs share a few hundred files
def _is_native_file(file: str, no_line: bool) -> bool:
    if file.endswith(".py") or file.startswith("<"):
        return False
    return no_line or _NATIVE_FILE.search(file) is not None


_NOT_PYTHON, _EXITED = "not Python: ", ("the process is gone", "zombie: ")


@dataclass
class StackDigest:
    """One thread's stack, normalised next to the process, leaf first.

    ``key`` is equal for equal normalised frames (integer locals left out): ranks are merged by it. Of a child that
    is not Python, whose name is ``program``, it stays equal while that child does not run.
    ``child_of`` is the rank's pid when ``pid`` is one of its children (a dataloader worker).
    ``samples`` counts the dumps in which this same stack was seen in a row. ``error`` says in plain words why
    there are no frames, ``fix`` what would help.
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

    def __post_init__(self) -> None:
        """A capture of an older version has both in ``error`` alone."""
        if self.error is None:
            return
        if not self.program and self.error.startswith(_NOT_PYTHON):
            self.program = self.error[len(_NOT_PYTHON) :]
        self.dead = self.dead or self.error.startswith(_EXITED)


@dataclass
class StackClass:
    """All ranks of a job with one and the same stack (``count`` processes); JSON has ``ranks`` as "0-12,14-63"."""

    ranks: Ranges
    count: int
    waiting_in: str | None
    frames: list[Frame] = field(default_factory=list)


@dataclass
class Culprit:
    """``where`` is "function (file:line)" or the kernel function, ``in_reason`` whether ``reason`` says it, too;
    ``pid`` may be a child of the rank.
    """

    rank: int | None
    node: str
    pid: int | None
    reason: str
    where: str
    in_reason: bool = False


@dataclass
class Waiting:
    """Ranks that wait in one place; JSON has them folded."""

    ranks: Ranges
    where: str


@dataclass
class Verdict:
    """Moving jobs accuse nobody. ``stragglers`` names their slow ranks: these are observations, not accusations.

    ``ended``: every rank of the job is gone, and nothing is left to be judged.
    """

    kind: VerdictKind
    culprits: list[Culprit] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    stragglers: list[Culprit] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    confidence: Confidence = "low"
    gaps: list[Gap] = field(default_factory=list)
    ended: bool = False

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
    """

    job: str
    world_size: int | None
    verdict: Verdict
    classes: list[StackClass] = field(default_factory=list)
    digests: list[StackDigest] = field(default_factory=list)
    uid: int | None = None
    user: str = ""
    error: str = ""
