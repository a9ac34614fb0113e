"""Kernel text as something that can be shown: nothing in it controls a terminal, and it has an end."""

from __future__ import annotations

import re

MAX_TEXT_CHARS = 300
_BREAK = re.compile(r"\s*[\r\n]+\s*(?:NVRM: )?")  # a record of several lines repeats its driver's name
_ODD = re.compile(r"[^\x20-\x7e]")


def shown(text: str, most_chars: int = MAX_TEXT_CHARS) -> str:
    """One line: control characters (also the invisible ones of Unicode) as \\x1b or \\u202e."""
    if len(text) <= most_chars and text.isprintable():  # nearly always
        return text.strip()
    text = _BREAK.sub(" ", text[: 4 * most_chars].strip())
    text = _ODD.sub(lambda found: found[0] if found[0].isprintable() else _escaped(found[0]), text)
    return text if len(text) <= most_chars else text[: most_chars - 1] + "…"


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
