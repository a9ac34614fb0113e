"""What a failure's words say it is about: on that depends what helps."""

from __future__ import annotations

import re

from mltop.probes.model.evidence.logs import CLASS_OF, EventKind, Topic

_TOPICS: tuple[tuple[Topic, re.Pattern[str]], ...] = (  # the first that fits
    ("shm", re.compile(r"shared memory (?:segment|\(shm\)|limit)|/dev/shm")),
    ("disk", re.compile(r"No space left|Disk quota")),
    ("port", re.compile(r"[Aa]ddress already in use|EADDRINUSE")),
    ("gpu memory", re.compile(r"OutOfMemoryError|(?:CUDA|HIP|NPU)(?: error:)? out of memory")),
    ("ecc", re.compile(r"ECC error")),
    ("device assert", re.compile(r"thread: \[[\d,]+\] Assertion|device-side assert")),
    (
        "build",
        re.compile(r"no kernel image|undefined symbol|driver version is insufficient|GLIBC\w*_[\d.]+' not found"),
    ),
    ("gpu fault", re.compile(r"illegal memory access|unspecified launch failure|HSA_STATUS_ERROR|access fault by GPU")),
    ("communicator", re.compile(r"(?i:nccl).{0,300}invalid (?:usage|argument)")),
    ("hca", re.compile(r"\bibv_\w+")),
    (
        "memory",
        re.compile(r"DataLoader worker .{0,80}: Killed|bad_alloc|Errno 12\b|Cannot allocate memory|^MemoryError"),
    ),
    ("files", re.compile(r"Errno 24\b|Too many open files|items of ancdata")),
    ("threads", re.compile(r"Thread creation failed|can't start new thread|Resource temporarily unavailable")),
    ("file system", re.compile(r"Errno (?:5|116)\b|Stale file handle")),
    ("name", re.compile(r"[Nn]ame or service not known|name resolution")),
    ("checkpoint", re.compile(r"loading state_dict|CheckpointException|[Ss]ize mismatch")),
    ("module", re.compile(r"No module named")),
    ("path", re.compile(r"No such file or directory")),
    ("slots", re.compile(r"not enough slots")),
)


def topic_of(kind: EventKind, text: str) -> Topic | None:
    """None: of what speaks of others."""
    if CLASS_OF[kind] != "root" and kind != "child_named":
        return None
    return next((topic for topic, said in _TOPICS if said.search(text)), None)
