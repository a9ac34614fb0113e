"""Which options and variables hold secrets, judged by their names: "--hf-token", "API_KEY", "dbPassword"."""

from __future__ import annotations

import re

# fmt: off
# A secret wherever they stand in a name, also in the plural and at the end of a longer word ("hftoken").
_STRONG = ("token", "secret", "password", "passwd", "passphrase", "credential", "apikey")
# A secret only as the last word: "--key-frames" and "--pass-through" are harmless.
_LAST = frozenset((
    "pass", "pwd", "pw", "key", "auth", "authorization", "bearer", "sas", "sig", "signature", "cookie", "dsn",
))
_KINDS_OF_KEY = frozenset((
    "api", "access", "account", "private", "shared", "signing", "encryption", "master", "license", "storage",
))
# With one of these in its name an option counts tokens or numbers them: its numbers are shown.
_COUNTING = frozenset((
    "tokens", "num", "max", "min", "n", "count", "number", "length", "len", "limit", "size", "budget", "per", "id",
))
_SWITCHES = frozenset(("use", "no", "add", "with", "without", "enable", "disable", "skip", "allow", "is", "has"))
_PLAIN_VALUES = frozenset(("true", "false", "yes", "no", "on", "off", "none", "null"))
# fmt: on
_STRONG_PLURALS = tuple(word + "s" for word in _STRONG)
_NAME = re.compile(r"-{0,2}[+~]*[\w.-]+")
_WORD_BREAK = re.compile(r"[-_.]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NUMBER = re.compile(r"[-+]?\d[\d.,:_]*(?:[eE][-+]?\d+)?[kKmMgG]?")


def names_secret(name: str) -> bool:
    """Whether what an option or a variable of this name holds must not be shown."""
    words = _words(name)
    if not words:
        return False
    if any(_is_strong(word) for word in words):
        return True
    if any(first in _KINDS_OF_KEY and second in ("key", "keys") for first, second in zip(words, words[1:])):
        return True
    last = words[-2] if words[-1] == "value" and len(words) > 1 else words[-1]
    return last in _LAST


def is_switch(name: str) -> bool:
    """Whether an option may well stand alone ("--use-auth-token")."""
    return not _SWITCHES.isdisjoint(_words(name)[:1])


def is_harmless(name: str, value: str) -> bool:
    """Whether this value of a secret-sounding name is none: "--max-tokens 4096", "--use-token true"."""
    return value.lower() in _PLAIN_VALUES or (is_number(value) and _counts_tokens(_words(name)))


def is_number(value: str) -> bool:
    return _NUMBER.fullmatch(value) is not None


def _counts_tokens(words: list[str]) -> bool:
    """Of the strong words only tokens are also counted."""
    strong = {word for word in words if _is_strong(word)}
    return bool(strong) and strong <= {"token", "tokens"} and not _COUNTING.isdisjoint(words)


def _words(name: str) -> list[str]:
    if not _NAME.fullmatch(name):
        return []
    return [word.lower() for word in _WORD_BREAK.split(name.strip("-+~_.")) if word]


def _is_strong(word: str) -> bool:
    return word.rstrip("0123456789").endswith(_STRONG + _STRONG_PLURALS)
