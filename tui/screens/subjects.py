"""Panes that are about something that keys act on: ranks, or one node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType

from mltop.probes.investigate.acting import RankProcess
from mltop.probes.reach.view import NodeView
from mltop.tui.app.keys import ASKS
from mltop.tui.app.navigation import Location
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.screens.bars import Notice
from mltop.tui.screens.key_bar import Hint
from mltop.tui.screens.pane import Pane
from mltop.tui.screens.tables import rank_of

DIAGNOSE = Binding("H", "diagnose", "diagnose", show=False, tooltip=f"run dcgmi diag -r 1 on this node{ASKS}")


class RanksPane(Pane):
    """A pane in which ranks can be selected, and something be done to them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f9,K", "signal", "signal", tooltip=f"send a signal to the selected ranks{ASKS}"),
        Binding(
            "C", "native", "C frames", show=False, tooltip="dump the selected rank once more, with the frames of C"
        ),
    ]

    def hints(self) -> list[Hint]:
        """A signal is offered only with the cursor on a rank."""
        return [hint for hint in super().hints() if hint.kind != "signal" or (self.nodes and self.ranks_selected())]

    def ranks_selected(self) -> list[RankProcess]:
        """Those that a key goes to."""
        raise NotImplementedError

    def ranks_of_keys(self, keys: Iterable[str]) -> list[RankProcess]:
        """The ranks of rows of a rank table ("node/pid"), as they are now."""
        places = [key.rpartition("/") for key in keys]
        ranks = [(node, rank_of(self.node_view(node), int(pid))) for node, _, pid in places if pid.isdecimal()]
        return [RankProcess.of(node, rank) for node, rank in ranks if rank is not None]

    def action_signal(self) -> None:
        ranks = self.ranks_selected()
        if ranks:
            self.mltop.ask_signal(ranks)
        else:
            self.mltop.tell(Notice(f"no rank is selected: {KEYCAPS['next_table']} goes to the ranks", "warn"))

    def action_native(self) -> None:
        ranks = self.ranks_selected()
        if len(ranks) == 1:
            self.mltop.dump_native(ranks[0], self.open_rank)
        else:
            self.mltop.tell(Notice(f"C frames are dumped of one rank, {len(ranks) or 'none'} are selected", "warn"))


class OneNodePane(Pane):
    """A pane about one node: which one that is, and the keys to its neighbours."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "neighbour(1)", "next node", show=False, tooltip="to the next node"),
        Binding("N", "neighbour(-1)", "node before", show=False, tooltip="to the node before"),
    ]

    def node_here(self) -> NodeView | None:
        """The node that the pane was opened for, or the first one."""
        return self.node_view(self.mltop.trail.here.node) or next(iter(self.nodes), None)

    def node_at_cursor(self) -> str:
        node = self.node_here()
        return node.node if node is not None else ""

    def action_neighbour(self, step: int) -> None:
        """Go to the next node, from the last one to the first."""
        names = [node.node for node in self.nodes]
        if len(names) > 1:
            name = names[(names.index(self.node_at_cursor()) + step) % len(names)]
            self.mltop.beside(Location(self.mltop.trail.here.pane, name))
        else:
            self.mltop.tell(Notice("one node is watched: there is no next one", "warn"))
