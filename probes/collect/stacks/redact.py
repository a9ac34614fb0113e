"""What may leave the node of a stack: of local variables some integers, and of texts no tokens.

An integer is kept when its name matters to the verdict (loop and step counters, sizes, ranks) and it has fewer than ten
digits, when it is small, and, with up to twelve digits, when it counts steps; never when its name sounds like a
secret's.
"""

from __future__ import annotations

import re
from typing import Any, Callable

from mltop.probes.collect.ranks.secret_names import is_harmless, mentions_secret, names_secret
from mltop.probes.collect.ranks.values import shown_text
from mltop.probes.collect.shapes import without_tokens
from mltop.probes.model.local_names import meaning_of

# py-spy prints a Python int as its digits; bool is "True", a string is quoted, a huge int is "+bigint".
# It prints the float 1.0 as "1", so a whole float passes as an integer: harmless, and not distinguishable.
_INTEGER = re.compile(r"-?[0-9]{1,20}\Z")
_SMALL = 1000
_MOST_DIGITS = 9
_MOST_DIGITS_OF_STEPS = 12  # a step a microsecond for eleven days; numbers of cards have more
# Of py-spy's threads, frames and locals: not the command line (process_info), nor what later versions may add.
_OF_THREAD = ("pid", "thread_id", "thread_name", "os_thread_id", "active", "owns_gil")
_OF_FRAME = ("name", "filename", "module", "short_filename", "line", "is_entry", "is_shim_entry")
_OF_LOCAL = ("name", "addr", "arg", "repr")


def looks_secret(name: str) -> bool:
    """``api_key``, ``hfToken`` and ``PIN`` do; ``num_tokens``, ``spin`` and ``keys_seen`` do not."""
    return names_secret(name) and not is_harmless(name, "0")


def may_leave(name: str, digits: str) -> bool:
    """Whether the integer ``digits`` in a local of this name is kept."""
    if looks_secret(name):
        return False
    meaning, length = meaning_of(name), len(digits.lstrip("-"))
    if abs(int(digits)) < _SMALL:
        return True
    if length > _MOST_DIGITS:
        return meaning == "step" and length <= _MOST_DIGITS_OF_STEPS and not mentions_secret(name)
    return meaning != "other"


def integer_locals(raw: list[dict[str, Any]]) -> dict[str, int]:
    """Name → value of py-spy's locals that may leave the node. Source: py-spy ``dump --locals --json``."""
    return {local["name"]: int(local["repr"]) for local in raw if _is_kept(local)}


def _is_kept(local: dict[str, Any]) -> bool:
    text = local.get("repr")
    return isinstance(text, str) and bool(_INTEGER.match(text)) and may_leave(local["name"], text)


def redact_threads(threads: list[dict[str, Any]], ints: bool) -> list[dict[str, Any]]:
    """py-spy's threads with nothing but what is known to be harmless; ``ints``: and the integers that may leave."""
    return [
        {
            **_texts(_only(thread, _OF_THREAD), shown_text),
            "frames": [_redact_frame(frame, ints) for frame in thread["frames"]],
        }
        for thread in threads
    ]


def _redact_frame(frame: dict[str, Any], ints: bool) -> dict[str, Any]:
    kept = [_only(local, _OF_LOCAL) for local in frame.get("locals") or [] if ints and _is_kept(local)]
    return {**_texts(_only(frame, _OF_FRAME), without_tokens), "locals": kept}


def _only(entry: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: entry[name] for name in names if name in entry}


def _texts(entry: dict[str, Any], clean: Callable[[str], str]) -> dict[str, Any]:
    return {name: clean(value) if isinstance(value, str) else value for name, value in entry.items()}
