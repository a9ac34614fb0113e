"""What is written to the terminal: of what Textual paints only the cells that look different from what is there.

Textual paints whole widgets' lines, with all colours for every few letters. Here what the terminal shows is known cell
by cell, so that a screen on which nothing changes costs nothing, and one number some forty bytes.

Terminals do not agree on how wide emoji and other rare characters are. A line that has or had one is painted whole,
and behind every such character the cursor is placed anew: what is right of it is where it should be.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rich.cells import split_graphemes
from rich.color import ColorSystem
from rich.style import Style
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.strip import Strip

from mltop.tui.render.guarded import FAILURES
from mltop.tui.terminal.driver import WaitingDriver

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.screen import Screen

FILLED_S = 0.05  # the first frame of a screen does not wait for its content for longer

# One cell everywhere: letters, lines, blocks, and the arrows, dashes and marks that are no emoji.
_NARROW = re.compile(
    "[ -~\xa0-\xac\xae-\u02ff\u0370-\u0482\u2010-\u2027\u2190-\u2193\u2212\u2260-\u2265"
    "\u2500-\u25a9\u25ac-\u25b5\u25b7-\u25bf\u25c1-\u25fa\u2800-\u28ff]*"
)
_all_narrow = _NARROW.fullmatch
_WIDE = re.compile("[\u2e80-\u3029\u3041-\u3098\u309b-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff01-\uff60]")  # two, likewise
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # rich counts them as nothing; terminals obey them
_CODE = re.compile(r"[34]8;2;\d+;\d+;\d+|[34]8;5;\d+|\d+")
_SEEN_ON_LETTERS_ONLY = frozenset(("1", "2", "3"))
_SHORT_GAP = 3  # cells that stay as they are, and cost less to write again than to jump over
_MOST_LOOKS = 4096
NOWHERE = (-1, -1)

Update: TypeAlias = LayoutUpdate | ChopsUpdate


class Look:
    """How a cell looks, as the codes that set it. There is one object for each look.

    ``blank``: what is visible of it where there is no letter.
    """

    def __init__(self, codes: str) -> None:
        self.foreground = self.background = ""
        self.attributes: list[str] = []
        for code in _CODE.findall(codes):
            number = int(code.partition(";")[0])
            if 30 <= number < 40 or 90 <= number < 98:
                self.foreground = "" if code == "39" else code
            elif 40 <= number < 50 or 100 <= number < 108:
                self.background = "" if code == "49" else code
            else:
                self.attributes.append(code)
        seen = not _SEEN_ON_LETTERS_ONLY.issuperset(self.attributes)
        self.blank = (self.background, self.foreground if seen else "", self.attributes if seen else [])


PLAIN = Look("")
UNSET = Look("")  # of cells, and of the letters that come next; equal to no other
UNSET.blank = ("?", "", [])


class Run(NamedTuple):
    """Cells of one look, side by side."""

    x: int
    text: str
    look: Look


Cells: TypeAlias = tuple[Sequence[str], Sequence[Look]]


class Terminal:
    """What a terminal of so many cells shows, and the shortest way to have it show something else."""

    def __init__(self) -> None:
        self.begin(0, 0)
        self._looks: dict[str, Look] = {}  # by the codes that set them

    def begin(self, width: int, height: int) -> None:
        """It has this size; what it shows is not known: the next update has to be of the whole screen."""
        self.size = (width, height)
        self._chars = [[""] * width for _ in range(height)]  # "" is also the second half of a wide letter
        self._seen = [[UNSET] * width for _ in range(height)]
        self._doubtful = [False] * height  # whether terminals may not agree where its letters stand
        self._at = NOWHERE
        self._look = UNSET

    def sequence(self, update: Update, cursor: tuple[int, int], colors: ColorSystem) -> str:
        """What to write, so that it shows ``update`` and has its cursor at ``cursor`` (column, line)."""
        if len(self._looks) > _MOST_LOOKS:
            self._looks.clear()  # those that are seen stay; they are only compared by identity for a while
        written: list[str] = []
        line = -1
        runs: list[Run] = []
        for y, x, strip in _strips(update):
            if y != line:
                self._write_line(line, runs, written)
                line, runs = y, []
            self._take(y, x, strip, colors, runs)
        self._write_line(line, runs, written)
        if written:
            self._paint_as(PLAIN, written)
        if self._at != cursor:
            written.append(self._way_to(*cursor))
            self._at = cursor
        return "".join(written)

    def _take(self, y: int, x: int, strip: Strip, colors: ColorSystem, runs: list[Run]) -> None:
        """Know what ``strip`` makes of line ``y``, and add what of it has to be written to ``runs``."""
        if not (0 <= x < self.size[0] and 0 <= y < self.size[1]):
            return
        chars, looks, sure = self._cells(strip, colors)
        end = min(x + len(chars), self.size[0])
        chars, looks = chars[: end - x], looks[: end - x]
        old_chars, old_looks = self._chars[y], self._seen[y]
        if chars == old_chars[x:end] and looks == old_looks[x:end]:
            return
        self._doubtful[y] = self._doubtful[y] or not sure  # until the line is written
        if self._doubtful[y]:
            runs.append(Run(x, "", PLAIN))
        else:
            runs += _changes(x, (chars, looks), (old_chars[x:end], old_looks[x:end]))
        old_chars[x:end], old_looks[x:end] = chars, looks

    def _cells(self, strip: Strip, colors: ColorSystem) -> tuple[list[str], list[Look], bool]:
        """The strip cell by cell, and whether all terminals agree how wide it is."""
        chars: list[str] = []
        looks: list[Look] = []
        sure = True
        for text, style, control in strip:
            if control:
                continue
            look = self._look_of(style, colors)
            if _all_narrow(text):
                chars += text
                looks += [look] * len(text)
                continue
            before = len(chars)
            for cluster, width in _clusters(text):
                chars += (cluster, "")[:width]
            looks += [look] * (len(chars) - before)
            sure = sure and all(map(_all_narrow, chars[before:])) and "" not in chars[before:]
        return chars, looks, sure

    def _look_of(self, style: Style | None, colors: ColorSystem) -> Look:
        if style is None:
            return PLAIN
        codes = Strip.render_ansi(style, colors) if style._ansi is None else style._ansi
        look = self._looks.get(codes)
        if look is None:
            look = self._looks[codes] = Look(codes) if codes else PLAIN
        return look

    # What is written.

    def _write_line(self, y: int, runs: list[Run], written: list[str]) -> None:
        if not runs:
            return
        if self._doubtful[y]:
            self._write_whole(y, written)
            return
        # By look, the current one first: moving the cursor costs less than changing the look.
        places = {look: place for place, look in enumerate(dict.fromkeys([self._look, *(run.look for run in runs)]))}
        for run in sorted(runs, key=lambda run: places[run.look]):
            self._write(y, run, written)

    def _write(self, y: int, run: Run, written: list[str]) -> None:
        if (run.x, y) != self._at:
            written.append(self._way_to(run.x, y))
        unseen = run.look.blank == self._look.blank and not run.text.strip(" ")
        if not unseen:
            self._paint_as(run.look, written)
        written.append(run.text)
        self._go_on_at(run.x + len(run.text), y)

    def _go_on_at(self, x: int, y: int) -> None:
        # In the last column terminals wait for the next letter: where they are then is nobody's knowledge.
        self._at = (x, y) if x < self.size[0] else NOWHERE

    def _write_whole(self, y: int, written: list[str]) -> None:
        """A line on which terminals may not agree where what is."""
        sure = True
        chars = self._chars[y]
        for x, (char, look) in enumerate(zip(chars, self._seen[y], strict=True)):
            if char == "" or look is UNSET:
                continue  # the second half of a wide letter, or nobody's
            if _all_narrow(char):
                self._write(y, Run(x, char, look), written)
                continue
            sure = False
            is_wide = chars[x + 1 : x + 2] == [""]
            all_agree = is_wide and _WIDE.fullmatch(char) is not None
            if is_wide and not all_agree:
                self._write(y, Run(x, "  ", look), written)  # lest one that thinks it narrow keeps what stood there
            self._write(y, Run(x, char, look), written)
            if all_agree:
                self._go_on_at(x + 2, y)
            else:
                self._at = NOWHERE
        self._doubtful[y] = not sure

    def _paint_as(self, look: Look, written: list[str]) -> None:
        if self._look is not look:
            written.append(transition(self._look, look))
            self._look = look

    def _way_to(self, x: int, y: int) -> str:
        at_x, at_y = self._at
        if at_y == y and x > at_x:
            return "\x1b[C" if x == at_x + 1 else f"\x1b[{x - at_x}C"
        if at_y == y and x == 0:
            return "\r"
        return f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H" if y else "\x1b[H"


def _changes(x: int, new: Cells, old: Cells) -> Iterator[Run]:
    """The cells from ``x`` on that look different now, as runs of one look."""
    begin = end = -1  # of the run that is being made, in ``new``
    run_look = PLAIN
    chars, looks = new
    for at, (char, look, old_char, was) in enumerate(zip(chars, looks, *old, strict=True)):
        if char == old_char and (look is was or (char == " " and look.blank == was.blank)):
            continue
        is_near = begin >= 0 and at - end <= _SHORT_GAP
        if is_near and all(  # they look the same in the look of the run
            looks[place] is run_look or (chars[place] == " " and looks[place].blank == run_look.blank)
            for place in range(end, at + 1)
        ):
            end = at + 1
            continue
        if begin >= 0:
            yield Run(x + begin, "".join(chars[begin:end]), run_look)
        begin, end, run_look = at, at + 1, look
    if begin >= 0:
        yield Run(x + begin, "".join(chars[begin:end]), run_look)


def _strips(update: Update) -> Iterator[tuple[int, int, Strip]]:
    """Line, column and content of all that an update paints, line by line; as their ``render_segments`` go."""
    if isinstance(update, LayoutUpdate):
        for y, line in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in line:
                yield y, x, strip
                x += strip.cell_length
        return
    for y, x1, x2 in update.spans:
        for end, (x, piece) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if piece is not None and x <= x2 and end > x1:
                yield y, x, piece if x >= x1 and end <= x2 else piece.crop(0, min(end, x2) - x)


@lru_cache(maxsize=1024)
def _clusters(text: str) -> tuple[tuple[str, int], ...]:
    """What belongs together, and how many cells it takes; without what takes none."""
    spans, _ = split_graphemes(text)
    found = ((_CONTROL.sub("", text[start:end]), width) for start, end, width in spans)
    return tuple((cluster or " ", width) for cluster, width in found if width)


@lru_cache(maxsize=4096)
def transition(before: Look, after: Look) -> str:
    """After this sequence letters look like ``after``: what changes, or everything where an attribute has to end."""
    if before is UNSET or after is PLAIN or not set(before.attributes) <= set(after.attributes):
        codes = [code for code in (*after.attributes, after.foreground, after.background) if code]
        return f"\x1b[{';'.join(['0', *codes]) if codes else ''}m"
    codes = [code for code in after.attributes if code not in before.attributes]
    if after.foreground != before.foreground:
        codes.append(after.foreground or "39")
    if after.background != before.background:
        codes.append(after.background or "49")
    return f"\x1b[{';'.join(codes)}m" if codes else ""


class PaintingApp(App[None]):
    """Writes to its terminal what differs from what it shows, and everything where that may be something else: after a
    change of size or a stop (both come as ``Resize``), on another screen, and when asked. Waits for keys, and has
    other threads give way.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._terminal = Terminal()
        self._painted: Screen[Any] | None = None  # the screen that the terminal shows; None: nobody knows what it does

    def get_driver_class(self) -> type[Driver]:
        theirs = super().get_driver_class()
        return WaitingDriver if theirs is LinuxDriver else theirs

    def forget_terminal(self) -> None:
        """Write everything anew: others may have written to the terminal."""
        self._painted = None
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002
        self.forget_terminal()

    def delay_update(self, delay: float = 0.0) -> None:
        """Textual draws nothing for 50 ms after a change of the mode. ``open_mode`` knows what it waits for."""

    async def open_mode(self, mode: str) -> None:
        """As ``switch_mode``, and drawn at once, in one frame: when its screen is filled, which it does when it is come
        to.
        """
        with self.batch_update():
            await self.switch_mode(mode)
            filled = asyncio.Event()
            if self.screen.call_later(filled.set):  # behind the message that it is come to
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(filled.wait(), FILLED_S)
        self.screen.refresh()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        driver = self._driver
        ready = self._running and not self._closed and not self._batch_count
        if (
            isinstance(renderable, Update)
            and ready
            and driver is not None
            and not (driver.is_headless or driver.is_inline)
        ):
            if self._is_behind(driver):
                return
            try:
                sequence = self.painted(screen, renderable)
            except Exception as error:  # noqa: BLE001 - Textual's own way costs more, and shows the same
                FAILURES.take("painting", error)
                self._painted = None
            else:
                if sequence:
                    self._begin_update()
                    driver.write(sequence)
                    self._end_update()
                    driver.flush()
                self.post_display_hook()
                return
        super()._display(screen, renderable)

    @property
    def is_lent(self) -> bool:
        """Whether another program has the terminal."""
        return isinstance(self._driver, WaitingDriver) and self._driver.lent

    def _is_behind(self, driver: Driver) -> bool:
        """Whether to paint later, and then everything: the terminal has missed something and takes nothing yet."""
        if isinstance(driver, WaitingDriver) and driver.missed:
            self._painted = None
            driver.missed = terminal_busy(self)
            return driver.missed
        return False

    def painted(self, screen: Screen[Any], update: Update) -> str:
        """What to write for ``update`` of ``screen``; the terminal is taken to show it from now on."""
        compositor, terminal = screen._compositor, self._terminal
        size = compositor.size
        if screen is not self._painted or terminal.size != size:
            self._painted = screen
            terminal.begin(*size)
            if isinstance(update, ChopsUpdate):
                update = compositor.render_full_update()
        cursor = screen.outer_size.clamp_offset(self.cursor_position)
        return terminal.sequence(update, cursor, self.console._color_system or ColorSystem.TRUECOLOR)


def terminal_busy(app: App[Any]) -> bool:
    """True while output still waits to be written: drawing now would only delay what the next key shows.

    Textual's writer thread holds at most 30 writes and then blocks the whole loop, and no public API tells
    how many wait (``textual.drivers._writer_thread``). Where that thread does not exist, the answer is False.
    """
    writer = getattr(getattr(app, "_driver", None), "_writer_thread", None)
    queue_size = getattr(getattr(writer, "_queue", None), "qsize", None)
    return queue_size is not None and queue_size() > 0
