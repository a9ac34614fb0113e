"""One file of a job, opened and read: plain or compressed, a log or torchelastic's error file, and what its path says.

A file is a stranger's: only plain files are opened, what is no text or cannot be unpacked is said, never guessed at.
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, Callable

from mltop.probes.collect.logs.anchors import events_in, numbers
from mltop.probes.collect.logs.parser import MOST_SPEAKERS, LogParser, pattern_of, quoted, step_in
from mltop.probes.collect.logs.prefixes import Clock, is_by_host, speaker_of, without_colours
from mltop.probes.collect.logs.scanning import Scanner, blocks
from mltop.probes.collect.logs.tracebacks import FRAME, event_of_exception, place_of
from mltop.probes.collect.records.files import error_json
from mltop.probes.model.evidence.logs import EventKind, GoodEnds, LogEvent, LogFile, Speaker
from mltop.probes.model.gap import Gap
from mltop.probes.system.files import BadFile, open_regular

# What the first and the last lines of a file tell of all of it: who writes there, when, how far training came, whether
# it ends well, and which line tells most of an end that no row of the tables knows.

EDGE = 64 * 1024  # bytes
_LONGEST = 2_000  # characters that are looked at of a line

# In lower case. "served": a server answers: uvicorn's access log, and vLLM's and SGLang's throughput.
# "succeeded": a launcher says so of the whole job: torch elastic/agent/server/api.py, Ray dashboard/modules/job/cli.py,
# scontrol. "ended": a trainer is done: transformers trainer.py, Lightning fit_loop.py and signal_connector.py, Megatron
# training.py, DeepSpeed launcher/launch.py, verl ray_trainer.py; and what programs say of themselves. "closed": a
# server or a tracker has shut down in order, whatever came before: uvicorn, wandb. "refused": a server fails to
# answer. "maybe": of anything.
_ENDS = re.compile(
    r'(?P<served>http/\d(?:\.\d)?" 2\d\d\b|throughput[^:]{0,30}: ?\d)'
    r"|(?P<succeeded>worker group successfully finished|workerstate\.succeeded|\bjob '?[\w-]{1,80}'? succeeded"
    r"|\bstate=completed\b)"
    r"|(?P<ended>'train_runtime'|`trainer\.fit` stopped: |requeued slurm job|\bexiting program (?:at|after) \w"
    r"|\[after training is done\]|final validation metrics"
    r"|\b(?:training (?:is |has )?(?:completed?|finished|done|ended)|(?:finished|completed) training)\b"
    r"(?! (?:(?:for|of|in) )?(?:the )?(?:iteration|epoch|step|round|batch|stage|phase|fold|trial|shard)\b))"
    r'|(?P<refused>http/\d(?:\.\d)?" 5\d\d\b)'
    r"|(?P<closed>finished server process|application shutdown complete|process to finish\W{0,5}\(success\))"
    r"|(?P<maybe>exits successfully"
    r"|^\W{0,8}done\W{0,8}$|\b(?:finished|completed) successfully\b|\bsuccessfully (?:completed|finished)\b"
    r"|\bexit(?:ed)?(?: with)? ?(?:code|status)[ :=]+0\b)"
)
_LAST = 5  # lines in which "maybe" is the end of all, not of a part
# Words of training and serving, of which a log of another kind has hardly any.
_OF_TRAINING = re.compile(
    r"\b(?:torch\w*|c10d|cuda|nccl|rccl|hccl|gpus?|ranks?|epochs?|train(?:ing|er)?|checkpoints?|loss|vllm|sglang|deepspeed"
    r"|megatron|ray(?:let)?|jax|xla|srun|slurm\w*|mpi\w*|horovod|lightning|tensors?|tokens?|models?|batch(?:es)?)\b"
)
_LEAST_WORDS = 2
_LONGEST_END = 40  # lines: of what a program's last exception, and its launcher's, take
_OF_ANY_PROGRAM = ("exception", "peer_exception", "terminated", "stack")  # in Python, unless they end it
_OF_AGENT = re.compile(
    r"[IWE]\d{4} [\d:.]{8,18} \d{1,8} (?:site-packages/)?torch/distributed/(?:elastic|launcher|run\.py)"
)
_INTRODUCED = re.compile(
    r"(?i).{0,60}\brank:? (\d{1,8}) ?(?:of|/) ?\d|(?:.{0,80} - )?\[rank[ -](\d{1,8})\]:? \w"
)  # "rank 2 of 4 up", "memory.py:47 - [Rank 3] before", of a process whose pid is known
_API_SERVER = "APIServer"  # vLLM's
# How severe a line looks of which nothing else is known, the gravest first; in lower case.
_SEVERE = (
    re.compile(
        r"\b(?:segmentation fault|core dumped|out of memory|oom-?killed|killed|panic|fatal|abort(?:ed)?)\b"
        r"|\bf\d{4} \d\d:"
    ),
    re.compile(
        r"\b(?:died|dead|crash(?:ed)?|fail(?:ed|ure)|timed? ?out|stuck|hung|lost|terminated|unexpected(?:ly)?"
        r"|critical)\b|\bexit(?:ed)?[ _]?(?:code|status)[ :=]{1,2}[1-9]|\brunning: 0 reqs, waiting: [1-9]"
    ),
    re.compile(r"(?:error|exception)\b|\b(?:unable to|could not|cannot)\b|\be\d{4} \d\d:"),
)


def read_beginning(file: LogFile, data: bytes, clock: Clock) -> bool:
    """Who writes there, the first stamp and step. Returns whether each line begins with its host."""
    lines = without_colours(data.decode("utf-8", "replace")).split("\n")
    stamps = (clock.stamp(line[:200]) for line in lines)
    file.first_at = next((at for at in stamps if at is not None), None)
    by_host = is_by_host(lines)
    for number, line in enumerate(lines, 1):
        for _, rest in _rests(file, line, by_host=by_host):
            if file.first_step is None and (step := step_in(rest)) is not None:
                file.first_step, file.first_step_line = step, number
    return by_host


def read_end(file: LogFile, data: bytes, clock: Clock, *, by_host: bool) -> None:
    """Who writes there, the last stamp and step, whether it ends well, and which lines tell most."""
    lines = without_colours(data.decode("utf-8", "replace")).split("\n")
    stamps = (clock.stamp(line[:200]) for line in reversed(lines))
    file.last_at = next((at for at in stamps if at is not None), None)
    unread = _Unread(file)
    words: set[str] = set()
    for index, line in enumerate(lines):
        number = max(0, file.lines - (len(lines) - 1 - index) + (0 if lines[-1] else 1))
        rests = _rests(file, line, by_host=by_host)
        for _, rest in rests:
            step = step_in(rest)
            if step is not None:
                if step > (file.last_step or 0):  # what had ended was a part: training goes on
                    file.good_ends.latest, file.good_ends.trained = file.good_ends.succeeded, 0
                if step != file.last_step:
                    file.last_steps = [*file.last_steps[-2:], number]
                file.last_step, file.last_step_line = step, number
        seen = line[:_LONGEST].lower()
        if len(words) < _LEAST_WORDS:
            words.update(_OF_TRAINING.findall(seen))
        if _note_end(file.good_ends, seen, number, rests[-1][0], is_last=index >= len(lines) - 1 - _LAST):
            file.good_ends.text = quoted(line[:_LONGEST])
        unread.take(number, line[:_LONGEST], seen, *rests[-1])
    has_writers = any(speaker.rank is not None or speaker.process for speaker in file.speakers)
    end = file.lines - _LONGEST_END
    has_events = any(event.kind not in _OF_ANY_PROGRAM or event.line >= end for event in file.events)
    file.is_of_training = has_writers or file.last_step is not None or has_events or len(words) >= _LEAST_WORDS
    unread.finish(clock)


def _note_end(ends: GoodEnds, line: str, number: int, speaker: Speaker, *, is_last: bool) -> bool:
    """Whether this line is an end now."""
    match = _ENDS.search(line)
    if match is None:
        return False
    if match.lastgroup in ("served", "refused"):
        if speaker.pid is None or speaker.process == _API_SERVER:  # else it is one of several engines beside training
            setattr(ends, match.lastgroup, number)
        return False
    if match.lastgroup == "closed" and ends.served < ends.refused:  # somebody ended a server that answered no more
        return False
    if match.lastgroup == "maybe" and (not is_last or "agent" in line):  # Ray's agents are none of the job's
        return False
    ends.latest = number
    ends.trained = number if match.lastgroup == "ended" else ends.trained
    ends.succeeded = number if match.lastgroup == "succeeded" else ends.succeeded
    return True


# What happened to a process, and a rank beside it: "worker 3 died", "lost contact with rank 5".
_GONE = (
    r"(?:died|dead|crashed|killed|terminated|aborted|exited|failed|lost|disconnected|missing|unreachable|unresponsive"
    r"|unhealthy|hung|stuck|not respond(?:ing)?|(?:did not|has not|have not|never|failed to) \w+)"
)
_NUMBERED = r"(?:ranks?|workers?|tasks?|shards?)[ #:=_-]{0,3}\[?(?P<named>\d{1,6}(?:, ?\d{1,6}){0,40})\b\]?"
_BLAMED = (
    re.compile(rf"\b{_NUMBERED}\)?[,:]? (?:on [\w.-]{{1,80}} |\([^()]{{1,60}}\) |process ){{0,2}}"
               rf"(?:has |have |was |were |is |are |had |been |unexpectedly ){{0,3}}{_GONE}\b"),
    re.compile(rf"\b(?:{_GONE}|no (?:heartbeat|response|reply|answer|word))(?: \w+){{0,2}} "
               rf"(?:from|of|on|by|with|to) {_NUMBERED}"),
)  # fmt: skip
_HARMLESS = re.compile(r"(?<!nccl )\b(?:info|debug|warn(?:ing)?)\b|^\[?[iw]\d{3,4} ")  # levels of loggers
# What is wrong with somebody else, or with what lies between.
_OF_OTHERS = re.compile(
    r"peer|remote|connect|socket|network|time[ds]? ?out|wait|watchdog|barrier|heartbeat|rendezvous|broken pipe|other "
    r"|unreachable|collective|abort|shut(?:ting)? ?down|terminat|coordinat|see "
)
_MOST_SET = 10  # values: a line with more lists settings
_RAISED = re.compile(r"[\w.]{1,200}(?:Error|Exception)(?::|$)")
_FRAME = re.compile(r"\s|.{0,80}(?:\bfile \"|traceback \(|above exception|\]\s{2})")


@dataclass
class _Unread:
    """The most severe of the last lines, and that of each writer of which no row knows anything."""

    file: LogFile
    _gravest: int = len(_SEVERE)
    _telling: str = ""
    _firsts: dict[tuple[Speaker, EventKind, int], LogEvent] = field(default_factory=dict)  # the last: how severe
    _raised: set[int] = field(default_factory=set)  # lines that name an exception

    def take(self, number: int, line: str, seen: str, speaker: Speaker, rest: str) -> None:
        """``seen``: the line in lower case; ``rest``: without its prefixes."""
        if seen.count("=") > _MOST_SET:
            return
        is_frame = _FRAME.match(rest.lower()) is not None
        severity = next((at for at, each in enumerate(_SEVERE) if not is_frame and each.search(seen)), len(_SEVERE))
        if seen.strip() and (severity < self._gravest or severity == self._gravest == len(_SEVERE)):
            self._gravest, self._telling, self.file.telling_line = severity, line, number
        if severity == len(_SEVERE) or _HARMLESS.search(seen):
            return
        named = next((match["named"] for each in _BLAMED if (match := each.search(seen))), "")
        kind: EventKind = "blamed" if named else "complaint" if _OF_OTHERS.search(seen) else "severe"
        if len(self._firsts) < MOST_SPEAKERS:
            event = LogEvent(kind, self.file.path, number, rest, speaker, speaker.rank, speaker.node)
            event.named = numbers(named)
            if _RAISED.match(rest):
                self._raised.add(number)
            # A writer that names one rank after the other names the first one to fail first.
            self._firsts.setdefault((speaker, kind, 0 if named else severity), event)

    def finish(self, clock: Clock) -> None:
        self.file.telling = quoted(self._telling)
        known = {event.line for event in self.file.events}
        if self.file.is_cut:
            known.add(self.file.lines)
        raising = {event.speaker for event in self.file.events if event.kind in ("exception", "peer_exception")}
        attempt = max((event.attempt for event in self.file.events), default=self.file.attempt or 0)
        gravest_first = sorted(self._firsts.items(), key=lambda item: (item[0][2], item[1].line))
        for _, event in gravest_first:
            if event.speaker in raising and event.line in self._raised:
                continue  # one of a chain, which its last one explains
            if event.line not in known and next(events_in(event.text), None) is None:
                event.at = clock.stamp(event.text[:200])
                event.is_dated, event.attempt = event.at is not None, attempt
                event.text, event.pattern = quoted(event.text), pattern_of(event.text)
                self.file.events.append(event)


def _rests(file: LogFile, line: str, *, by_host: bool) -> list[tuple[Speaker, str]]:
    """What a line says (and each state of a progress bar in it), and whose prefixes it has, which are noted."""
    found = []
    for part in line.split("\r") if "\r" in line else (line,):
        speaker, rest = speaker_of(part[:300], by_host=by_host)
        own = _INTRODUCED.match(rest) if speaker.pid is not None and speaker.rank is None else None
        if own is not None:
            speaker = replace(speaker, rank=int(own[1] or own[2]))
        if speaker != Speaker() and len(file.speakers) < MOST_SPEAKERS:
            file.speakers.add(speaker)
        file.is_of_agent = file.is_of_agent or _OF_AGENT.match(rest) is not None
        found.append((speaker, rest))
    return found


Progress = Callable[[int], None]

# What is read of a packed file at most, where it is small, and as a multiple of its size: logs that say one thing all
# the time pack a thousandfold.
_MOST_UNPACKED, _MOST_TIMES = 4 << 30, 100
_MOST_XZ = 192 << 20  # bytes of memory that an xz file may ask for: xz -9 needs 65 MiB
_MOST_PARTS = 200_000  # of a packed file: bgzip makes one for each 64 KiB
_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)
_LOOKED_AT = 16  # lines, to see whether it is text
_MOST_ERROR_FILE = 4 << 20
_RANK_FOLDER = re.compile(
    r"(?:^|/)([^/]+)/attempt_(\d{1,6})/(\d{1,6})/(?:stdout\.log|stderr\.log|error\.json)(?:\.\w{2,4})?$"
)
_MPI_FOLDER = re.compile(r"(?:^|/)([^/]+)/rank[._-]?(\d{1,8})/std(?:out|err)$")  # mpirun --output-filename
_RANK_NAME = re.compile(r"(?:^|[^a-z])rank[_.-]?(\d{1,8})(?!\d)", re.IGNORECASE)
_SLURM_NAME = re.compile(r"(?:^|/)(?:slurm|job)[-_](\d{1,12})(?:_\d+)?(?=[^\d/]*[^/]*$)")
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_NUMBER = re.compile(r"(\d{1,8})(?!.*\d)")


def described(path: str) -> LogFile:
    """What a path says, before the file is opened."""
    file = LogFile(path)
    match = _RANK_FOLDER.search(path)
    if match is not None:
        file.run, file.attempt, file.local_rank = match[1], int(match[2]), int(match[3])
        file.run_parent = path[: match.start(1)].rstrip("/")
        file.is_error_file = "/error.json" in path
    of_mpi = _MPI_FOLDER.search(path)
    if of_mpi is not None:
        file.run, file.rank = path[: of_mpi.end(1)], int(of_mpi[2])
        file.run_parent = path[: of_mpi.start(1)].rstrip("/")
    name = path.rpartition("/")[2]
    rank = _RANK_NAME.search(name) if match is None else None
    file.rank = int(rank[1]) if rank else file.rank
    stem = name
    while stem.endswith((*_PACKED, ".log", ".out", ".err", ".txt")):
        stem = stem.rpartition(".")[0]
    number = _NUMBER.search(stem)
    file.number = int(number[1]) if number else None
    file.series = f"{path[: len(path) - len(name)]}{stem[: number.start(1)] if number else stem}"
    job = _SLURM_NAME.search(path)
    file.slurm_job = job[1] if job else ""
    return file


def read_log(path: str, progress: Progress | None = None) -> LogFile:
    """Everything that the file tells. What cannot be read is a gap of it."""
    file = described(path)
    try:
        with opened(path) as (stream, written_at, size_bytes):
            file.size_bytes = size_bytes
            most = None if isinstance(stream, io.FileIO) else max(_MOST_UNPACKED, _MOST_TIMES * size_bytes)
            _read(file, stream, written_at, progress, most)
    except _UNREADABLE as error:
        file.gaps.append(_unread(path, error))
    return file


def _unread(path: str, error: Exception) -> Gap:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Gap.about("log", item=path, why=f"cannot be read to its end: {why}")


def read_stream(name: str, stream: BinaryIO, written_at: float, progress: Progress | None = None) -> LogFile:
    """Of standard input."""
    file = LogFile(name)
    _read(file, stream, written_at, progress)
    return file


def _read(
    file: LogFile, stream: BinaryIO, written_at: float, progress: Progress | None, most: int | None = None
) -> None:
    clock = Clock(written_at)
    if file.path.endswith((".json", ".json.gz")) and ("error" in file.path.rpartition("/")[2] or file.is_error_file):
        data = stream.read(_MOST_ERROR_FILE)
        if _error_file(file, data, written_at):
            return
        stream = io.BytesIO(data)
    parser = LogParser(file, clock)
    scanner = Scanner(parser)
    last, before = b"", b""
    for block in _readable(file, blocks(stream, progress, most)):
        unfit = _why_no_text(block) if scanner.lines < _LOOKED_AT else ""
        if unfit:
            file.gaps.append(Gap.about("log", item=file.path, why=unfit))
            return
        if not last:
            parser.by_host = read_beginning(file, block[:EDGE], clock)
        scanner.feed(block)
        before, last = last, block
    file.lines = scanner.lines + (1 if last and not last.endswith(b"\n") else 0)
    file.is_cut = bool(last) and (bool(file.gaps) or not last.endswith((b"\n", b"\r")))
    parser.finish()
    read_end(file, (before[-EDGE:] + last)[-EDGE:], clock, by_host=parser.by_host)


def _readable(file: LogFile, found: Iterator[bytes]) -> Iterator[bytes]:
    """As far as the file can be read: what was read by then is judged."""
    try:
        yield from found
    except _UNREADABLE as error:
        file.gaps.append(_unread(file.path, error))


_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf": "a 7z archive", b"Rar!": "a rar archive"}
_PICKLES = (b"\x80\x02", b"\x80\x04", b"\x80\x05")


def _why_no_text(block: bytes) -> str:
    """More than a stray NUL: a pickle, an archive, a picture; "" of text."""
    head = block[:4096]
    packed = _ARCHIVES.get(head[:4]) or ("a tar archive" if head[257:262] == b"ustar" else "")
    if packed:
        return f"is {packed}: unpack it first"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)"
    return "is no text" if head.startswith(_PICKLES) or head.count(b"\0") > len(head) // 10 else ""


def _error_file(file: LogFile, data: bytes, written_at: float) -> bool:
    """torchelastic's ``error.json``; False when it is something else."""
    raised = error_json(data)
    if raised is None:
        return False
    text, raised_at, more = raised
    at = written_at if raised_at is None else float(raised_at)
    first, _, rest = text.partition("\n")
    first = f"{first} {rest[:300]}".replace("\n", " ").strip()
    name, _, words = first.partition(": ")
    kind, fields = event_of_exception(name if re.fullmatch(r"[\w.]+", name) else "DistError", words)
    place = place_of([match.groups() for match in map(FRAME.match, str(more.get("py_callstack")).split("\n")) if match])
    event = LogEvent(kind, file.path, 1, quoted(first), at=at, is_dated=True, attempt=file.attempt or 0, place=place)
    file.events.append(replace(event, pattern=pattern_of(first), **fields))
    file.is_error_file, file.lines, file.last_at = True, 1, at
    return True


@contextmanager
def opened(path: str) -> Iterator[tuple[BinaryIO, float, int]]:
    """The unpacked bytes, when the file was last written, and its size on disk."""
    try:
        place = open_regular(path)
    except BadFile:
        raise OSError(0, "is no plain file") from None
    with os.fdopen(place, "rb", buffering=0) as raw:
        found = os.fstat(raw.fileno())
        head = raw.read(6) or b""
        raw.seek(0)
        if head.startswith(b"\x28\xb5\x2f\xfd"):
            with _by_zstd(raw) as stream:
                yield stream, found.st_mtime, found.st_size
            return
        yield _unpacking(raw, head), found.st_mtime, found.st_size


def _unpacking(raw: BinaryIO, head: bytes) -> BinaryIO:
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(_Unpacked(raw, partial(zlib.decompressobj, wbits=31)))
    if head.startswith(b"BZh"):
        return io.BufferedReader(_Unpacked(raw, bz2.BZ2Decompressor))
    if head.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(_Unpacked(raw, partial(lzma.LZMADecompressor, memlimit=_MOST_XZ)))
    return raw


class _Unpacked(io.RawIOBase):
    """A packed file unpacked. Python's own classes know no limit of memory (xz), and read the name that a gzip file may
    hold byte by byte.
    """

    def __init__(self, packed: BinaryIO, make: Callable[[], Any]) -> None:
        self._packed, self._make = packed, make
        self._unpacker = make()
        self._rest, self._parts = b"", 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._unpacker.eof:  # several one after the other, and NULs between them, are one file
                self._rest = self._unpacker.unused_data.lstrip(b"\0") or self._packed.read(_PACKED_PIECE).lstrip(b"\0")
                if not self._rest:
                    return 0
                self._parts += 1
                if self._parts > _MOST_PARTS:
                    raise ValueError(f"it is more than {_MOST_PARTS:,} packed files one after the other")
                self._unpacker = self._make()
            needs_input = not self._rest and getattr(self._unpacker, "needs_input", True)
            data = self._packed.read(_PACKED_PIECE) if needs_input else self._rest
            found = self._unpacker.decompress(data, len(buffer))
            self._rest = getattr(self._unpacker, "unconsumed_tail", b"")  # zlib keeps no input itself
            if found:
                buffer[: len(found)] = found
                return len(found)
            if needs_input and not data and not self._unpacker.eof:
                raise EOFError("it ends in the middle")


_PACKED_PIECE = 64 * 1024


@contextmanager
def _by_zstd(raw: BinaryIO) -> Iterator[BinaryIO]:
    """Python's own module (3.14), or the program of that name."""
    own: Any = None
    if sys.version_info >= (3, 14):
        with suppress(ImportError):  # it may be built without
            own = importlib.import_module("compression.zstd")
    if own is not None:
        yield own.ZstdFile(raw)
        return
    program = shutil.which("zstd")
    if program is None:
        raise OSError(0, "zstd is not on this machine: unpack it first")
    with subprocess.Popen([program, "-dc"], stdin=raw, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            assert child.stdout is not None
            yield child.stdout  # type: ignore[misc]
            is_read = not child.stdout.read(1)  # else nobody wanted the rest, and the child waits for a reader
            if is_read and child.wait() != 0:
                raise OSError(0, "is no whole zstd file")
        finally:
            child.kill()
