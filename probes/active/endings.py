"""Why a probe process ended, in words. Pure."""

from __future__ import annotations

import re
import signal

_MOST_CHARACTERS = 300
# "RuntimeError: …" and what C++ prints before it aborts, also where the line has more in front.
_EXCEPTION = re.compile(r"(?:^|\s)((?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit|NotMet)\b: .+)")
_WHAT = re.compile(r"^\s*what\(\):\s*(.+)")
_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|\bMemoryError\b|[Cc]annot allocate memory|can't allocate memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|bad_alloc"
)
MEMORY_FIX = "free memory of the device or node, or take a smaller size"


def died(code: int, stage: str, output: str, oom_killed: bool) -> tuple[str, str]:
    """The sentence and what helps. ``code`` as subprocess has it, ``output``: the end of its stderr (or stdout).

    ``oom_killed``: the kernel's count of processes that it killed for want of memory rose meanwhile.
    """
    words = last_words(output)
    where = f"died in stage '{stage}'"
    if code == -signal.SIGKILL and oom_killed:
        return f"{where}: out of memory: the kernel killed it (SIGKILL)", MEMORY_FIX
    if _MEMORY.search(output):
        return f"{where}: out of memory: {words}", MEMORY_FIX
    if code < 0:
        return f"{where}: killed by {signal_name(-code)}{f' ({words})' if words else ''}", ""
    if words:
        return f"{where}: {words}", ""
    return f"{where}: it ended with exit code {code} and no result", ""


def last_words(output: str) -> str:
    """The last exception in what a process wrote, else the last line; "" for silence."""
    plain = (_plain(line) for line in output.partition("Fatal Python error")[0].splitlines())
    lines = list(filter(None, plain))
    for line in reversed(lines):
        exception = _WHAT.match(line) or _EXCEPTION.search(line)
        if exception:
            return _short(exception.group(1))
    return _short(lines[-1]) if lines else ""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def too_late(stage: str, limit_s: float, state: str = "") -> str:
    """``state``: what the kernel says of the process, where that explains it."""
    return f"stage '{stage}' was not over within {limit_s:g} s{f' ({state})' if state else ''}"


def stuck(pid: int, is_gpu: bool, state: str) -> str:
    """A process that SIGKILL did not end."""
    where = "the driver" if is_gpu else "the kernel"
    return f"stuck in {where} ({state or 'D state'}), pid {pid}: not even SIGKILL ends it"


def _plain(line: str) -> str:
    return "".join(character if character.isprintable() else " " for character in line).strip()


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
