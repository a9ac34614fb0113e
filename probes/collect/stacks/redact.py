"""What may leave the node: integer locals only, and none whose name looks like a secret."""

from __future__ import annotations

import re
from typing import Any

# py-spy prints a Python int as its digits; bool is "True", a string is quoted, a huge int is "+bigint".
# It prints the float 1.0 as "1", so a whole float passes as an integer: harmless, and not distinguishable.
_INTEGER = re.compile(r"-?[0-9]{1,20}\Z")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET_WORDS = frozenset({"key", "token", "pin", "pwd", "auth", "otp", "cvv", "ssn", "salt", "credential"})
_SECRET_PARTS = ("password", "passwd", "passphrase", "secret", "apikey", "authtoken", "credential")


def looks_secret(name: str) -> bool:
    """``api_key``, ``hfToken`` and ``PIN`` do; ``num_tokens``, ``spin`` and ``keys_seen`` do not."""
    lowered = name.lower()
    if any(part in lowered for part in _SECRET_PARTS):
        return True
    return any(word.lower() in _SECRET_WORDS for word in _WORDS.findall(name))


def integer_locals(raw: list[dict[str, Any]]) -> dict[str, int]:
    """Name → value of py-spy's locals that are exactly integers. Source: py-spy ``dump --locals --json``."""
    return {local["name"]: int(local["repr"]) for local in raw if _is_plain_integer(local)}


def _is_plain_integer(local: dict[str, Any]) -> bool:
    text = local.get("repr")
    return isinstance(text, str) and bool(_INTEGER.match(text)) and not looks_secret(local["name"])


def redact_threads(threads: list[dict[str, Any]], ints: bool) -> list[dict[str, Any]]:
    """py-spy's threads with every other local removed, and without ``process_info`` (the command line)."""
    return [
        {
            **{name: value for name, value in thread.items() if name != "process_info"},
            "frames": [_redact_frame(frame, ints) for frame in thread["frames"]],
        }
        for thread in threads
    ]


def _redact_frame(frame: dict[str, Any], ints: bool) -> dict[str, Any]:
    kept = [local for local in frame.get("locals") or [] if ints and _is_plain_integer(local)]
    return {**frame, "locals": kept}
