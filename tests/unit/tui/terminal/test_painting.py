"""What is written to the terminal has it show the same as Textual's own way, and is short."""

from __future__ import annotations

import random
from itertools import pairwise

import pyte
import pytest
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from mltop.tui.terminal.painting import PLAIN, UNSET, Look, Terminal, transition
from tests.shown import shown

WIDTH, HEIGHT = 40, 8
CONSOLE = Console(force_terminal=True, color_system="truecolor", legacy_windows=False)
TRUECOLOR = ColorSystem.TRUECOLOR
STYLES = [
    Style.parse(words)
    for words in (
        "",
        "red",
        "bold red",
        "dim",
        "bold",
        "italic on blue",
        "#102030 on #f0f0f0",
        "#102030 on #000000",
        "reverse",
        "underline bold green",
        "strike",
        "default on default",
        "color(77) on color(231)",
        "bright_red on bright_black",
    )
]
NARROW = ["a", "Z", "0", " ", "  ", "    ", "▁", "█", "─", "é", "→", "■", "GPU", "12.5%"]
WIDE = ["漢", "字", "カ", "한", "，", "🔥", "🚀", "e\u0301", "✔"]  # as wide for pyte as for rich


class Painting:
    """Two terminals: what one shows is written by Textual itself, what the other does by us."""

    def __init__(self, seed: int, width: int = WIDTH, height: int = HEIGHT) -> None:
        self.dice = random.Random(seed)
        self.width, self.height = width, height
        self.theirs, self.ours = pyte.Screen(width, height), pyte.Screen(width, height)
        self._their_stream, self._our_stream = pyte.Stream(self.theirs), pyte.Stream(self.ours)
        for stream in (self._their_stream, self._our_stream):
            stream.feed("\x1b[?7l")  # as the driver does: no wrapping
        self.terminal = Terminal()
        self.terminal.begin(width, height)
        self.letters = NARROW

    def strip(self, width: int) -> Strip:
        segments = []
        left = width
        while left > 0:
            text = "".join(self.dice.choices(self.letters, k=self.dice.randint(1, 6)))
            if cell_len(text) > left:
                text = "x" * left
            segments.append(Segment(text, self.dice.choice(STYLES)))
            left -= cell_len(text)
        return Strip(segments, width)

    def paint(self, update: LayoutUpdate | ChopsUpdate, cursor: tuple[int, int] = (0, 0)) -> str:
        sequence = self.terminal.sequence(update, cursor, TRUECOLOR)
        self._our_stream.feed(sequence)
        self._their_stream.feed(update.render_segments(CONSOLE))
        assert shown(self.ours) == shown(self.theirs)
        assert (self.ours.cursor.x, self.ours.cursor.y) == cursor
        return sequence

    def whole(self, strips: list[Strip] | None = None) -> LayoutUpdate:
        strips = strips or [self.strip(self.width) for _ in range(self.height)]
        return LayoutUpdate([[strip] for strip in strips], Region(0, 0, self.width, self.height))

    def parts(self) -> ChopsUpdate:
        """Some lines, cut at some columns, of which some are to be painted."""
        spans, chops, ends = [], [], []
        for y in range(self.height):
            cuts = sorted({0, self.width, *(self.dice.randrange(self.width) for _ in range(self.dice.randint(0, 3)))})
            pieces = {begin: self.strip(end - begin) for begin, end in pairwise(cuts)}
            chops.append(pieces)
            ends.append(cuts[1:])
            if self.dice.random() < 0.5:
                first, last = sorted(self.dice.sample(range(len(cuts)), 2))
                spans.append((y, cuts[first], cuts[last]))
        return ChopsUpdate(chops, spans or [(0, 0, self.width)], ends)


@pytest.mark.parametrize("seed", range(8))
def test_both_show_the_same_after_any_updates(seed: int) -> None:
    painting = Painting(seed)
    painting.paint(painting.whole())
    for turn in range(40):
        # Rich and pyte split wide letters differently where a piece is cut: those come as whole lines.
        painting.letters = NARROW if seed % 2 else [*NARROW, *WIDE]
        update = painting.whole() if turn % 10 == 0 or not seed % 2 else painting.parts()
        painting.paint(update, (painting.dice.randrange(WIDTH), painting.dice.randrange(HEIGHT)))


def test_nothing_is_written_where_nothing_changed() -> None:
    painting = Painting(1)
    update = painting.whole()
    assert painting.paint(update)
    assert painting.paint(update) == ""


def test_one_letter_costs_some_bytes() -> None:
    painting = Painting(1)
    style = Style.parse("#d7dbe0 on #111418")
    lines = [Strip([Segment(f"GPU {y}  07:21:33".ljust(WIDTH), style)], WIDTH) for y in range(HEIGHT)]
    painting.paint(painting.whole(lines))
    lines[2] = Strip([Segment("GPU 2  07:21:34".ljust(WIDTH), style)], WIDTH)
    sequence = painting.paint(painting.whole(lines))
    assert sequence == "\x1b[3;15H\x1b[38;2;215;219;224;48;2;17;20;24m4\x1b[m\x1b[H"


def test_the_colour_of_a_blank_is_nobodys_concern() -> None:
    painting = Painting(1, 10, 1)
    painting.paint(painting.whole([Strip([Segment("a         ", Style.parse("red"))], 10)]))
    apart = [Segment("a ", Style.parse("red")), Segment("        ", Style.parse("blue bold"))]
    assert painting.paint(painting.whole([Strip(apart, 10)])) == ""
    seen = [Segment("a ", Style.parse("red")), Segment("        ", Style.parse("blue underline"))]
    assert "4" in painting.paint(painting.whole([Strip(seen, 10)]))


def test_a_map_is_painted_colour_by_colour() -> None:
    painting = Painting(1)
    cold, hot = Style.parse("#3061a8 on #111418"), Style.parse("#f6f0b5 on #111418")
    mixed = [[Segment("▁", cold), Segment("▇", hot)] * (WIDTH // 2) for _ in range(HEIGHT)]
    sequence = painting.paint(painting.whole([Strip(line, WIDTH) for line in mixed]))
    assert sequence.count("m") <= 2 * HEIGHT + 2, "each colour is told once a line"


def test_a_line_that_terminals_measure_differently_is_painted_whole() -> None:
    painting = Painting(1, 20, 1)
    first = painting.whole([Strip([Segment("\u2601\ufe0f cloud           1", STYLES[0])], 20)])
    painting.terminal.sequence(first, (0, 0), TRUECOLOR)
    sequence = painting.terminal.sequence(
        painting.whole([Strip([Segment("\u2601\ufe0f cloud           2", STYLES[0])], 20)]), (0, 0), TRUECOLOR
    )
    assert sequence == "  \r\u2601\ufe0f\x1b[1;3H cloud           2\x1b[H"


@pytest.mark.parametrize("width", [1, 2])
def test_whatever_a_terminal_thinks_of_an_emoji_the_rest_stands_where_it_should(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    ours = pyte.screens.wcwidth
    monkeypatch.setattr(pyte.screens, "wcwidth", lambda char: width if char in "\u2714🚀🫨" else ours(char))
    painting = Painting(1, 20, 2)
    stream = pyte.Stream(painting.ours)
    for number in range(3):
        lines = [f"\u2714🚀{'🫨' * (3 - number)}".ljust(13 - (4 - number)) + f"rank {number}" for _ in range(2)]
        strips = [Strip([Segment(line, STYLES[0])]).adjust_cell_length(20) for line in lines]
        stream.feed(painting.terminal.sequence(painting.whole(strips), (0, 0), TRUECOLOR))
        for y, strip in enumerate(strips):
            at = cell_len(strip.text.partition("rank")[0])
            assert "".join(painting.ours.buffer[y][x].data for x in range(at, at + 6)) == f"rank {number}"


def test_a_terminal_obeys_nothing_that_is_shown() -> None:
    painting = Painting(1, 20, 1)
    evil = Strip([Segment("a\x1b[2Jb\x07c\x9bd🚀", STYLES[0])]).adjust_cell_length(20)
    sequence = painting.terminal.sequence(painting.whole([evil]), (0, 0), TRUECOLOR)
    assert "\x1b[2J" not in sequence and "\x07" not in sequence and "\x9b" not in sequence


def told(sequence: str, state: dict[str, object]) -> dict[str, object]:
    """What a terminal's next letters look like after ``sequence`` (ECMA-48, xterm's colours)."""
    if not sequence:
        return state
    state = dict(state)
    codes = sequence.removeprefix("\x1b[").removesuffix("m").split(";")
    while codes:
        code = codes.pop(0)
        if code in ("", "0"):
            state = {}
        elif code in ("38", "48"):
            rest = [codes.pop(0) for _ in range(4 if codes[0] == "2" else 2)]
            state[code] = rest
        elif code in ("39", "49"):
            state.pop(f"{code[0]}8", None)
        elif len(code) == 1:
            state[code] = True
        elif code[0] == "2":
            for ended in {"22": "12", "21": ""}.get(code, code[1]):
                state.pop(ended, None)
        else:
            state["48" if code.startswith(("4", "10")) else "38"] = code
    return state


def test_any_look_follows_any_other() -> None:
    codes = [Strip.render_ansi(style, TRUECOLOR) for style in STYLES]
    codes += ["1;2;31", "2;4;7", "1;9;48;5;3", "21;31", "21;1"]
    looks = [PLAIN, *(Look(some) for some in codes)]
    for after in looks:
        wanted = told(transition(PLAIN, after), {})
        assert told(transition(UNSET, after), {"7": True, "38": "31"}) == wanted
        for before in looks:
            assert told(transition(before, after), told(transition(PLAIN, before), {})) == wanted


def test_what_lies_outside_of_the_terminal_is_left_out() -> None:
    painting = Painting(1)
    terminal = Terminal()
    terminal.begin(5, 2)
    update = painting.whole()
    stream = pyte.Stream(screen := pyte.Screen(5, 2))
    stream.feed(terminal.sequence(update, (0, 0), TRUECOLOR))
    texts = [strip.text[:5] for line in list(update.strips)[:2] for strip in line]
    assert screen.display == texts
