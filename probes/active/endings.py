"""Why a probe process ended, in words. Pure."""

from __future__ import annotations

import re
import signal

from mltop.probes.model.units import signal_name

_MOST_CHARACTERS = 300
# "RuntimeError: …" and what C++ prints before it aborts, also where the line has more in front.
_EXCEPTION = re.compile(r"(?:^|\s)((?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit|NotMet)\b: .+)")
_WHAT = re.compile(r"^\s*what\(\):\s*(.+)")
_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|\bMemoryError\b|[Cc]annot allocate memory|can't allocate memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|bad_alloc"
)
# What gloo, NCCL and torch's store say when another rank is gone or late.
LOST = (
    *("connection closed", "connection reset", "reset by peer", "connection refused", "socket is not connected"),
    *("connectfullmesh", "broken pipe", "timed out", "timeout", "failed to recv"),
    *("remote process exited", "ncclremoteerror", "nccl communicator was aborted"),
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


def rank_death(status: int, output: str) -> tuple[str, str]:
    """The kind (died, killed, aborted, disconnected; see RankState) and the words. ``status``: of waitpid(2)."""
    words = last_words(output)
    number = status & 0x7F
    if number == signal.SIGABRT:
        # gloo's own threads end the process when a peer is gone.
        kind = "disconnected" if is_lost(words) else "aborted"
        return kind, "died: aborted (SIGABRT)" + (f": {words}" if words else "")
    if number:
        kind, how = ("killed", "killed") if number == signal.SIGKILL else ("died", "ended")
        return kind, f"died: {how} ({signal_name(number)})"
    return "died", f"died: ended with exit code {status >> 8}" + (f": {words}" if words else "")


def is_lost(text: str) -> bool:
    """Whether a library says this when the fault is another rank's."""
    return any(words in text.lower() for words in LOST)


def last_words(output: str) -> str:
    """The last exception in what a process wrote, else the last line; "" for silence."""
    written = output.partition("Fatal Python error")[0].splitlines()
    plain = ("".join(char if char.isprintable() else " " for char in line).strip() for line in written)
    lines = list(filter(None, plain))
    for line in reversed(lines):
        exception = _WHAT.match(line) or _EXCEPTION.search(line)
        if exception:
            return _short(exception.group(1))
    return _short(lines[-1]) if lines else ""


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
