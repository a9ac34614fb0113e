"""What the first and the last lines of a file tell of all of it: who writes there, when, how far training came, whether
it ends well, and which line tells most of an end that no row of the tables knows.
"""

from __future__ import annotations

import re

from mltop.probes.collect.logs.parser import MOST_SPEAKERS, quoted, step_in
from mltop.probes.collect.logs.prefixes import Clock, is_by_host, speaker_of, without_colours
from mltop.probes.model.evidence.logs import LogFile, Speaker

EDGE = 64 * 1024  # bytes
_LONGEST = 2_000  # characters that are looked at of a line

# In lower case. "served": a server answers: uvicorn's access log, and vLLM's and SGLang's throughput.
# "succeeded": a launcher says so of the whole job: torch elastic/agent/server/api.py, Ray dashboard/modules/job/cli.py,
# scontrol. "ended": a trainer is done: transformers trainer.py, Lightning fit_loop.py and signal_connector.py, Megatron
# training.py, DeepSpeed launcher/launch.py, verl ray_trainer.py; and what programs say of themselves. "maybe": of
# anything.
_ENDS = re.compile(
    r'(?P<served>http/\d(?:\.\d)?" 2\d\d\b|throughput[^:]{0,30}: ?\d)'
    r"|(?P<succeeded>worker group successfully finished|workerstate\.succeeded|\bjob '?[\w-]{1,80}'? succeeded"
    r"|\bstate=completed\b)"
    r"|(?P<ended>'train_runtime'|`trainer\.fit` stopped: |requeued slurm job|\[exiting program (?:at|after) "
    r"|\[after training is done\]|final validation metrics"
    r"|\btraining (?:is |has )?(?:completed?|finished|done|ended)\b|\b(?:finished|completed) training\b)"
    r"|(?P<maybe>exits successfully|\b(?:finished|completed) successfully\b|\bsuccessfully (?:completed|finished)\b"
    r"|\bexit(?:ed)?(?: with)? ?(?:code|status)[ :=]+0\b)"
)
_LAST = 5  # lines in which "maybe" is the end of all, not of a part
# Words of training and serving, of which a log of another kind has hardly any.
_OF_TRAINING = re.compile(
    r"\b(?:torch\w*|cuda|nccl|rccl|hccl|gpus?|ranks?|epochs?|train(?:ing|er)?|checkpoints?|loss|vllm|sglang|deepspeed"
    r"|megatron|ray(?:let)?|jax|xla|srun|slurm\w*|mpi\w*|horovod|lightning|tensors?|tokens?|models?|batch(?:es)?)\b"
)
_LEAST_WORDS = 2
_API_SERVER = "APIServer"  # vLLM's
# How severe a line looks of which nothing else is known, the gravest first; in lower case.
_SEVERE = (
    re.compile(
        r"\b(?:segmentation fault|core dumped|out of memory|oom-?killed|killed|panic|fatal|abort(?:ed)?)\b"
        r"|\bf\d{4} \d\d:"
    ),
    re.compile(r"\b(?:died|dead|crash(?:ed)?|fail(?:ed|ure)|timed? ?out|stuck|hung|unexpected(?:ly)?|critical)\b"),
    re.compile(r"(?:error|exception)\b|\be\d{4} \d\d:"),
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
    """Who writes there, the last stamp and step, whether it ends well, and which line tells most."""
    lines = without_colours(data.decode("utf-8", "replace")).split("\n")
    stamps = (clock.stamp(line[:200]) for line in reversed(lines))
    file.last_at = next((at for at in stamps if at is not None), None)
    gravest, telling = len(_SEVERE), ""
    words: set[str] = set()
    for index, line in enumerate(lines):
        number = max(0, file.lines - (len(lines) - 1 - index) + (0 if file.is_cut else 1))
        rests = _rests(file, line, by_host=by_host)
        for _, rest in rests:
            step = step_in(rest)
            if step is not None:
                if step > (file.last_step or 0):
                    file.ended_line, file.trained_line = file.succeeded_line, 0  # of a part: training goes on
                file.last_step, file.last_step_line = step, number
        seen = line[:_LONGEST].lower()
        if len(words) < _LEAST_WORDS:
            words.update(_OF_TRAINING.findall(seen))
        _note_end(file, seen, number, rests[-1][0], is_last=index >= len(lines) - 1 - _LAST)
        severity = next((at for at, each in enumerate(_SEVERE[:gravest]) if each.search(seen)), len(_SEVERE))
        if seen.strip() and (severity < gravest or severity == gravest == len(_SEVERE)):
            gravest, telling, file.telling_line = severity, line[:_LONGEST], number
    file.telling = quoted(telling)
    has_writers = any(speaker.rank is not None or speaker.process for speaker in file.speakers)
    file.is_of_training = has_writers or file.last_step is not None or bool(file.events) or len(words) >= _LEAST_WORDS


def _note_end(file: LogFile, line: str, number: int, speaker: Speaker, *, is_last: bool) -> None:
    match = _ENDS.search(line)
    if match is None:
        return
    if match.lastgroup == "served":
        if speaker.pid is None or speaker.process == _API_SERVER:  # else it is one of several engines beside training
            file.last_served_line = number
    elif match.lastgroup != "maybe" or is_last:
        file.ended_line = number
        file.trained_line = number if match.lastgroup == "ended" else file.trained_line
        file.succeeded_line = number if match.lastgroup == "succeeded" else file.succeeded_line


def _rests(file: LogFile, line: str, *, by_host: bool) -> list[tuple[Speaker, str]]:
    """What a line says (and each state of a progress bar in it), and whose prefixes it has, which are noted."""
    found = []
    for part in line.split("\r") if "\r" in line else (line,):
        speaker, rest = speaker_of(part[:300], by_host=by_host)
        if speaker != Speaker() and len(file.speakers) < MOST_SPEAKERS:
            file.speakers.add(speaker)
        found.append((speaker, rest))
    return found
