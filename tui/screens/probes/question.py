"""The question before a probe: it says exactly what will happen, where and to how many, and starts nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.model import ProbeKind
from mltop.tui.app.selection import ProbeScope
from mltop.tui.render.probes.kinds import choices_of
from mltop.tui.render.probes.question import keys_of, question_lines, why_not
from mltop.tui.screens.bars import TypedBox
from mltop.tui.screens.questions import Box, Lines
from mltop.tui.widgets.cell_lines import CellLines

REFRESH_S = 1.0  # which GPUs are in use changes while the question stands


class Question(CellLines, can_focus=False):
    """The text; a click on an option chooses it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.spots: dict[int, list[tuple[int, int]]] = {}  # by line, the columns of each option

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        for choice, (line, options) in enumerate(self.spots.items()):
            for option, (start, end) in enumerate(options):
                if spot is not None and line == self.content_line(spot.y) and start <= spot.x < end:
                    cast("ConfirmProbe", self.screen).choose(choice, option)


class ConfirmProbe(Box[ProbeWanted | None]):
    """Dismissed with what is wanted, or None. ``scope_of``: where a probe of a kind would run, as of now."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,y", "start", "start"),
        Binding("escape,n,q", "refuse", "cancel"),
        Binding("left,h", "option(-1)", "option before"),
        Binding("right,l,space", "option(1)", "next option"),
        Binding("up,k,shift+tab", "line(-1)", "line before"),
        Binding("down,j,tab", "line(1)", "next line"),
        Binding("f", "force", "force"),
    ]
    DEFAULT_CSS = """
    ConfirmProbe #host { height: 1; border: none; padding: 0; display: none; background: $background; }
    ConfirmProbe.-roomy #keys { margin-top: 1; }
    """
    title_text = "start a probe?"

    def __init__(self, kind: ProbeKind, scope_of: Callable[[ProbeKind], ProbeScope]) -> None:
        super().__init__()
        self._wanted = ProbeWanted(kind)
        self._scope_of = scope_of
        self._at = 1  # of the choices: not the kind, the key that was pressed said that
        self._note = ""  # what the last key came to

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Question(id="text")
            yield TypedBox(id="host")
            yield CellLines(id="keys")

    def on_mount(self) -> None:
        self.set_interval(REFRESH_S, self.draw)

    @property
    def _scope(self) -> ProbeScope:
        return self._scope_of(self._wanted.kind)

    @property
    def _typing(self) -> bool:
        return bool(self.query_one("#host", TypedBox).display)

    def lines(self, width: int) -> Lines:
        self._at = min(self._at, len(choices_of(self._wanted)) - 1)
        lines, self.query_one(Question).spots = question_lines(self._wanted, self._scope, self._at, width, self._note)
        roomy = self.size.height >= len(lines) + 5
        self.set_class(roomy, "-roomy")
        self.chrome = 3 + roomy + self._typing
        return lines

    def keys(self) -> Sequence[tuple[str, str]]:
        return keys_of(self._scope, self._wanted, self._typing)

    # Choosing.

    def choose(self, at: int, option: int) -> None:
        choice = choices_of(self._wanted)[at]
        self._wanted = choice.choose(self._wanted, option)
        if choice.name == "kind" and len(self._scope.names) != 1:
            self._wanted = replace(self._wanted, force=False)
        self._at = at
        self._say("")

    def action_option(self, step: int) -> None:
        self.choose(self._at, choices_of(self._wanted)[self._at].chosen(self._wanted) + step)

    def action_line(self, step: int) -> None:
        self._at = (self._at + step) % len(choices_of(self._wanted))
        self.draw()

    # Forcing: the name of the node has to be typed.

    def action_force(self) -> None:
        names = self._scope.names
        if self._wanted.force:
            self._wanted = replace(self._wanted, force=False)
            self._say("")
        elif len(names) != 1:
            self._say("force works on one node at a time: open its pane, or mark it alone")
        else:
            host = self.query_one("#host", TypedBox)
            host.display, host.value = True, ""
            self.set_focus(host)
            self._say(f"type {names[0]} and Enter to load GPUs that are in use, too")

    def on_input_submitted(self, event: TypedBox.Submitted) -> None:
        event.stop()
        node = self._scope.names[0]
        right = event.value.strip() == node
        self._stop_typing()
        self._wanted = replace(self._wanted, force=right)
        self._say("" if right else f"that is not {node}: not forced")

    def _stop_typing(self) -> None:
        self.set_focus(None)
        self.query_one("#host", TypedBox).display = False

    # The end.

    def action_refuse(self) -> None:
        if self._typing:
            self._stop_typing()
            self._say("")
        else:
            self.dismiss(None)

    def action_start(self) -> None:
        scope = self._scope
        if why := why_not(self._wanted, scope):
            self._say(why)
        else:
            self.dismiss(replace(self._wanted, nodes=scope.nodes, gpus=scope.gpus))

    def _say(self, text: str) -> None:
        self._note = text
        self.draw()
