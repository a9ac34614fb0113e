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
    """``key`` is empty for panes that are only drilled into. ``screen`` is ``module:Class`` in tui/screens,
    ``of_several`` what stands in its place where several nodes are watched.
    """

    name: str
    key: str
    what: str
    screen: str
    of_several: str = ""

    def load(self, several: bool) -> type[Screen[Any]]:
        module, _, name = ((several and self.of_several) or self.screen).partition(":")
        screen: type[Screen[Any]] = getattr(import_module(f"mltop.tui.screens.{module}"), name)
        return screen

    def make(self, several: bool) -> Screen[Any]:
        return self.load(several)()


PANES = (
    PaneEntry(
        "overview", "1", "GPUs and ranks, or all nodes", "overview.screen:OverviewScreen", "overview.fleet:FleetScreen"
    ),
    PaneEntry("node", "2", "one node in detail", "node.screen:NodeScreen"),
    PaneEntry("ranks", "3", "all training ranks", "ranks.screen:RanksScreen"),
    PaneEntry("stacks", "4", "stacks of all ranks and the verdict", "stacks.screen:StacksScreen"),
    PaneEntry("links", "5", "network ports and PCI links of a node", "links.screen:LinksScreen"),
    PaneEntry("events", "6", "what happened: findings and kernel messages", "events.screen:EventsScreen"),
    PaneEntry("probes", "7", "active probes: how fast the hardware is", "probes.screen:ProbesScreen"),
    PaneEntry("gpu", "", "one GPU in detail", "gpu.screen:GpuScreen"),
    PaneEntry("rank", "", "the stack of one rank", "ranks.screen:RankScreen"),
    PaneEntry("help", "", "all keys", "help.screen:HelpScreen"),
)

ASKS = "; asks before it starts"
LEAVES = "leave; nothing on the machines is touched"
APP_BINDINGS = [
    *(Binding(pane.key, f"pane('{pane.name}')", pane.name, tooltip=pane.what) for pane in PANES if pane.key),
    Binding("t", "dump", "dump", tooltip="dump marked nodes, or all, and judge them; again: cancel"),
    Binding("c", "capture", "capture", tooltip="write a capture directory of everything known"),
    Binding("M", "probe('matmul')", "matmul", tooltip=f"measure GEMMs on what is looked at, marked or all{ASKS}"),
    Binding("A", "probe('all-reduce')", "all-reduce", tooltip=f"measure collectives and find slow ranks{ASKS}"),
    Binding("p", "pause", "pause", tooltip="freeze the screen; again: go on"),
    Binding("r,f5", "refresh_now", "refresh", show=False, tooltip="take the newest state and draw everything again"),
    Binding("R", "retry", "retry", show=False, tooltip="try nodes again that are lost or refused, now"),
    Binding("escape", "go_back", "back", show=False, tooltip="cancel, clear the filter, go back, or clear marks"),
    Binding("colon,ctrl+p", "command_palette", "command", show=False, tooltip="all actions by name"),
    Binding("question_mark,f1,h", "help", "help", tooltip="all keys"),
    Binding("q", "quit", "quit", tooltip=LEAVES),
    Binding("f10,ctrl+c,ctrl+q", "quit", "quit", show=False, priority=True, tooltip=LEAVES),
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
    "colon": ":",
    "slash": "/",
    "question_mark": "?",
    "asterisk": "*",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "pageup": "PgUp",
    "pagedown": "PgDn",
}


def key_name(key: str) -> str:
    """How a key is written for people: ``ctrl+c`` is ``^C``, ``shift+tab`` is ``Shift+Tab``."""
    if key.startswith("ctrl+"):
        return "^" + key[5:].upper()
    if key.startswith("shift+"):
        return "Shift+" + key_name(key[6:])
    return _NAMES.get(key) or (key.capitalize() if len(key) > 1 else key)


def key_names(binding: Binding) -> str:
    return " ".join(key_name(key.strip()) for key in binding.key.split(","))


def help_rows(bindings: Iterable[Binding]) -> list[tuple[str, str]]:
    """(keys, what they do) for every binding, those of one action on one line, in the order given."""
    by_action: dict[str, list[Binding]] = {}
    for binding in bindings:
        if not binding.system:
            by_action.setdefault(binding.action, []).append(binding)
    groups = by_action.values()
    return [(" ".join(map(key_names, group)), group[0].tooltip or group[0].description) for group in groups]


def first_keys(bindings: Iterable[Binding]) -> list[Binding]:
    """One binding per action: aliases are left to the help."""
    by_action: dict[str, Binding] = {}
    for binding in bindings:
        by_action.setdefault(binding.action, binding)
    return list(by_action.values())
