"""Every style of the screen in every terminal: true colour, 256, 16, and none; on a dark and on a light background.

Screens name styles and know no colour. Contrast and the distance of neighbours for the colour-blind were computed for
these values: whoever changes one computes them again (``tests/unit/tui/render/test_palette.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from rich.color import Color
from rich.style import Style

Depth = Literal["true", "256", "16", "none"]


class Ink(NamedTuple):
    """A colour: on dark and light in full, its numbers of 256, and its names of the terminal's own 16."""

    dark: str
    light: str
    dark_256: int
    light_256: int
    dark_16: str
    light_16: str


_TITLE = Ink("#f5f7f9", "#080c0f", 231, 232, "bright_white", "black")
_VALUE = Ink("#d7dbe0", "#292e34", 253, 236, "white", "default")
_DIM = Ink("#929ba5", "#555d66", 247, 59, "white", "default")
_TRACK = Ink("#373e45", "#c3c8ce", 237, 251, "bright_black", "white")
_KEY = Ink("#90d1f7", "#015ba6", 117, 25, "bright_cyan", "blue")
_OK = Ink("#68d36f", "#157123", 77, 22, "bright_green", "green")
_WARN = Ink("#fbb636", "#865403", 214, 94, "bright_yellow", "default")
_CRIT = Ink("#fe6b6d", "#ac011a", 203, 124, "bright_red", "red")
_WAITS = Ink("#cd8cec", "#732698", 183, 91, "bright_magenta", "magenta")
_GRAPH = Ink("#4ca9bd", "#488ebd", 73, 67, "cyan", "blue")

# Cold to hot, even to the eye and to the colour-blind: the height of the glyph says the same.
_RAMP = (
    Ink("#3061a8", "#5f9dd0", 25, 74, "bright_blue", "blue"),
    Ink("#2e79b5", "#488ebd", 31, 67, "bright_blue", "blue"),
    Ink("#3792bb", "#2681a6", 67, 31, "bright_blue", "blue"),
    Ink("#4ca9bd", "#06738a", 73, 24, "cyan", "blue"),
    Ink("#69c0bb", "#02656b", 109, 23, "cyan", "blue"),
    Ink("#8cd5b6", "#005651", 115, 22, "cyan", "blue"),
    Ink("#c1e5ac", "#014737", 187, 237, "bright_cyan", "blue"),
    Ink("#f6f0b5", "#00381c", 229, 235, "bright_cyan", "blue"),
)
RAMP_STEPS = len(_RAMP)
# The same in lightness alone.
_GREY_RAMP = (
    Ink("#5a636c", "#8c959e", 241, 246, "white", "default"),
    Ink("#69737c", "#7b848d", 243, 244, "white", "default"),
    Ink("#79838c", "#6b747d", 245, 242, "white", "default"),
    Ink("#8b949d", "#5b646c", 247, 240, "white", "default"),
    Ink("#9ea6ae", "#4c545c", 249, 238, "white", "default"),
    Ink("#b3babf", "#3d444b", 251, 236, "white", "default"),
    Ink("#cacfd4", "#2e343a", 253, 235, "bright_white", "default"),
    Ink("#e7eaed", "#1f2429", 255, 233, "bright_white", "default"),
)
RAMPS = {"cold-hot": _RAMP, "grey": _GREY_RAMP}
RAMP = "cold-hot"

# Tints, which 16 colours do not have.
_WAITS_TINT = Ink("#381e4d", "#e6d5fc", 53, 189, "", "")
_CRIT_TINT = Ink("#431215", "#fddedd", 52, 224, "", "")
_WARN_TINT = Ink("#372508", "#fbe9c6", -1, 230, "", "")
_CURSOR = Ink("#1f2e3e", "#d0e0f2", 236, 153, "", "")
_MARKED = Ink("#1a222b", "#e7eef5", 235, 255, "", "")
_SCRUB = Ink("#35506b", "#c4dcf4", 24, 153, "", "")

_ON_RED = Ink("#ffffff", "#ffffff", 231, 231, "bright_white", "bright_white")
_RED = Ink("#c3222a", "#b91121", 160, 124, "red", "red")
_ON_AMBER = Ink("#111418", "#ffffff", 232, 231, "black", "black")
_AMBER = Ink("#fbb636", "#865403", 214, 94, "yellow", "yellow")
_ON_BLUE = Ink("#111418", "#ffffff", 232, 231, "black", "black")
_BLUE = Ink("#90d1f7", "#015ba6", 117, 25, "cyan", "cyan")

BACKGROUND = ("#111418", "#fbfbfa")  # dark, light
FOREGROUND = (_VALUE.dark, _VALUE.light)


class Look(NamedTuple):
    """How a style is drawn. ``bare``: what holds in 16 colours or none in place of a background, or besides colours."""

    ink: Ink | None = None
    on: Ink | None = None
    bold: bool = False
    bare: str = ""


_LOOKS: dict[str, Look] = {
    "": Look(_VALUE),
    "title": Look(_TITLE, bold=True),
    "bold": Look(_TITLE, bold=True),
    "dim": Look(_DIM, bare="dim"),
    "head": Look(_DIM, bare="underline"),
    "track": Look(_TRACK, bare="dim"),
    "key": Look(_KEY),
    "keys": Look(_KEY, bold=True),
    "accent": Look(_KEY),
    "ok": Look(_OK),
    "warn": Look(_WARN, bare="bold"),
    "crit": Look(_CRIT, bold=True),
    "waits": Look(_WAITS, _WAITS_TINT),
    "graph": Look(_GRAPH),
    "graph-warn": Look(_WARN),
    "graph-waits": Look(_WAITS, _WAITS_TINT),
    "graph-crit": Look(_CRIT, _CRIT_TINT),
    "stands": Look(_CRIT, _CRIT_TINT, bold=True),
    "area-waits": Look(_WAITS, _WAITS_TINT),
    "area-crit": Look(_CRIT, _CRIT_TINT),
    "scrub": Look(_KEY, _SCRUB, bare="reverse"),
    "chip-crit": Look(_ON_RED, _RED, bold=True, bare="reverse"),
    "chip-warn": Look(_ON_AMBER, _AMBER, bold=True, bare="reverse"),
    "chip-time": Look(_ON_BLUE, _BLUE, bold=True, bare="reverse"),
    **{f"ramp-{step}": Look(ink) for step, ink in enumerate(_RAMP)},
}
# What lies over a whole line, below the backgrounds of its cells.
_OVERS: dict[str, Look] = {
    "header": Look(),
    "cursor": Look(on=_CURSOR, bare="reverse"),
    "cursor-blurred": Look(),
    "marked": Look(on=_MARKED),
    "line-crit": Look(on=_CRIT_TINT),
    "line-warn": Look(on=_WARN_TINT),
}


def accents(dark: bool) -> tuple[str, str, str, str, str]:
    """For what others draw: the colours of keys, of what is well, of warnings, of what is critical, and of panels."""
    inks = (_KEY, _OK, _WARN, _CRIT, _MARKED)
    key, well, warn, crit, panel = (ink.dark if dark else ink.light for ink in inks)
    return key, well, warn, crit, panel


STYLES = tuple(_LOOKS)
OVERS = tuple(_OVERS)


@dataclass(frozen=True)
class Palette:
    """``styles``: of cells; ``overs``: of what lies over a line. ``tints``: whether there are backgrounds at all; where
    there are none, a glyph stands for each of them.
    """

    styles: Mapping[str, Style]
    overs: Mapping[str, Style]
    tints: bool

    def style(self, name: str, over: str = "") -> Style:
        """Of a cell: its own background wins over the line's. An unknown name is drawn like plain text."""
        own = self.styles.get(name, self.styles[""])
        if over == "cursor" and not self.tints:  # reversed: colours would be backgrounds
            return self.overs[over] + Style(bold=own.bold)
        return self.overs[over] + own if over in self.overs else own


@cache
def palette(depth: Depth, dark: bool, ramp: str = RAMP) -> Palette:
    """``ramp``: of RAMPS."""
    looks = {**_LOOKS, **{f"ramp-{step}": Look(ink) for step, ink in enumerate(RAMPS[ramp])}}
    return Palette(
        {name: _style(look, depth, dark) for name, look in looks.items()},
        {name: _style(look, depth, dark) for name, look in _OVERS.items()},
        tints=depth in ("true", "256"),
    )


def _style(look: Look, depth: Depth, dark: bool) -> Style:
    ink, background = _colour(look.ink, depth, dark), _colour(look.on, depth, dark)
    few = depth in ("16", "none")
    bare = Style.parse(look.bare) if few and look.bare and background is None else Style()
    return Style(color=ink, bgcolor=background, bold=look.bold or None) + bare


def _colour(ink: Ink | None, depth: Depth, dark: bool) -> Color | None:
    if ink is None or depth == "none":
        return None
    if depth == "16":
        name = ink.dark_16 if dark else ink.light_16
        return Color.parse(name) if name else None
    if depth == "256":
        # In full: Textual blends full colours, and the console takes the nearest of 256, which is this one.
        number = ink.dark_256 if dark else ink.light_256
        return Color.from_triplet(Color.parse(f"color({number})").get_truecolor()) if number >= 0 else None
    return Color.parse(ink.dark if dark else ink.light)
