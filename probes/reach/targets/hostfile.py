"""Host files: plain, DeepSpeed (``host slots=8``), MPI (``host:8``, ``host slots=8``), and pdsh's WCOLL."""

from __future__ import annotations

import re
from pathlib import Path

from mltop.probes.files import BadFile, read_regular
from mltop.probes.reach.errors import UsageProblem
from mltop.probes.reach.targets.nodesets import MOST_NODES, expand

MOST_BYTES = 4 * 1024 * 1024
_ADDRESS_WITH_SLOTS = re.compile(r"(\[[^\]]*:[^\]]*\])(?::\d+)?")
_NAME_WITH_SLOTS = re.compile(r"([^:]+):\d+")


def read_hostfile(path: Path, source: str = "--hostfile") -> list[str]:
    """The first word of every line, node lists and groups too; ``#`` begins a comment.

    UsageProblem names the file and the line.
    """
    what = f"{source} {path}"
    names: dict[str, None] = {}
    for number, line in enumerate(_text(path, what).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                names.update(dict.fromkeys(expand(without_slots(words[0]), f"line {number}:")))
            except UsageProblem as problem:
                raise UsageProblem(what, str(problem)) from None
        if len(names) > MOST_NODES:
            raise UsageProblem(what, f"names more than the {MOST_NODES:,} nodes that mltop takes")
    if not names:
        raise UsageProblem(what, "names no host", "one host on each line")
    return list(names)


def without_slots(word: str) -> str:
    """``host:8`` is ``host``, ``[2001:db8::1]:8`` is ``[2001:db8::1]``; a bare IPv6 address stays whole."""
    match = _ADDRESS_WITH_SLOTS.fullmatch(word) or _NAME_WITH_SLOTS.fullmatch(word)
    return match.group(1) if match else word


def _text(path: Path, what: str) -> str:
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise UsageProblem(what, error.strerror or str(error)) from None
    except (BadFile, ValueError) as error:  # a name with a NUL byte
        raise UsageProblem(what, str(error).removeprefix(f"{path}: ")) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageProblem(what, "is not text") from None
