"""What the first and the last lines of a file tell of all of it: who writes there, when, how far training came, whether
it ends well, and which line tells most of an end that no row of the tables knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from mltop.probes.collect.logs.anchors import events_in
from mltop.probes.collect.logs.parser import MOST_SPEAKERS, pattern_of, quoted, step_in
from mltop.probes.collect.logs.prefixes import Clock, is_by_host, speaker_of, without_colours
from mltop.probes.collect.logs.rows import numbers
from mltop.probes.model.evidence.logs import EventKind, GoodEnds, LogEvent, LogFile, Speaker

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
    r"\b(?:torch\w*|cuda|nccl|rccl|hccl|gpus?|ranks?|epochs?|train(?:ing|er)?|checkpoints?|loss|vllm|sglang|deepspeed"
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
        number = max(0, file.lines - (len(lines) - 1 - index) + (0 if file.is_cut else 1))
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
        severity = next((at for at, each in enumerate(_SEVERE) if each.search(seen)), len(_SEVERE))
        if seen.strip() and (severity < self._gravest or severity == self._gravest == len(_SEVERE)):
            self._gravest, self._telling, self.file.telling_line = severity, line, number
        if severity == len(_SEVERE) or _HARMLESS.search(seen) or _FRAME.match(rest.lower()):
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
