"""Every pane once: name, key, screen. Screens are imported when they are first shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mltop.tui.screens.pane import Pane


@dataclass(frozen=True)
class PaneEntry:
    """``key`` is empty for panes that are only drilled into. ``screen`` is ``module:Class``."""

    name: str
    key: str
    what: str
    screen: str

    def load(self) -> type[Pane]:
        module, _, name = self.screen.partition(":")
        screen: type[Pane] = getattr(import_module(module), name)
        return screen

    def make(self) -> Pane:
        return self.load()()


PANES = (
    PaneEntry("overview", "1", "GPUs and ranks, or all nodes", "mltop.tui.screens.overview:OverviewScreen"),
    PaneEntry("node", "2", "one node in detail", "mltop.tui.screens.node:NodeScreen"),
    PaneEntry("ranks", "3", "all training ranks", "mltop.tui.screens.ranks:RanksScreen"),
    PaneEntry("stacks", "4", "stacks of all ranks and the verdict", "mltop.tui.screens.stacks:StacksScreen"),
    PaneEntry("links", "5", "network ports and PCI links of a node", "mltop.tui.screens.links:LinksScreen"),
    PaneEntry("events", "6", "what happened: findings and kernel messages", "mltop.tui.screens.events:EventsScreen"),
    PaneEntry("probes", "7", "active probes: how fast the hardware is", "mltop.tui.screens.probes:ProbesScreen"),
    PaneEntry("gpu", "", "one GPU in detail", "mltop.tui.screens.gpu:GpuScreen"),
    PaneEntry("rank", "", "the stack of one rank", "mltop.tui.screens.rank:RankScreen"),
    PaneEntry("help", "", "all keys", "mltop.tui.screens.help:HelpScreen"),
)


def modes() -> dict[str, Callable[[], Pane]]:
    return {entry.name: entry.make for entry in PANES}
