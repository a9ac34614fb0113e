"""Words that came from a node, made fit for a terminal."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import TypeVar

MOST_SAID = 300  # characters of one line
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~])", re.DOTALL)  # ECMA-48

Words = TypeVar("Words")


def plain_text(text: str, most: int = MOST_SAID) -> str:
    """One line, without what a terminal would obey, of at most ``most`` characters."""
    head = _SEQUENCE.sub("", text[: 4 * most])
    line = "".join(char if char.isprintable() else " " if char.isspace() else "" for char in head).strip()
    return line if len(line) <= most else line[: most - 1] + "…"


def make_plain(words: Words) -> Words:
    """The same dataclass, its texts and lists of texts made plain in place."""
    assert is_dataclass(words)
    for field in fields(words):
        value = getattr(words, field.name)
        if isinstance(value, str):
            setattr(words, field.name, plain_text(value))
        elif isinstance(value, list):
            setattr(words, field.name, [plain_text(entry) for entry in value[:20]])
    return words
