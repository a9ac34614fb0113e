"""The last line: where the user can go, at the left; what this pane can do, at the right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from textual import events
from textual.binding import Binding
from textual.strip import Strip

from mltop.tui.app.keys import APP_BINDINGS, key_name, kind_of, with_user_keys
from mltop.tui.render.cells import Cell, line_width
from mltop.tui.widgets.cell_view import MOVES, CursorView

GAP = "  "
BETWEEN = 3  # cells at least between both halves
ALL_PANES = 110  # from so many columns on all panes are named
NAMES = {"overview": "main"}
# What a narrow terminal loses first, by the kind of its action; what the pane alone can do goes after these.
LOST_FIRST = ("step_time", "filter", "dump")
LOST_IN_THE_PAST = ("filter", "dump", "select")  # where the keys of time lead back
SHORT = {"step_time": "time", "jump_event": "time", "go_live": "live"}
OF_THE_PAST = ("step_time", "jump_event", "go_live")
NEVER_LOST = ("help", "quit", "go_back")


@dataclass(frozen=True)
class Hint:
    """``keys``: as written; ``action``: what a click does."""

    keys: str
    name: str
    action: str
    active: bool = False
    kind: str = ""

    @property
    def cells(self) -> list[Cell]:
        return [Cell(self.keys, "key"), Cell(f" {self.name}", "title" if self.active else "dim")]


def hints_of(own: Iterable[Binding], deeper: bool, past: bool, user_keys: Mapping[str, str]) -> list[Hint]:
    """What is shown at the right. ``own``: the bindings of the pane; ``deeper``: Esc leads back; ``past``: a moment of
    it is shown, to which nothing can be done.
    """
    ends = ("help", "go_back") if deeper else ("help", "quit")

    def is_shown(binding: Binding) -> bool:
        kind = kind_of(binding)
        if kind in ends:
            return binding.show or kind == "go_back"
        return kind in OF_THE_PAST if past else binding.show and kind not in (*NEVER_LOST, "pane")

    mine = [binding for binding in own if binding.show and (not past or kind_of(binding) == "filter")]
    enter = [binding for binding in Binding.make_bindings(MOVES) if binding.action == "select"]
    places = {"filter": 3, "step_time": 2 if past else 4, "help": 5, "quit": 5, "go_back": 6}
    works = sorted(
        [*((1, one) for one in mine), *((2, one) for one in APP_BINDINGS if is_shown(one))],
        key=lambda pair: places.get(kind_of(pair[1]), pair[0]),
    )
    return _joined(with_user_keys([*enter, *(binding for _, binding in works)], user_keys))


def _joined(bindings: Iterable[Binding]) -> list[Hint]:
    """Neighbours of one name are one hint: "[ ] time"."""
    hints: list[Hint] = []
    for binding in bindings:
        key, name = key_name(binding.key.split(",")[0]), SHORT.get(kind_of(binding), binding.description)
        if hints and hints[-1].action == binding.action:
            continue
        if hints and hints[-1].name == name:
            hints[-1] = replace(hints[-1], keys=f"{hints[-1].keys} {key}")
        else:
            hints.append(Hint(key, name, binding.action, kind=kind_of(binding)))
    return hints


def pane_hints(active: str, width: int, user_keys: Mapping[str, str]) -> list[Hint]:
    """What is shown at the left: all panes, or the one the user is in and how to get to the others."""
    panes = [binding for binding in APP_BINDINGS if binding.action.startswith("pane(")]
    hints = [
        Hint(
            key_name(pane.key.split(",")[0]),
            NAMES.get(pane.description, pane.description),
            pane.action,
            pane.action == active,
        )
        for pane in with_user_keys(panes, user_keys)
    ]
    if width >= ALL_PANES:
        return hints
    others = Hint(f"{hints[0].keys}-{hints[-1].keys}", "panes", "command_line")
    return [*(hint for hint in hints if hint.active), others]


class KeyBar(CursorView, can_focus=False):
    """One line of hints, as many as fit."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, perform: Callable[[str], Awaitable[None]], **widget_options: Any) -> None:
        super().__init__(**widget_options)
        self._perform = perform
        self._hints: list[Hint] = []
        self._active = ""
        self._user_keys: Mapping[str, str] = {}

    def set_hints(self, hints: Sequence[Hint], active: str, user_keys: Mapping[str, str]) -> None:
        """``active`` is the action of the pane the user is in."""
        if (list(hints), active, user_keys) != (self._hints, self._active, self._user_keys):
            self._hints, self._active, self._user_keys = list(hints), active, user_keys
            self.refresh()

    def shown(self) -> tuple[list[Hint], list[Hint]]:
        """The hints that fit, of both halves."""
        width = self.size.width
        left, right = pane_hints(self._active, width, self._user_keys), list(self._hints)
        past = any(hint.kind == "go_live" for hint in right)
        first = [hint for kind in (LOST_IN_THE_PAST if past else LOST_FIRST) for hint in right if hint.kind == kind]
        own = [hint for hint in reversed(right) if hint.kind not in NEVER_LOST]
        for lost in dict.fromkeys([*first, *own, *left, *right[:-1]]):
            if _width(left) + BETWEEN * bool(left) + _width(right) <= width:
                break
            (left if lost in left else right).remove(lost)
        return left, right

    def _placed(self) -> Iterator[tuple[int, Hint]]:
        """Where each of them begins."""
        left, right = self.shown()
        for hints, begin in ((left, 0), (right, max(0, self.size.width - _width(right)))):
            x = begin
            for hint in hints:
                yield x, hint
                x += line_width(hint.cells) + len(GAP)

    def render_line(self, y: int) -> Strip:
        line: list[Cell] = []
        for x, hint in self._placed() if not y else ():
            line += [Cell(" " * (x - line_width(line))), *hint.cells]
        return self.strip(line, self.size.width)

    def on_click(self, event: events.Click) -> None:
        for x, hint in self._placed():
            if x <= event.x < x + line_width(hint.cells):
                self.call_later(self._perform, hint.action)
                return


def _width(hints: Sequence[Hint]) -> int:
    return sum(line_width(hint.cells) + len(GAP) for hint in hints) - len(GAP) * bool(hints)
