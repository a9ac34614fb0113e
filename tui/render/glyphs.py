"""Characters that carry values: height glyphs, sparklines, gauges; and the signs for "unknown" and "cut off".

Which set is used is decided once, when this module is imported: block elements where both output streams are
UTF-8, plain ASCII elsewhere (`--ascii` makes the streams ASCII before this is imported). What is not of a set and gets
into an ASCII stream all the same, text of a machine or of a library, is replaced there, cell by cell (``REPLACED``).
"""

from __future__ import annotations

import codecs
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class GlyphSet:
    """``ramp``: one glyph per level, lowest first; never the full block, so that lines of them stay apart. A blank is
    no level: it means "nothing is here". ``eighths``: of a cell of a graph of several lines.
    """

    ramp: str
    eighths: str
    full: str
    half: str
    rest: str
    unknown: str  # in place of one glyph
    dash: str  # in place of a whole value, and between two halves of a sentence
    ellipsis: str
    up: str
    down: str
    alarm: str = "■"  # work has stopped
    finding: str = "▲"
    fine: str = "●"
    arrow: str = "→"  # what to do
    lost: str = "X"
    waits: str = "░"
    fork: str = "├"
    last_fork: str = "└"
    chain: str = "│"
    folded: str = "▸"
    marker: str = "◄"
    ascii_only: bool = False

    def height(self, value: float | None) -> str:
        """One glyph for a fraction 0..1; values outside are clamped, NaN is unknown."""
        if value is None or math.isnan(value):
            return self.unknown
        level = int(min(max(value, 0.0), 1.0) * len(self.ramp))
        return self.ramp[min(level, len(self.ramp) - 1)]

    def sparkline(self, values: Sequence[float | None], width: int) -> str:
        """The newest ``width`` values, newest on the right; blank where there is no history yet."""
        newest = values[-width:] if width > 0 else ()
        return "".join(map(self.height, newest)).rjust(max(width, 0))

    def bar(self, value: float | None, width: int) -> str:
        """A gauge of ``width`` cells in steps of half a cell: full only at 1, empty only at 0."""
        if value is None or math.isnan(value):
            return self.unknown * width
        halves = int(min(max(value, 0.0), 1.0) * width * 2) or int(value > 0)
        halves = min(halves, width * 2)
        filled = self.full * (halves // 2) + self.half * (halves % 2)
        return filled + self.rest * (width - len(filled))


UNICODE = GlyphSet("▁▂▃▄▅▆▇▇", "▁▂▃▄▅▆▇█", "━", "╸", "─", "·", "–", "…", "▲", "▼")
ASCII = GlyphSet(
    *("_.:-=+**", "_.:-=+*#", "=", "-", ".", "?", "-", "~", "^", "v"),
    *("#", "!", "*", ">", "X", "w", "+", "\\", "|", ">", "<"),
    ascii_only=True,
)


def is_utf8(stream: TextIO | None) -> bool:
    """Whether text written to ``stream`` is encoded as UTF-8; a closed or missing stream is not."""
    encoding = getattr(stream, "encoding", None) or ""
    return encoding.lower().replace("-", "").replace("_", "").startswith("utf8")


# Other characters that we, or a library, draw: what stands for each.
_STAND_INS = str.maketrans(
    UNICODE.eighths + "━╸╺─│┃├┤└┘┌┐╭╮╰╯┬┴┼╵◆■▲▼●→←◄►▸▾░▒▓≠≥≤≈±·•–—−×…‘’“”°",
    ASCII.eighths + "=--.||++\\/++++\\/+++|%#!v*><<>>vw##!><~+?*---x~''\"\" ",
)
REPLACED = "mltop-ascii"


def in_ascii(text: str) -> str:
    """The ``text`` in ASCII, as wide as it was: what has no stand-in is a "?" for each cell."""
    from rich.cells import cell_len

    return "".join(
        char
        if char.isascii()
        else stand_in
        if (stand_in := char.translate(_STAND_INS)).isascii()
        else "?" * cell_len(char)
        for char in text
    )


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return in_ascii(error.object[error.start : error.end]), error.end


codecs.register_error(REPLACED, _replaced)

GLYPHS = UNICODE if is_utf8(sys.__stdout__) and is_utf8(sys.__stderr__) else ASCII

height = GLYPHS.height
sparkline = GLYPHS.sparkline
bar = GLYPHS.bar
