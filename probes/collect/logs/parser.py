"""From the lines of one file that may matter to events: whose line it is, which anchor it has, which block it is in."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Callable, Union

from mltop.probes.collect.logs.anchors import THINNED, events_in, group_of
from mltop.probes.collect.logs.prefixes import Clock, pieces, speaker_of, without_colours
from mltop.probes.collect.logs.topics import topic_of
from mltop.probes.collect.logs.tracebacks import (
    BOXED,
    IGNORED,
    MISSING,
    MISSING_RANKS,
    TRACEBACK,
    MissingRanks,
    StackBlock,
    TorchrunBlock,
    TracebackBlock,
    event_of_exception,
    of_whom,
    reported_for,
)
from mltop.probes.collect.redaction.shapes import clipped
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.model.evidence.logs import EventKind, LogEvent, LogFile, Speaker
from mltop.probes.model.gap import Gap
from mltop.probes.model.text import clean

Block = Union[TracebackBlock, StackBlock, TorchrunBlock, MissingRanks]

MOST_QUOTED = 400  # characters
MOST_SPEAKERS = 8192
MOST_EVENTS = 65_536  # of a file
_MOST_ATTEMPTS = 1_000  # in one file
_LONGEST_GAP = 8_192  # lines of others between two of a block: who writes none for so long writes no more
_MOST_ALIKE = 5  # of one kind of one writer: the first ones
_MOST_STACKS = 64  # threads: the main one comes last
_MOST_RAISED = 4  # exceptions: also the last ones, as those that were handled come before the one that was not
# Messages of several lines, by what their first one has: JAX names a task or a number in each, mpirun the exit code.
_HEADS = ("tasks are unhealthy", "Process name: ")
_REST = re.compile(r"\s*(?:/job:|\d[\d, ]*$|Exit code:)")
_REST_OF_NUMBER = re.compile(r"\d{1,12}(?:$|[.,]? )")  # of a line that was wrapped
_LONGEST_LIST, _MOST_BETWEEN = 4000, 5  # characters; lines of others
_LONGEST_ABOVE = 140  # characters of the line above
MOST_LINE = 16_384
_STACK = re.compile(r"(?:Thread|Current thread) 0x[0-9a-f]+.*\(most recent call first\):")
_RUN = re.compile(r"/([^/\s]{1,200}_[a-z0-9_]{8})/attempt_\d{1,6}/")
_STEP_ID = re.compile(r"StepId=(\d{1,12})|(?:STEP|JOB) (\d{1,12})[ .]")


def unwrapped(line: str) -> str:
    """The text of a line of docker's json-file driver: {"log": "…\\n", "stream": …, "time": …}, after its time."""
    if not line.startswith('{"log":'):
        return line
    try:
        said = json.loads(line)
        return f"{said['log']}".rstrip("\r\n") if "time" in said else line
    except (ValueError, TypeError, KeyError, RecursionError):
        return line


# What a line has that opens a block, or heads a message of several lines.
OPENING = ("most recent call", "Failures:", "Root Cause (first", "x across cluster", MISSING_RANKS, *_HEADS)
_PATTERN = 48  # characters: what follows may be cut, or be somebody else's
_VARYING = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass
class _Held:
    """A line that is judged when the next one is known: it heads a message of several lines, or ends in a number that
    the end of the file may have cut.
    """

    number: int
    text: str
    speaker: Speaker
    at: float | None
    others: int = 0


# Not Slurm's "*** STEP 640777.0 ON".
_STEP = re.compile(r"(?i)(?<!\*\* )\b(?:iteration|global[_ ]step|step|iter)[ =:#\[]*(\d{1,10})(?!\.\d)\b")


def step_in(text: str) -> int | None:
    """The last step of training that it speaks of."""
    if not any(word in text for word in _STEP_WORDS):  # ten times as fast
        return None
    steps = _STEP.findall(text)
    return int(steps[-1]) if steps else None


_STEP_WORDS = ("step", "iter", "Step", "Iter", "STEP", "ITER")


@dataclass
class LogParser:
    """``take`` the lines that may matter, in order; while ``wants_more`` also those after them."""

    file: LogFile
    clock: Clock
    before: Callable[[], str] = lambda: ""  # the lines before the one that is being taken
    by_host: bool = False  # each line begins with its host
    _blocks: dict[Speaker, Block] = field(default_factory=dict)
    _held: _Held | None = None
    _counts: dict[tuple[object, ...], int] = field(default_factory=dict)
    _attempt: int = 0
    _gave_up: bool = False
    _is_too_much: bool = False  # more at once than is followed
    _bare: tuple[Speaker, int] | None = None  # whose traceback may go on without its prefix, and its last line
    _lists: int = -1  # the last line of a list of missing ranks
    _looks_at: int = 0  # the line at which blocks are looked at that nobody goes on with

    @property
    def wants_more(self) -> bool:
        return bool(self._blocks) or self._held is not None

    def take(self, number: int, raw: bytes) -> None:
        if self._blocks and number >= self._looks_at:
            # A rank that is dead says nothing more after its traceback, while others write on for gigabytes.
            for speaker, block in list(self._blocks.items()):
                if number - block.written > _LONGEST_GAP:
                    self._close(speaker, block)
            self._looks_at = number + _LONGEST_GAP // 8
        written = unwrapped(raw[:MOST_LINE].decode("utf-8", "replace").rstrip("\r\n"))
        line = without_colours(written)
        if "\r" in line:  # a progress bar that was written over: each state of it is a line
            for part in line.split("\r"):
                if part.strip():
                    self._line(number, part)
            return
        self._line(number, line)

    def _line(self, number: int, line: str) -> None:
        outer, rest = speaker_of(line, by_host=self.by_host)
        if self._lists == number - 1 and MISSING.match(line):  # "3: [a, b]" is a rank of the list, no srun label
            outer, rest = Speaker(), line
        for index, piece in enumerate(pieces(rest)):
            inner, text = speaker_of(piece) if index else (outer, piece)
            if index:
                inner = Speaker(
                    inner.rank, outer.local_rank, outer.task, inner.node or outer.node, inner.pid or outer.pid
                )
            self._piece(number, text, inner, line if not index else piece)

    def _piece(self, number: int, text: str, speaker: Speaker, whole: str) -> None:
        if speaker != Speaker():
            self._note(speaker)
        if THINNED.search(text):
            self.file.is_thinned = True
            text = THINNED.sub("", text).rstrip()
        written_by = speaker
        bare, last = self._bare or (Speaker(), 0)
        if last == number - 1 and speaker in (Speaker(), Speaker(task=bare.task)):
            speaker = bare  # only the first line of its traceback has the prefix, or more than its launcher's label
        block = self._blocks.get(speaker)
        if block is not None:
            block.written = number
            if block.take(text, number):
                self._lists = number if isinstance(block, MissingRanks) else self._lists
                self._bare = (speaker, number) if speaker == bare != written_by else None
                return
            self._close(speaker, block)
            if isinstance(block, TorchrunBlock):
                return
            speaker = written_by
        if self._opens(number, text, speaker):
            return
        if not self._goes_on(text, speaker):
            self._anchored(number, text, speaker, whole)

    def _note(self, speaker: Speaker) -> None:
        if len(self.file.speakers) < MOST_SPEAKERS:
            self.file.speakers.add(speaker)

    def _opens(self, number: int, text: str, speaker: Speaker) -> bool:
        if len(self.file.events) >= MOST_EVENTS:
            return False
        stripped = text.strip()
        block: Block | None = None
        if (stripped.endswith(TRACEBACK) and "traceback :" not in stripped) or BOXED.search(stripped):
            block = TracebackBlock(number, before=text.partition(TRACEBACK)[0] if TRACEBACK in text else "")
        elif _STACK.search(stripped):
            block = StackBlock(number)
        elif stripped == "Failures:" or stripped.startswith("Root Cause (first observed failure)"):
            block = TorchrunBlock(number)
            block.take(text, number)
        elif stripped == MISSING_RANKS:
            block = MissingRanks(number)
            self._lists = number
        if block is None:
            return False
        before = self._blocks.pop(speaker, None)
        if before is not None:
            self._close(speaker, before)
        self._bare = (speaker, number) if speaker != Speaker() and isinstance(block, TracebackBlock) else None
        self._is_too_much = self._is_too_much or len(self._blocks) >= MOST_SPEAKERS
        if len(self._blocks) < MOST_SPEAKERS:
            self._blocks[speaker] = block
            at = self.clock.stamp(text[:200])
            lines = self.before()
            block.at = at if at is not None else self.clock.last_stamp(lines)
            block.written, block.attempt, block.step = number, self._attempt, step_in(lines)
            if isinstance(block, TracebackBlock):
                above = speaker_of(
                    without_colours(lines[-_LONGEST_ABOVE:].rstrip().rpartition("\n")[2]), by_host=self.by_host
                )
                block.of_rank = reported_for(lines)
                block.is_ignored = above[0] == speaker and IGNORED.search(above[1]) is not None
        return True

    def _anchored(self, number: int, text: str, speaker: Speaker, whole: str) -> None:
        found, at = list(events_in(text)), self.clock.stamp(whole[:400])
        is_at_end = any(ends and anchor.kind in _ENDS_IN_NUMBER for anchor, _, ends in found)
        if is_at_end or _is_head(text):
            self._release()
            self._held = _Held(number, text, speaker, at)
            return
        for anchor, fields, _ in found:
            self._add(anchor.kind, number, text, speaker, fields, at=at, holds=anchor.holds)

    def _goes_on(self, text: str, speaker: Speaker) -> bool:
        """Whether this line belongs to the one that is held back."""
        held = self._held
        if held is None:
            return False
        if _is_head(held.text) and _REST.match(text) and speaker in (Speaker(), held.speaker):
            if len(held.text) < _LONGEST_LIST:
                held.text = f"{held.text} {text}"
            return True
        is_next = held.others == 0 and speaker in (Speaker(), held.speaker)
        is_wrapped = is_next and _REST_OF_NUMBER.match(text) is not None
        held.others += 1  # another process's line may stand between
        if is_wrapped or speaker == held.speaker or held.others > _MOST_BETWEEN:
            self._release(is_cut=is_wrapped)
        return False

    def _release(self, *, is_cut: bool = False) -> None:
        """``is_cut``: the line that is held back does not end there."""
        held, self._held = self._held, None
        for anchor, fields, at_end in events_in(held.text) if held is not None else ():
            if held is not None and not (is_cut and at_end):
                self._add(anchor.kind, held.number, held.text, held.speaker, fields, at=held.at, holds=anchor.holds)

    def _close(self, speaker: Speaker, block: Block, *, at_end: bool = False) -> None:
        self._blocks.pop(speaker, None)
        of_block = {"attempt": block.attempt if self.file.attempt is None else self.file.attempt, "step": block.step}
        if isinstance(block, TorchrunBlock):
            if at_end and self.file.is_cut and block.entries:
                block.entries.pop()  # what it says may be cut off
            self._failed_ranks(block)
            return
        if isinstance(block, StackBlock):
            if block.frames:
                frames = tuple(block.frames[:40])
                self._add("stack", block.line, frames[0], speaker, {"frames": frames}, at=block.at)
            return
        if isinstance(block, MissingRanks):
            if block.ranks:
                self._add("barrier_named", block.line, block.text, speaker, {"named": tuple(block.ranks)}, at=block.at)
            return
        is_cut = at_end and self.file.is_cut
        if not is_cut:
            block.close()
        elif not block.is_ignored and (not block.chain or block.last_line >= self.file.lines):
            self.file.is_cut_in_traceback = True
        found = block.fields() if block.chain and not block.is_ignored else None
        if found is not None:
            kind, fields, words = found
            if block.of_rank is not None:
                fields["rank"] = block.of_rank
            if is_cut and kind == "exception" and block.last_line >= self.file.lines:
                return  # what it would have said of others is cut off
            self._add(
                kind, block.last_line, words, speaker, {**fields, **of_block}, at=None, near=block.at, is_block=True
            )

    def _failed_ranks(self, block: TorchrunBlock) -> None:
        self._gave_up = True
        for entry in block.entries:
            if not {"rank", "code"} <= entry.fields.keys():
                continue
            if "device" in entry.fields:
                self.file.mentions.add(entry.fields["device"])
            fields = {"attempt": max(0, self._attempt - 1), **entry.fields}
            at = self.clock.stamp(fields.pop("time", ""))
            self._add("exit", entry.line, entry.words, Speaker(), fields, at=at)
            if entry.last:
                name, _, message = entry.last.partition(": ")
                kind, more = event_of_exception(name, message)
                same = {name: fields[name] for name in fields.keys() & {"rank", "attempt", "node"}}
                self._add(
                    kind, entry.line, entry.last, Speaker(fields["rank"]), {**more, **same, "by_launcher": True}, at=at
                )

    def _add(
        self,
        kind: EventKind,
        number: int,
        text: str,
        speaker: Speaker,
        fields: dict[str, Any],
        *,
        at: float | None,
        near: float | None = None,
        is_block: bool = False,
        holds: str = "",
    ) -> None:
        if kind == "world" and "rank" in fields:
            self._note(replace(speaker, rank=fields.pop("rank")))
        fields.setdefault("attempt", self._attempt if self.file.attempt is None else self.file.attempt)
        if kind == "agent_failed":
            fields["attempt"] = self._attempt
            self._attempt = min(self._attempt + 1, _MOST_ATTEMPTS)
        if kind in ("collective_timeout", "counters", "stuck_watchdog", "network", "aborted", "exception"):
            fields = {**group_of(text), **fields}
        whose = tuple(fields.get(name) for name in ("rank", "group", "group_rank", "how", "named"))
        key = (kind, speaker, whose, fields["attempt"])
        count = self._counts.get(key, 0) + 1
        is_full = len(self.file.events) >= MOST_EVENTS
        if not is_full:
            self._counts[key] = count
        if is_full or (count > (_MOST_STACKS if kind == "stack" else _MOST_ALIKE) and kind != "exception"):
            self.file.left_out[kind] = self.file.left_out.get(kind, 0) + 1
            return
        self.file.mentions.update(match[1] for match in _RUN.finditer(text))
        self.file.mentions.update(f"job {match[1] or match[2]}" for match in islice(_STEP_ID.finditer(text), 1))
        if kind == "exception":
            kind, fields = of_whom(kind, fields, speaker, text)
        event = LogEvent(
            kind,
            self.file.path,
            number,
            quoted(text, holds),
            speaker,
            at=at if at is not None else near if is_block else self.clock.last_stamp(self.before()),
            is_dated=at is not None,
            pattern=pattern_of(text),
            **{"rank": speaker.rank, "node": speaker.node, "topic": topic_of(kind, text), **fields},
        )
        self.file.events.append(event)
        if kind == "exception" and count > _MOST_ALIKE + _MOST_RAISED:  # one in the middle is forgotten
            alike = [other for other in self.file.events if other.kind == kind and other.speaker == speaker]
            self.file.events.remove(alike[_MOST_ALIKE])
            self.file.left_out[kind] = self.file.left_out.get(kind, 0) + 1

    def drain(self) -> list[LogEvent]:
        """The events so far, which are forgotten, as is how many there were: for files that are followed."""
        events, self.file.events = self.file.events, []
        for told in (self._counts, self.file.mentions, self.file.left_out):
            told.clear()
        return events

    def finish(self) -> None:
        for speaker, block in list(self._blocks.items()):
            self._close(speaker, block, at_end=True)
        self._release(is_cut=self.file.is_cut)
        if self._is_too_much or len(self.file.events) >= MOST_EVENTS:
            why = f"has more failures than are looked at ({MOST_EVENTS} in all, {MOST_SPEAKERS} writers at a time)"
            self.file.gaps.append(Gap.about("log", item=self.file.path, why=why))
        if self._gave_up:  # what came after the last failure was of that attempt still
            last = max(0, self._attempt - 1)
            self.file.events = [
                replace(event, attempt=last) if event.attempt > last and self.file.attempt is None else event
                for event in self.file.events
            ]


def quoted(text: str, holds: str = "") -> str:
    """What may be shown of a line; of a long one its beginning, and what comes after ``holds``."""
    shown = shown_text(clean(text.strip(), 4 * MOST_QUOTED if not holds else MOST_LINE))
    at = shown.find(holds, MOST_QUOTED // 2) if holds and len(shown) > MOST_QUOTED else -1
    return clipped(shown if at < 0 else f"{shown[: MOST_QUOTED // 2]} … {shown[at:]}", MOST_QUOTED)


def pattern_of(text: str) -> str:
    """What it has in common with the same failure of another rank."""
    return _VARYING.sub("#", text)[:_PATTERN]


def _is_head(text: str) -> bool:
    return any(head in text for head in _HEADS)


# What ends in a number, which may be cut off where the file ends.
_ENDS_IN_NUMBER = ("counters", "dump_signal")
