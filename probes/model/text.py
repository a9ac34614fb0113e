"""Text of strangers, made fit for a terminal: the one cleaner of what nodes, files and users say.

What it takes out: escape sequences (ECMA-48, with ESC and with C1 bytes), control characters, line breaks (a forged
line), bidirectional controls, whatever has no width or cannot be encoded, and marks piled on one letter. Whoever
prints or draws calls it, not whoever collects: `tui/app/output.py`, `tui/report/page.py`, `tui/widgets/cell_view.py`.
Answers to requests are clean from the start (`receipt.admit_told`).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import fields, is_dataclass
from typing import NewType, TypeVar

MOST_SAID = 300  # characters of what a node says in one go
MOST_LINE = 5_000  # characters of one printed line: the longest path (4,096) fits
MOST_LISTED = 20  # entries of a list that a node says
MOST_MARKS = 3  # combining marks on one letter, as languages have them: more grow into the lines above

# ``clean`` has seen it. Only what has this type is written to a terminal.
Clean = NewType("Clean", str)
Words = TypeVar("Words")

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequences
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)"  # strings: titles …
    r"|\x1b[ -/]*[0-~]"  # other escapes, and the beginning of a string that never ends: it may not swallow our words
)
# Latin letters and the glyphs that mltop draws with: nothing of these needs a second look.
_HARMLESS = re.compile(r"[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2030-\u205e\u2190-\u22ff\u2500-\u25ff]*")
# Printable for Python and yet nothing to be seen: Unicode's Default_Ignorable_Code_Point beyond the controls.
_INVISIBLE = frozenset(
    map(chr, [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164, *range(0xFE00, 0xFE10), 0xFFA0])
) | frozenset(map(chr, range(0xE0100, 0xE01F0)))


def clean(text: str, most: int = MOST_LINE) -> Clean:
    """One line without anything that a terminal would obey, of at most ``most`` characters.

    Blanks at both ends stay, a line break or tab is one blank, what is cut ends in an ellipsis.
    """
    if text.isascii() and text.isprintable() and len(text) <= most:  # nearly always
        return text  # type: ignore[return-value]  # Clean() would cost as much as all the rest
    head = text[: 4 * most]  # much of it may go
    if _HARMLESS.fullmatch(head) is None:
        head = _seen(_SEQUENCE.sub("", head))
    return Clean(head if len(head) <= most and len(text) <= 4 * most else head[: most - 1] + "…")


def _seen(text: str) -> str:
    chars: list[str] = []
    marks = MOST_MARKS  # one that has no letter before it would sit on somebody else's
    for char in text:
        if char in _INVISIBLE:
            continue
        category = unicodedata.category(char)
        if category in ("Mn", "Me"):
            marks += 1
            if marks <= MOST_MARKS:
                chars.append(char)
            continue
        if char.isprintable():
            chars.append(char)
        elif char.isspace():
            chars.append(" ")
        elif category == "Cs":  # a byte that was no UTF-8
            chars.append("\ufffd")
        else:
            continue
        marks = 0 if char.isprintable() else MOST_MARKS
    return "".join(chars)


def plain_text(text: str, most: int = MOST_SAID) -> str:
    """``clean``, without blanks at the ends."""
    line = clean(text, 4 * most).strip()
    return line if len(line) <= most else line[: most - 1] + "…"


def make_plain(words: Words) -> Words:
    """The same dataclass, its texts and lists of texts made plain in place."""
    assert is_dataclass(words)
    for field in fields(words):
        value = getattr(words, field.name)
        if isinstance(value, str):
            setattr(words, field.name, plain_text(value))
        elif isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            setattr(words, field.name, [plain_text(entry) for entry in value[:MOST_LISTED]])
    return words
