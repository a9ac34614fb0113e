"""The palette: contrast on every background a style may stand on, a ramp that is even also to the colour-blind.

Contrast is WCAG 2.1's; distances are Euclidean in OKLab, of colours as people see them who lack a kind of cone
(Machado et al. 2009, severity 1).
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest
from rich.color import Color

from mltop.probes.model.vocabulary import WorkState
from mltop.tui.render import palette as colours
from mltop.tui.render.cells import Cell
from mltop.tui.render.palette import BACKGROUND, OVERS, RAMP_STEPS, STYLES, Depth, palette
from mltop.tui.render.states import DOING

Rgb = tuple[float, float, float]
MODES = pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
DEPTHS: tuple[Depth, ...] = ("true", "256", "16", "none")

_VISION = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour: Color) -> Rgb:
    def of(value: int) -> float:
        share = value / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = colour.get_truecolor()
    return of(red), of(green), of(blue)


def luminance(colour: Color) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    light, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dim + 0.05)


def applied(matrix: tuple[Rgb, Rgb, Rgb], rgb: Rgb) -> Rgb:
    red, green, blue = (sum(a * b for a, b in zip(row, rgb, strict=True)) for row in matrix)
    return red, green, blue


def oklab(rgb: Rgb) -> Rgb:
    cones = applied(
        (
            (0.4122214708, 0.5363325363, 0.0514459929),
            (0.2119034982, 0.6806995451, 0.1073969566),
            (0.0883024619, 0.2817188376, 0.6299787005),
        ),
        rgb,
    )
    roots = tuple(max(cone, 0.0) ** (1 / 3) for cone in cones)
    return applied(
        (
            (0.2104542553, 0.7936177850, -0.0040720468),
            (1.9779984951, -2.4285922050, 0.4505937099),
            (0.0259040371, 0.7827717662, -0.8086757660),
        ),
        roots,  # type: ignore[arg-type]
    )


def distance(one: Color, other: Color, vision: str) -> float:
    seen = [oklab(applied(_VISION[vision], linear(colour))) for colour in (one, other)]
    return sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5


def least_distance(one: Color, other: Color) -> float:
    return min(distance(one, other, vision) for vision in _VISION)


def ink(name: str, dark: bool) -> Color:
    colour = palette("true", dark).styles[name].color
    assert colour is not None
    return colour


def tint(name: str, dark: bool) -> Color:
    looks = palette("true", dark)
    colour = (looks.styles.get(name) or looks.overs[name]).bgcolor
    assert colour is not None
    return colour


def ground(dark: bool) -> Color:
    return Color.parse(BACKGROUND[not dark])


# Of PALETTE.md: at least this contrast on the background, and on the worst tint the style may stand on.
CONTRAST = {
    "title": ((17.2, 12.9), (19.0, 14.3)),
    "": ((13.3, 9.9), (13.2, 10.0)),
    "dim": ((6.6, 4.9), (6.5, 4.9)),
    "head": ((6.6, 4.9), (6.5, 4.9)),
    "key": ((11.1, 8.3), (6.7, 5.0)),
    "keys": ((11.1, 8.3), (6.7, 5.0)),
    "ok": ((9.8, 7.3), (5.9, 4.6)),
    "warn": ((10.4, 7.8), (6.2, 4.7)),
    "crit": ((6.6, 5.0), (7.3, 5.5)),
}
OVER = ("cursor", "marked", "line-crit", "line-warn")


def test_the_formula_knows_black_and_white() -> None:
    black, white = Color.parse("#000000"), Color.parse("#ffffff")
    assert contrast(black, white) == pytest.approx(21.0) and contrast(white, white) == 1.0
    assert distance(black, white, "normal") == pytest.approx(1.0, abs=1e-3)
    assert all(distance(black, white, vision) == pytest.approx(1.0, abs=0.02) for vision in _VISION)


@MODES
@pytest.mark.parametrize("name", CONTRAST)
def test_words_can_be_read_on_every_background(name: str, dark: bool) -> None:
    plain, on_tint = CONTRAST[name][not dark]
    assert contrast(ink(name, dark), ground(dark)) >= plain - 0.05
    worst = min(contrast(ink(name, dark), tint(over, dark)) for over in OVER)
    assert worst >= min(4.5, on_tint) - 0.05, "as small text must be, by WCAG AA"


@MODES
@pytest.mark.parametrize(
    ("name", "dark_least", "light_least"),
    [
        ("waits", 5.9, 6.2),
        ("chip-crit", 5.8, 6.5),
        ("chip-warn", 10.3, 6.3),
        ("chip-time", 11.0, 6.8),
        ("stands", 4.5, 4.5),
    ],
)
def test_words_on_a_background_of_their_own(name: str, dark_least: float, light_least: float, dark: bool) -> None:
    assert contrast(ink(name, dark), tint(name, dark)) >= (dark_least if dark else light_least) - 0.05


@MODES
@pytest.mark.parametrize("name", ["graph", "graph-warn", *(f"ramp-{step}" for step in range(RAMP_STEPS))])
def test_what_is_drawn_is_seen(name: str, dark: bool) -> None:
    least = 2.7 if name == "ramp-0" else 3.0
    assert contrast(ink(name, dark), ground(dark)) >= least, "as graphics must be, by WCAG AA; the coldest is the least"


@MODES
def test_more_value_is_more_contrast_in_even_steps(dark: bool) -> None:
    ramp = [ink(f"ramp-{step}", dark) for step in range(RAMP_STEPS)]
    found = [contrast(colour, ground(dark)) for colour in ramp]
    assert found == sorted(found)
    lightness = [oklab(linear(colour))[0] for colour in ramp]
    steps = [abs(b - a) for a, b in itertools.pairwise(lightness)]
    assert max(steps) - min(steps) <= 0.02, "no step looks like two"


@MODES
@pytest.mark.parametrize("vision", _VISION)
def test_neighbours_of_the_ramp_can_be_told_apart(vision: str, dark: bool) -> None:
    least = {(True, "protan"): 0.047, (False, "tritan"): 0.045}.get((dark, vision), 0.047 if dark else 0.045)
    ramp = [ink(f"ramp-{step}", dark) for step in range(RAMP_STEPS)]
    assert min(distance(a, b, vision) for a, b in itertools.pairwise(ramp)) >= least - 0.001
    ends = [distance(a, b, vision) for a, b in itertools.combinations(ramp, 2)]
    assert min(ends) >= least - 0.001, "nor does it come back to a colour"


@MODES
@pytest.mark.parametrize(
    ("state", "dark_least", "light_least"), [("warn", 0.098, 0.04), ("crit", 0.107, 0.04), ("waits", 0.069, 0.069)]
)
def test_no_value_looks_like_a_state(state: str, dark_least: float, light_least: float, dark: bool) -> None:
    found = min(least_distance(ink(f"ramp-{step}", dark), ink(state, dark)) for step in range(RAMP_STEPS))
    assert found >= (dark_least if dark else light_least) - 0.001


@MODES
@pytest.mark.parametrize("depth", DEPTHS)
def test_every_style_is_there_in_every_terminal(depth: Depth, dark: bool) -> None:
    looks = palette(depth, dark)
    assert set(looks.styles) == set(STYLES) and set(looks.overs) == set(OVERS)
    assert looks.tints == (depth in ("true", "256"))
    for name in STYLES:
        for over in ("", *OVERS):
            style = looks.style(name, over)
            if depth == "none":
                assert style.color is None and style.bgcolor is None
            if depth == "16":
                assert style.color is None or style.color.is_default or (style.color.number or 0) < 16, name
    assert looks.style("nobody knows it") == looks.style("")


@MODES
def test_without_colours_what_counts_still_differs(dark: bool) -> None:
    looks = palette("none", dark)
    plain = looks.style("")
    for name in ("title", "crit", "warn", "keys", "chip-crit", "chip-warn", "chip-time", "head", "scrub"):
        assert looks.style(name) != plain, name
    assert looks.style("", "cursor").reverse and looks.style("crit", "cursor").reverse
    assert looks.style("chip-crit").reverse, "a chip is a block also where there are no colours"


@MODES
@pytest.mark.parametrize("name", STYLES)
def test_256_colours_are_near_to_what_is_meant(name: str, dark: bool) -> None:
    full, few = palette("true", dark).styles[name], palette("256", dark).styles[name]
    for meant, found in ((full.color, few.color), (full.bgcolor, few.bgcolor)):
        if meant is not None and found is not None:
            assert distance(meant, found, "normal") <= 0.12, (name, meant, found)


@MODES
def test_a_cell_keeps_its_own_background_over_a_line(dark: bool) -> None:
    looks = palette("true", dark)
    assert looks.style("waits", "cursor").bgcolor == looks.styles["waits"].bgcolor
    assert looks.style("crit", "cursor").bgcolor == looks.overs["cursor"].bgcolor
    assert looks.style("crit", "line-crit").color == looks.styles["crit"].color


ROOT = Path(colours.__file__).resolve().parents[1]
# Arguments and results in the place of a style.
_AT_STYLES = {"Cell": 1, "Span": 2, "Event": 2}


def literals(node: ast.expr) -> list[str]:
    """What an expression may come to, as far as it is written there; not what it compares or looks up."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.IfExp):
        return [*literals(node.body), *literals(node.orelse)]
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in literals(value)]
    return []


def styles_in(path: Path) -> list[tuple[str, str]]:
    """What stands as a literal in the place of a style."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _AT_STYLES
        if len(node.args) > _AT_STYLES[node.func.id]
        for name in literals(node.args[_AT_STYLES[node.func.id]])
    ]


def test_only_styles_that_there_are_are_used() -> None:
    used = [one for path in sorted(ROOT.rglob("*.py")) for one in styles_in(path)]
    assert len(used) > 300
    assert [one for one in used if one[1] not in STYLES] == []


def test_every_state_has_a_style_that_there_is() -> None:
    states: tuple[WorkState, ...] = WorkState.__args__  # type: ignore[attr-defined]
    assert set(DOING) == set(states)
    assert {style for _, style in DOING.values()} <= set(STYLES)
    assert Cell("x").style in STYLES
