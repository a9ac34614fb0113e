"""The way in time: the screen shows a moment of the past, steps through it, and comes back to now."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mltop.probes.model.units import clock_time, day_time, seconds
from mltop.tui.app.feed import Feed, Picture
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.track import SPAN_S
from mltop.tui.app.session import DumpResult, Investigation, Session
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.earlier import EarlierRanks
from mltop.tui.render.guarded import guarded
from mltop.tui.screens.bars import Notice
from mltop.tui.terminal.painting import PaintingApp

AGAIN_S = 0.5  # a key that comes again within this time goes on: its steps grow
# (from so many steps in one go, seconds of a step)
STEPS_S = ((0, 1.0), (8, 2.0), (14, 5.0), (24, 10.0), (40, 30.0), (60, 60.0))
SHOWN_BEFORE_S = 60.0  # of a graph at least lie before the moment
LONG_S = 60
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
TICK_S = 0.25  # between two moments of a recording that plays
BESIDE_S = 0.5  # events so near to the moment that is shown are those of the moment


@dataclass
class Player:
    """How a recording is shown. ``playing``: time goes on by itself, ``speed`` times as fast as it did."""

    playing: bool
    speed: float = 1.0

    def words(self, moment: float) -> str:
        """ "replay 4x 07:14:33", with the date where it is not of today."""
        speed = f"{self.speed:g}x" if self.playing else "paused"
        return f"replay {speed} {day_time(moment, time.time())}"


def step_s(steps_before: int) -> float:
    """How far a step goes after so many in the same direction."""
    return next(length for least, length in reversed(STEPS_S) if steps_before >= least)


def moment_words(moment: float, now: float) -> str:
    """ "07:14:33 (-9m12s)"."""
    ago_s = round(max(0.0, now - moment))
    return f"{clock_time(moment)} (-{f'{ago_s}s' if ago_s < LONG_S else seconds(ago_s)})"


class TravellingApp(PaintingApp):
    """``moment``: what every pane shows, unix s by the watcher's clock; None: what is now. What arrives is kept
    meanwhile.
    """

    picture: Picture | None
    newest: Picture | None
    history: Past
    earlier: EarlierRanks
    investigation: Investigation
    moment: float | None = None
    _live_earlier: EarlierRanks
    player: Player | None = None  # of a recording; None: machines are watched
    _steps: tuple[int, int, float] = (0, 0, 0.0)  # direction, how many, when (monotonic s)
    _moving = False
    _played_at = 0.0

    @property
    def paused(self) -> bool:
        """Whether it is a moment of the past that is shown."""
        return self.moment is not None

    @property
    def shown(self) -> tuple[float | None, bool]:
        """What graphs are made for: the moment, and whether all is known of it."""
        return self.moment, self.moment is None or self.history.is_settled(self.moment)

    def redraw(self) -> None:
        raise NotImplementedError

    def tell(self, notice: Notice | None) -> None:
        raise NotImplementedError

    @property
    def began(self) -> float | None:
        """The first moment that can be shown."""
        return self.history.began

    @property
    def ended(self) -> float | None:
        """The newest moment that there is."""
        return self.newest.view.taken_at if self.newest is not None else None

    def action_pause(self) -> None:
        """Stay at this moment, whatever arrives; or go back to now. A recording: play, or stay."""
        if self.player is not None:
            at_the_end = self.moment is not None and self.ended is not None and self.moment >= self.ended
            self.player.playing = not self.player.playing and not at_the_end
            self._played_at = time.monotonic()
            self.redraw()
        elif self.moment is not None:
            self.action_go_live()
        elif self.picture is not None:
            self.moment = self.investigation.moment = self.picture.view.taken_at
            self.earlier = self._live_earlier.copy()
            self.redraw()

    def action_step_time(self, direction: int) -> None:
        """One second on or back; while the key repeats, more and more."""
        before, count, at = self._steps
        now = time.monotonic()
        count = count + 1 if before == direction and now - at < AGAIN_S else 0
        self._steps = direction, count, now
        if self.ended is not None:
            self.go_to((self.moment if self.moment is not None else self.ended) + direction * step_s(count))

    def action_jump_event(self, direction: int) -> None:
        """To the next or the previous thing that happened."""
        if self.ended is None:
            return
        times = [at for at, _ in self.history.events()]
        here = self.moment if self.moment is not None else self.ended
        before, after = bisect_left(times, here - BESIDE_S) - 1, bisect_right(times, here + BESIDE_S)
        place = before if direction < 0 else after
        if 0 <= place < len(times):
            # What began at a time is known with the samples after it.
            self.go_to(times[place])
            at = times[place]
            beside = [one for when, one in self.history.events() if abs(when - at) < BESIDE_S]
            more = f" and {len(beside) - 1} more" if len(beside) > 1 else ""
            self.tell(Notice(f"{beside[0].kind}  {beside[0].node} {beside[0].text}{more}", "accent"))
        elif direction > 0 and self.moment is not None:
            self.action_go_live()
        else:
            self.tell(Notice(f"no {'earlier' if direction < 0 else 'later'} event", "warn"))

    def action_speed(self, direction: int) -> None:
        """Play faster, or slower."""
        if self.player is None:
            self.tell(Notice("only a recording can be played faster or slower", "warn"))
            return
        at = SPEEDS.index(self.player.speed) + direction
        self.player.speed = SPEEDS[min(len(SPEEDS) - 1, max(0, at))]
        self.redraw()

    def play(self) -> None:
        """Time goes on, as far as it is due; called a few times a second."""
        before, self._played_at = self._played_at, time.monotonic()
        if self.player is not None and self.player.playing and self.moment is not None:
            moment = self.moment + (self._played_at - before) * self.player.speed
            if self.ended is not None and moment >= self.ended and not self.history.is_complete:
                self._show_at(self.ended)  # it waits for what is being read
            else:
                self.go_to(moment)

    @property
    def ahead_s(self) -> float:
        """How far graphs go on beyond the moment that is shown: up to now, where it is in the last ten minutes."""
        if self.moment is None or self.ended is None or self.player is not None:
            return 0.0
        ahead_s = self.ended - self.moment
        return ahead_s if ahead_s < SPAN_S - SHOWN_BEFORE_S else 0.0

    @property
    def graphs_until(self) -> float | None:
        """Where graphs of jobs end; None: at the newest second that all nodes have told."""
        return None if self.moment is None or self.ahead_s else self.moment

    def take_read(self, read: DumpResult | str) -> None:
        """What the stacks of a recording say, or what is wrong with it."""
        if isinstance(read, str):
            self.tell(Notice(read, "warn"))
        else:
            self.investigation.keep(read)
            self.redraw()

    def show_recorded(self, moment: float) -> None:
        """Begin to show a recording."""
        self._played_at = time.monotonic()
        self.moment = self.investigation.moment = moment
        self._show_moment()

    def chip(self) -> str:
        """Which moment is shown; "" for now."""
        if self.moment is None:
            return ""
        if self.player is not None:
            return self.player.words(self.moment)
        return moment_words(self.moment, self.ended or self.moment)

    def action_go_first(self) -> None:
        """To the first moment that is kept."""
        if self.began is not None:
            self.go_to(self.began)

    def action_go_live(self) -> None:
        """To now, of a recording to its end."""
        if self.player is not None:
            self.player.playing = False
            if self.ended is not None:
                self._show_at(self.ended)
            return
        self.moment = self.investigation.moment = None
        self.picture, self.earlier = self.newest, self._live_earlier
        self.tell(None)

    def go_to(self, moment: float) -> None:
        """Show this moment, as near as there is one; the newest one is now."""
        if self.began is None or self.ended is None:
            return
        if moment >= self.ended:
            self.action_go_live()
            return
        self._show_at(max(self.began, moment))
        if moment < self.began:
            self.tell(Notice(f"nothing is kept of before {clock_time(self.began)}", "warn"))

    def _show_at(self, moment: float) -> None:
        self.moment = self.investigation.moment = moment
        if not self._moving:  # of several keys that wait, the last one's moment is shown
            self._moving = True
            self.call_later(self._show_moment)

    def _show_moment(self) -> None:
        self._moving = False
        moment = self.moment
        if moment is not None:
            self.picture = guarded("this moment", lambda: self.history.picture(moment), self.picture)
            self.earlier = EarlierRanks()
            self.redraw()

    def only_now(self) -> bool:
        """Whether now is shown; else it is said that what the user wants can only be done now."""
        if self.moment is None:
            return True
        if self.player is not None:
            self.tell(Notice("this is a recording: nothing can be asked of its machines", "warn"))
            return False
        self.tell(
            Notice(
                f"this is {clock_time(self.moment)}: {KEYCAPS['now']} goes back to now, where it can be done", "warn"
            )
        )
        return False


@runtime_checkable
class Recorded(Session, Protocol):
    """A session of what was recorded: its whole past is there, and nothing new comes."""

    player: Player

    @property
    def past(self) -> Past: ...

    @property
    def first_moment(self) -> float: ...

    def feed(
        self,
        post: Callable[[Picture], object],
        post_read: Callable[[DumpResult | str], object],
        thresholds: Mapping[str, float],
    ) -> Feed: ...
