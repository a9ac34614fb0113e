"""Every pane once (screens are imported when they are first shown), the keys of the app, and how keys are written.

Help, key bar and palette are made from bindings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from textual.binding import Binding
from textual.screen import Screen

from mltop.tui.filters import Filter


class PaneScreen(Protocol):
    """What the app asks of the pane the user is in: ``screens.pane.Pane``."""

    filter: Filter

    @property
    def typing(self) -> bool: ...

    @classmethod
    def pane_bindings(cls) -> list[Binding]: ...

    def draw(self) -> None: ...

    def clear_filter(self) -> bool: ...

    def node_at_cursor(self) -> str: ...

    async def perform(self, action: str) -> None: ...


@dataclass(frozen=True)
class PaneEntry:
    """``key`` is empty for panes that are only drilled into. ``screen`` is ``module:Class``, ``of_several`` what stands
    in its place where several nodes are watched.
    """

    name: str
    key: str
    what: str
    screen: str
    of_several: str = ""

    def load(self, several: bool) -> type[Screen[Any]]:
        module, _, name = ((several and self.of_several) or self.screen).partition(":")
        screen: type[Screen[Any]] = getattr(import_module(module), name)
        return screen


PANES = (
    PaneEntry(
        "overview",
        "1",
        "GPUs and ranks, or all nodes",
        "mltop.tui.screens.overview:OverviewScreen",
        of_several="mltop.tui.screens.overview:FleetScreen",
    ),
    PaneEntry("node", "2", "one node in detail", "mltop.tui.screens.node:NodeScreen"),
    PaneEntry("ranks", "3", "all training ranks", "mltop.tui.screens.ranks:RanksScreen"),
    PaneEntry("stacks", "4", "stacks of all ranks and the verdict", "mltop.tui.screens.stacks:StacksScreen"),
    PaneEntry("links", "5", "network ports and PCI links of a node", "mltop.tui.screens.links:LinksScreen"),
    PaneEntry("events", "6", "what happened: findings and kernel messages", "mltop.tui.screens.events:EventsScreen"),
    PaneEntry("probes", "7", "active probes: how fast the hardware is", "mltop.tui.screens.probes.screen:ProbesScreen"),
    PaneEntry("gpu", "", "one GPU in detail", "mltop.tui.screens.gpu:GpuScreen"),
    PaneEntry("rank", "", "the stack of one rank", "mltop.tui.screens.ranks:RankScreen"),
    PaneEntry("help", "", "all keys", "mltop.tui.screens.help:HelpScreen"),
)


APP_BINDINGS = [
    *(Binding(pane.key, f"pane('{pane.name}')", pane.name, tooltip=pane.what) for pane in PANES if pane.key),
    Binding("t", "dump", "dump", tooltip="dump marked nodes, or all, and judge them; again: cancel"),
    Binding("c", "capture", "capture", tooltip="write a capture directory of everything known"),
    Binding(
        "M",
        "probe('matmul')",
        "matmul",
        tooltip="measure GEMMs on what is looked at, marked or all; asks before it starts",
    ),
    Binding(
        "A",
        "probe('all-reduce')",
        "all-reduce",
        tooltip="measure collectives and find slow ranks; asks before it starts",
    ),
    Binding("p", "pause", "pause", tooltip="freeze the screen; again: go on"),
    Binding(
        "r,f5",
        "refresh_now",
        "refresh",
        show=False,
        tooltip="take the newest state and draw everything again",
    ),
    Binding("R", "retry", "retry", show=False, tooltip="try nodes again that are lost or refused, now"),
    Binding("escape", "go_back", "back", show=False, tooltip="cancel, clear the filter, go back, or clear marks"),
    Binding("colon,ctrl+p", "command_palette", "command", show=False, tooltip="all actions by name"),
    Binding("question_mark,f1,h", "help", "help", tooltip="all keys"),
    Binding("q", "quit", "quit", tooltip="leave; nothing on the machines is touched"),
    Binding(
        "f10,ctrl+c,ctrl+q",
        "quit",
        "quit",
        show=False,
        priority=True,
        tooltip="leave; nothing on the machines is touched",
    ),
]

PANE_BINDINGS = [
    Binding("slash", "filter", "filter", tooltip="show only rows that match"),
    Binding("s,f6", "sort", "sort", tooltip="sort by the next column"),
    Binding("tab", "next_table", "next table", show=False, tooltip="to the next table of this pane"),
    Binding("S", "reverse", "reverse", show=False, tooltip="reverse the order"),
    Binding("space", "mark", "mark", show=False, tooltip="mark the node under the cursor; again: unmark it"),
    Binding("asterisk", "mark_shown", "mark shown", show=False, tooltip="mark all nodes that the filter shows"),
    Binding("U", "unmark", "unmark", show=False, tooltip="unmark all nodes"),
]

_NAMES = {
    "escape": "Esc",
    "enter": "Enter",
    "colon": ":",
    "slash": "/",
    "question_mark": "?",
    "space": "Space",
    "asterisk": "*",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "tab": "Tab",
}


def key_name(key: str) -> str:
    """How a key is written for people: ``ctrl+c`` is ``^C``, ``f10`` is ``F10``."""
    if key.startswith("ctrl+"):
        return "^" + key[5:].upper()
    if key.startswith("shift+"):
        return "Shift+" + key_name(key[6:])
    if len(key) > 1 and key[0] == "f" and key[1:].isdigit():
        return key.upper()
    return _NAMES.get(key, key)


def key_names(binding: Binding) -> str:
    return " ".join(key_name(key.strip()) for key in binding.key.split(","))


def help_rows(bindings: Iterable[Binding]) -> list[tuple[str, str]]:
    """(keys, what they do) for every binding, those of one action on one line, in the order given."""
    rows: dict[str, tuple[str, str]] = {}
    for binding in bindings:
        if binding.system:
            continue
        keys, what = rows.get(binding.action, ("", binding.tooltip or binding.description))
        rows[binding.action] = (f"{keys} {key_names(binding)}".strip(), what)
    return list(rows.values())


def first_keys(bindings: Iterable[Binding]) -> list[Binding]:
    """One binding per action: aliases are left to the help."""
    by_action: dict[str, Binding] = {}
    for binding in bindings:
        by_action.setdefault(binding.action, binding)
    return list(by_action.values())
