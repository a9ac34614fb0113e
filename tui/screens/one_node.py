"""A pane about one node: which one that is, and the keys to its neighbours."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from mltop.probes.reach.view import NodeView
from mltop.tui.place import Place
from mltop.tui.screens.pane import Pane


class OneNodePane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "neighbour(1)", "next node", show=False, tooltip="to the next node"),
        Binding("N", "neighbour(-1)", "node before", show=False, tooltip="to the node before"),
    ]

    def node_here(self) -> NodeView | None:
        """The node that was asked for, or the first one."""
        picture = self.mltop.picture
        if picture is None or not picture.view.nodes:
            return None
        named = (node for node in picture.view.nodes if node.node == self.mltop.trail.here.node)
        return next(named, picture.view.nodes[0])

    def node_at_cursor(self) -> str:
        node = self.node_here()
        return node.node if node is not None else ""

    def action_neighbour(self, step: int) -> None:
        """From the last node on to the first."""
        picture, here = self.mltop.picture, self.node_here()
        if picture is not None and here is not None:
            names = [node.node for node in picture.view.nodes]
            to = names[(names.index(here.node) + step) % len(names)]
            self.mltop.trail.replace(Place(self.mltop.trail.here.pane, to))
            self.draw()
