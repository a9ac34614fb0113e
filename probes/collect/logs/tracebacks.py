"""Blocks of lines that belong together: tracebacks and what they end in, faulthandler's stacks, torchrun's table of who
failed. Each takes the lines of one writer, without their prefixes, until it says that it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from mltop.probes.collect.logs.anchors import Fields, by_name, events_in
from mltop.probes.model.evidence.logs import EventKind, Speaker

MOST_LINES = 2_000  # of one block: RecursionError's are long
_LONGEST_BEFORE = 200  # characters
_DIGITS = re.compile(r"\d+")
_LONGEST = 600  # characters of a message
_FEW_OF_MESSAGE, _MOST_OF_MESSAGE = 2, 8  # lines in which it may go on
_LONG = re.compile(r"[NH]CCL error|NPU function error|task names:")
_SHOWN = 380  # characters of it
_AFTERWARDS = 4  # lines in which what belongs to an exception may still begin

TRACEBACK = "Traceback (most recent call last):"
BOXED = re.compile("Traceback \\(most recent call last\\) [\u2500-]")  # rich's, in a box
_BOX = "\u2502\u256d\u2570|+"
_BOXED_FRAME = re.compile(r"[\u2502|] (\S[^\u2502|\n]{0,500}?):(\d{1,9}) in (\S{1,200})")
FRAME = re.compile(r'\s+File "([^"]{1,500})", line (\d{1,9}),? in (.{1,200})')
_FINAL = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: ?(.*))?$")
_EXCEPTION = re.compile(r"(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Expired|Warning|Aborted|Empty|Full)$")
# What a launcher, a logger or the training loop writes next is nobody's message.
_OTHERS_LINE = re.compile(
    r"\[?20\d\d(?:[-/]\d\d[-/]|\d{4}[- ]\d\d:)|\[?[IWEF]\d{3,4} \d\d:|\[?(?:INFO|WARNING|ERROR|DEBUG)\b|\d{1,3}%\|"
    r"|\[[IWEF] \w+\.cpp:\d|terminate called after |(?:srun|slurmstepd[\w.-]*|prterun|mpirun): |[-=]{20}|Failures:$"
    r"|(?i:step|epoch|iter\w*)\b\W{0,3}\d"
)
_ADVICE = ("Solution:", "Possible Cause:", "TraceBack (most recent")  # Ascend's, after what was raised
_ASCENDS_LINE = re.compile(r"\bRankID:-?\d")  # goes on with what was raised
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_SAYS_LESS = re.compile(r"DataLoader worker \(pid\(s\)")  # than what it was raised from: by which signal it ended
# What accelerate's and DeepSpeed's launchers raise of a child that they do not tell from the others.
_OF_LAUNCHER = re.compile(r"launch|/bin/(?:accelerate|deepspeed|torchrun):")
_LAUNCHED = re.compile(r"Command .* (?:died with <Signals\.\w+: (?P<signal>\d+)>|exit status (?P<code>\d+))")
_CHILD = re.compile(r"-- Process (\d{1,6}) terminated with the following error")
_CHILD_ENDED = re.compile(
    r"process (?P<named>\d{1,6}) terminated with (?:signal SIG(?P<signal>\w+)|exit code (?P<exitcode>\d+))"
)
_RAISED_IN = re.compile(r"ray::.{1,120}? \(pid=(?P<pid>\d{1,8}), ip=(?P<ip>[\w.:-]{1,60})")  # RayTaskError
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<frozen|/bin/torchrun$")

# Who raises these speaks of others: they are gone, or did not come.
# Ascend's codes of its own devices, not of peers that it waits for; and names that this host cannot resolve.
_OF_OWN_HOST = re.compile(
    r"\bE(?!I000[26]|E1002)[A-Z]\d{4}: |[Nn]ame or service not known|failure in name resolution"
    r"|[Aa]ddress already in use|EADDRINUSE|creating shared memory segment"
    r"|NCCL (?:error|operation)\b.{0,200}?invalid (?:usage|argument)"  # of its caller, NCCL's documentation says
)
_OF_PEERS = re.compile(
    r"(?:^|\.)(?:DistBackendError|DistNetworkError|DistStoreError|DistError|RendezvousTimeoutError|RendezvousConnectionError"
    r"|RendezvousClosedError|RendezvousStateError|RendezvousGracefulExitError|ActorDiedError|RayActorError|WorkerCrashedError|NodeDiedError"
    r"|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|EOFError|ProcessGroupDestroyedError"
    r"|EngineDeadError|WorkerGroupError|WorkerDiedError|TrainingFailedError|BrokenProcessPool|BrokenExecutor|CancelledError)$"
)
_SPEAKS_OF_PEERS = re.compile(
    r"NCCL|gloo|Gloo|nccl(?:Remote|System|Internal)Error|TCPStore|ProcessGroup|[Ww]atchdog|c10d|monitoredBarrier"
    r"|[Cc]onnection (?:was )?(?:closed|reset|refused)|by (?:remote )?peer|[Bb]roken pipe|rendezvous|process group"
    r"|collective operation|recv operation|socket (?:has )?(?:timed out|closed)"
    r"|[Tt]imed out (?:waiting|initializing|after)|[Ww]ait timeout"
    r"|RPC call to|shared memory broadcast|Hccl|HCCL|oneCCL|[Bb]arrier timed out|GetKeyValue|DEADLINE_EXCEEDED"
    r"|[Cc]oordination (?:service|agent)|mismatch between collectives|expects same model across all ranks"
    r"|EI000[26]|EE1002|EPIPE|\bpipe closed|\[_Derived_\]|Collective ops is aborted"
    r"|\b(?:other|one of the) (?:ranks?|workers|processes|nodes)\b"
    r"|[Ss]ee (?:the )?(?:stack trace|root cause|error|traceback|logs?)\b|background process|died unexpectedly"
)
# A web service or a file server is nobody of the job, whatever its connections do.
_OF_SERVICES = re.compile(
    r"https?|HTTP|urllib3|botocore|boto|aiohttp|requests\.|[Ss]3|huggingface|Errno 28|Errno 5\b|Errno 116"
)
_TEARDOWN = re.compile(r"(?:^|\.)(?:KeyboardInterrupt|SystemExit|SignalException|SIGTERMException|GeneratorExit)$")
LAUNCHERS = re.compile(r"(?:^|\.)(?:ChildFailedError|CalledProcessError|NCCLHangError)$")  # of theirs, of no rank's
_CAUSE_OF_WATCHDOG = re.compile(r"CUDA error|device-side assert|illegal memory")

# CUDA's words for broken hardware: cudaErrorECCUncorrectable, NvlinkUncorrectable, Contained.
_OF_HARDWARE = re.compile(r"CUDA error: .{0,80}(?:uncorrectable (?:ECC|NVLink) error|or a hardware error)")


def kind_of_exception(name: str, message: str) -> EventKind:
    """What an exception tells of who raised it."""
    if _TEARDOWN.search(name):
        return "terminated"
    if "Worker failed with error" in message:  # an engine repeats what its worker said
        return "peer_exception"
    is_own = "Cuda failure" in message or ("unhandled cuda error" in message and "DistBackendError" not in name)
    if is_own or _OF_OWN_HOST.search(message) or (_CAUSE_OF_WATCHDOG.search(message) and "NCCL error" not in message):
        return "exception"
    if _OF_PEERS.search(name):
        return "peer_exception"
    whole = f"{name}: {message}"
    if _OF_SERVICES.search(whole) and not re.search(r"NCCL|gloo|TCPStore", whole):
        return "exception"
    return "peer_exception" if _SPEAKS_OF_PEERS.search(whole) else "exception"


def place_of(frames: Sequence[Sequence[str]]) -> str:
    """The innermost frame that is no library's, else the innermost; of each: file, line, function."""
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    for file, line, function in (own or frames)[-1:]:
        return f"{function} ({file}:{line})"
    return ""


@dataclass
class Raised:
    """One exception, and where it was raised."""

    name: str
    message: str
    place: str = ""

    @property
    def kind(self) -> EventKind:
        return kind_of_exception(self.name, self.message)

    @property
    def words(self) -> str:
        """Of a long one the beginning and the end, where NCCL's last error is."""
        words = f"{self.name}: {self.message}" if self.message else self.name
        return words if len(words) <= _SHOWN else f"{words[: _SHOWN // 2]} … {words[-_SHOWN // 2 :]}"


@dataclass
class _Block:
    """``line``: its first one, ``written``: its last one so far; ``at``, ``attempt``, ``step``: when it began, in which
    attempt, and after which step.
    """

    line: int
    written: int = 0
    at: float | None = None
    attempt: int = 0
    step: int | None = None


@dataclass
class TracebackBlock(_Block):
    """``chain``: the exceptions in the order in which they were raised. ``child``: whose it is, of a spawner's.

    ``before``: what stands in front of its first line, and with other digits of all of them where a logger wrote it.
    """

    before: InitVar[str] = ""
    chain: list[Raised] = field(default_factory=list)
    child: int | None = None
    of_rank: int | None = None  # whose it is, as the line before it says
    is_ignored: bool = False  # Python says that it goes on all the same
    last_line: int = 0
    _frames: list[Sequence[str]] = field(default_factory=list)
    _in_frames: bool = True
    _waits: int = 0
    _count: int = 0
    _nested: bool = False
    _chained: bool = False
    _partial: str = ""
    _logged: re.Pattern[str] | None = None
    _raised_in: tuple[int, str] | None = None  # pid and address of Ray's process, whoever prints it

    def __post_init__(self, before: str) -> None:
        if before.strip() and len(before) <= _LONGEST_BEFORE:
            before = before[: before.rfind("]") + 1] or before  # what the logger says of it stands in this line only
            self._logged = re.compile(_DIGITS.sub(r"\\d+", re.escape(before.rstrip())) + " ?")

    def take(self, text: str, number: int) -> bool:
        """False when the line does not belong to it: it is complete."""
        logged = self._logged.match(text) if self._logged is not None else None
        if logged is not None:
            text = text[logged.end() :]
        self._count += 1
        if self._count > MOST_LINES:
            return False
        process = _RAISED_IN.search(text) if "(pid=" in text else None
        if process is not None:
            self._raised_in = int(process["pid"]), process["ip"]
        return self._in(text, number) if self._in_frames else self._after(text)

    def _in(self, text: str, number: int) -> bool:
        frame = FRAME.match(text) or _BOXED_FRAME.match(text)
        if frame is not None:
            self._frames = [*self._frames[-40:], frame.groups()]
            return True
        if not text.strip() or text[0] in f" \t{_BOX}" or text.startswith(("[Previous line repeated", "^", "~")):
            return True
        text, self._partial = self._partial + text, ""
        final = _FINAL.match(text)
        if final is None and self._count == 1 and not self._frames:
            return TRACEBACK.endswith(text.strip())  # the rest of a first line that was cut
        if final is None:
            return bool(self._frames) and self._count < 400 and not text.startswith("[")
        if final[2] is None and not _EXCEPTION.search(final[1]):
            self._partial = text  # a name that was wrapped, or one that says nothing of what it is
            return len(text) < 200
        raised = Raised(final[1], (final[2] or "").strip(), place_of(self._frames))
        if self._nested and self.chain:  # of a worker: its own words instead of "Caught … in DataLoader worker"
            self.chain[-1] = raised
        else:
            self.chain.append(raised)
        self._in_frames, self._waits, self.last_line, self._frames = False, 0, number, []
        return True

    def _after(self, text: str) -> bool:
        stripped = text.strip()
        self._waits += 1
        child = _CHILD.match(stripped)
        if child is not None:
            self.child, self._waits = int(child[1]), 0
        elif stripped.endswith(TRACEBACK) and ("Original" in stripped or self.child is not None):
            self._in_frames, self._nested = True, True
        elif stripped == TRACEBACK or BOXED.search(stripped):
            if not self._chained:
                return False
            self._in_frames, self._nested, self._chained = True, False, False
        elif stripped.startswith(_CHAINED):
            self._chained, self._waits = True, 0
        elif stripped.startswith(_ADVICE) or (
            not self._chained and _OTHERS_LINE.match(stripped) and not _ASCENDS_LINE.search(stripped)
        ):
            return False
        elif stripped and self.chain and self._waits <= self._goes_on(text) and len(self.chain[-1].message) < _LONGEST:
            # The rest of a message of several lines: gloo's reason, NCCL's last error, Ray's pid and address.
            self.chain[-1] = replace(self.chain[-1], message=f"{self.chain[-1].message} {stripped}".strip())
        return self._waits < max(_AFTERWARDS, self._goes_on(text))

    def _goes_on(self, text: str) -> int:
        """In how many lines the message may go on."""
        is_long = text.startswith(("\t", "/job:")) or (bool(self.chain) and _LONG.search(self.chain[-1].message))
        return _MOST_OF_MESSAGE if is_long else _FEW_OF_MESSAGE

    def close(self) -> None:
        """Nothing more comes: a name alone was all that was said."""
        if self._partial and self._in_frames and _FINAL.match(self._partial):
            self.chain.append(Raised(self._partial, "", place_of(self._frames)))
            self.last_line = self.line + self._count

    def fields(self) -> tuple[EventKind, dict[str, Any], str] | None:
        """Its kind, its fields, and its words. None: of what a launcher raises that says nothing of its child's end."""
        *_, last = self.chain
        if LAUNCHERS.search(last.name):
            launched = _LAUNCHED.match(last.message) if _OF_LAUNCHER.search(last.place) else None
            code = launched and (int(launched["code"]) if launched["code"] else -int(launched["signal"]))
            return ("launcher_failed", {"code": code}, last.words) if code else None
        kind, told = last.kind, last
        if len(self.chain) > 1 and (kind == "terminated" or _SAYS_LESS.match(last.message)):
            told = self.chain[0]
            kind = told.kind
        fields: dict[str, Any] = {"place": told.place}
        if self._raised_in is not None:
            fields |= {"rank": None, "pid": self._raised_in[0], "node": self._raised_in[1]}
        if kind == "exception" and _CAUSE_OF_WATCHDOG.search(told.message):
            fields["device"] = "GPU"
        if self.child is not None and kind != "exception":
            return "peer_exception", fields, told.words
        if self.child is not None:
            return "child_named", {**fields, "named": (self.child,)}, told.words
        ended = _CHILD_ENDED.search(last.message)
        if ended is not None:  # where it was raised is the spawner's place
            return "child_named", {**fields, "place": "", **by_name(ended)}, told.words
        kind, more = event_of_exception(told.name, told.message)
        return kind, {**fields, **more}, told.words


_REPORTED = re.compile(r"\[Rank (\d{1,8}) Error Snippet\]:\s*$")


def reported_for(before: str) -> int | None:
    """Whose traceback comes after these lines, as Ray Train prints them."""
    match = _REPORTED.search(before[-100:])
    return int(match[1]) if match is not None else None


# What stands above a traceback that ended nothing: a finalizer's (sys.unraisablehook; 3.14's words, too), logging's.
IGNORED = re.compile(r"(?:Exception ignored (?:in|while|from|on)\b.*|--- Logging error ---)\s*$")


# Programs that say in an exception's message whose it is: Megatron's rerun_state_machine.py, Ray Train, torch_npu.
_WHOSE = re.compile(
    r"(?:^|: |\()\[?(?:[Rr]ank|RANK|Worker rank)[ :=]{1,2}(?P<rank>\d{1,8})(?:\)|\]|,|:| Error Snippet)"
    r"(?: node:? ?(?P<node>[\w.-]{1,80}))?|\bRankID:(?P<id>\d{1,8})\b"
)


def of_whom(kind: EventKind, fields: dict[str, Any], speaker: Speaker, text: str) -> tuple[EventKind, dict[str, Any]]:
    """What an exception says of itself: of which rank it is, whoever printed it, and that a GPU is broken."""
    fields = {**fields, "is_of_hardware": _OF_HARDWARE.search(text) is not None}
    match = _WHOSE.search(text[:300])
    if match is None or fields.get("rank") is not None:
        return kind, fields
    rank = int(match["rank"] or match["id"])
    if speaker.rank is not None and speaker.rank != rank:
        return "remote_named", {**fields, "named": (rank,)}
    return kind, {"node": match["node"] or speaker.node, **fields, "rank": rank}


_SAID_BY_EXCEPTIONS = (
    "gloo_timeout", "barrier_named", "heartbeat_named", "collective_timeout", "peer_lost", "mismatch", "worker_lost",
    "remote_named",
)  # fmt: skip


def event_of_exception(name: str, message: str) -> tuple[EventKind, dict[str, Any]]:
    """An event's kind and fields: what the message reports of other ranks, if anything."""
    kind = kind_of_exception(name, message)
    found = next(((row.kind, fields) for row, fields, _ in events_in(message)), None)
    return found if kind == "peer_exception" and found and found[0] in _SAID_BY_EXCEPTIONS else (kind, {})


@dataclass
class StackBlock(_Block):
    """faulthandler's stack of one thread, innermost first."""

    frames: list[str] = field(default_factory=list)

    def take(self, text: str, _number: int) -> bool:
        frame = FRAME.match(text)
        if frame is None:
            return False
        self.frames.append(f"{frame[3]} ({frame[1]}:{frame[2]})")
        return len(self.frames) < 100


MISSING_RANKS = "Missing ranks:"
MISSING = re.compile(r"(\d{1,8})!?: \[")  # "!": longer than the limit after which Horovod shuts down


@dataclass
class MissingRanks(_Block):
    """Horovod's list of ranks that have not submitted what the others wait for (common/stall_inspector.cc)."""

    ranks: list[int] = field(default_factory=list)
    text: str = MISSING_RANKS

    def take(self, text: str, _number: int) -> bool:
        match = MISSING.match(text)
        if match is None:
            return False
        self.ranks.append(int(match[1]))
        self.text += f" {text[:120]}"
        return len(self.ranks) < MOST_LINES


_ENTRY = re.compile(r"\s*\[(\d{1,6})\]:\s*$")
_FIELD = re.compile(
    r"\s*(?:time\s*: ?(?P<time>.*)|host\s*: ?(?!localhost\s*$)(?P<node>\S+)"
    r"|rank\s*: ?(?P<rank>\d{1,8}) \(local_rank: (?P<named>\d{1,6})\)"
    r"|exitcode\s*: ?(?P<exitcode>-?\d{1,5}) +\(pid: (?P<pid>\d{1,8})\)"
    r"|error_file\s*: ?.*/(?P<device>[^/\s]{1,200}_[a-z0-9_]{8})/attempt_(?P<attempt>\d{1,6})/\d{1,6}/error\.json"
    r"|traceback\s*: ?(?P<traceback>Traceback))"
)
RULE = "=" * 20


@dataclass
class FailedRank:
    """One entry of torchrun's table. ``fields``: of the event that it is, and the time; ``last``: of its traceback."""

    line: int
    fields: Fields
    last: str = ""

    @property
    def words(self) -> str:
        """It must have a rank and an exit code."""
        (local_rank,), code = self.fields["named"], self.fields["code"]
        ended = f"exitcode {code}" if self.fields["how"] == "exit" else f"ended by signal {code}"
        return f"rank {self.fields['rank']} (local_rank {local_rank}, pid {self.fields['pid']}): {ended}"


@dataclass
class TorchrunBlock(_Block):
    """The table from "Failures:" on; the one that the agent saw first stands below "Root Cause"."""

    entries: list[FailedRank] = field(default_factory=list)
    _is_first: bool = False
    _in_traceback: bool = False
    _count: int = 0

    def take(self, text: str, number: int) -> bool:
        self._count += 1
        stripped = text.strip()
        if stripped.startswith(RULE) and self._count > 2:
            return False
        if stripped.startswith("Root Cause"):
            self._is_first = True
        elif _ENTRY.match(text):
            self.entries.append(FailedRank(number, {"is_first": self._is_first}))
            self._in_traceback = False
        elif self.entries and self._in_traceback:
            if text[:2] == "  " and text[2:3].strip():
                self._of_traceback(self.entries[-1], stripped)
        elif self.entries and (match := _FIELD.match(text)):
            found = by_name(match)
            self._in_traceback = found.pop("traceback", None) is not None
            self.entries[-1].fields.update(found)
        return self._count < 100_000

    def _of_traceback(self, entry: FailedRank, stripped: str) -> None:
        """A line that is not indented beyond the block: what was raised, and the rest of what it says."""
        final = _FINAL.match(stripped)
        if final is not None and (final[2] or "." in final[1]):
            entry.last = stripped
        elif entry.last and len(entry.last) < 300:
            entry.last = f"{entry.last} {stripped}"
