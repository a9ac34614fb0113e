"""The network ports and PCI links of one node, and what their counters did since the pane was opened."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from mltop.probes.model import LinkSample, PciDevice
from mltop.probes.reach.view import NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell
from mltop.tui.render.empty import NO_SAMPLE, empty_text
from mltop.tui.render.findings import severity_cell
from mltop.tui.render.guarded import guarded
from mltop.tui.render.links import LINK_COLUMNS, PCI_COLUMNS, Counted, link_name
from mltop.tui.render.rows import item_rows
from mltop.tui.render.story import Story
from mltop.tui.screens.bars import Notice
from mltop.tui.screens.graphs import job_graph
from mltop.tui.screens.lines import unread_lines
from mltop.tui.screens.links.rails import PortsOfNodes, Rail, rail_head, rail_lines, rails_of
from mltop.tui.screens.pane import NODE_KEYS, Pane, TextLines
from mltop.tui.screens.problems import Problems
from mltop.tui.screens.tables import gaps_of
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView
from mltop.tui.widgets.line_table import LineTable

LEAST_LINKS = 5  # lines of both tables
Counters = dict[str, int]
LINK_FINDINGS = ("ib.", "eth.", "roce.", "efa", "pcie.", "gdr.", "fabric.", "nvlink.")


class LinksScreen(Pane):
    """The ports of one node, or of all nodes by rail."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *NODE_KEYS,
        Binding("v", "rails", "rails", tooltip="ports of one node, or by rail over all nodes, who differs first"),
    ]
    of_node = True
    lines_are = "ports"
    DEFAULT_CSS = """
    LinksScreen #findings { height: auto; }
    LinksScreen #rail-titles { height: 1; display: none; }
    LinksScreen #rails { height: 1fr; display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[tuple[str, str], Counters] = {}  # (node, port or device) → counters when first shown
        self._as_rails = False
        self._ports = PortsOfNodes()
        self._rails: dict[str, Rail] = {}

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="findings")
        yield Problems(first=False, id="problems", classes="gap-above")
        yield LineTable(id="ports", kind="ports", classes="gap-above", empty_text=empty_text("ports"))
        yield LineTable(id="pci", kind="pci", classes="gap-above", empty_text=empty_text("pci"))
        yield TextLines(id="graphs", classes="gap-above")
        yield TextLines(id="rail-titles", classes="gap-above")
        yield CellLines(id="rails", empty_text=empty_text("rails"))

    def fill(self, picture: Picture) -> None:
        as_rails = self._as_rails and len(picture.view.nodes) > 1
        for part in self.query("#findings, #problems, #ports, #pci, #graphs") if as_rails else ():
            part.display = False
        for part in self.query("#rails, #rail-titles"):
            part.display = as_rails
        if as_rails:
            self._fill_rails(picture)
        else:
            self._fill_node(picture)

    def _fill_rails(self, picture: Picture) -> None:
        text, titles, width = (
            self.query_one("#rails", CellLines),
            self.query_one("#rail-titles", TextLines),
            self.size.width,
        )
        views = picture.view.nodes
        ports = self._ports.read(views)
        rails = [rail for rail in rails_of(ports) if self.filter.empty or self.keeps(rail.name)]
        drawn = [(rail.name, line) for rail in rails for line in rail_lines(rail, width - 1)]
        titles.set_lines([rail_head(width - 1)])
        lines: list[list[Cell]] = [line for _, line in drawn]
        keys: list[str | None] = [name for name, _ in drawn]
        if len(ports) < len(views):
            lines.append([Cell(f"{len(ports)} of {len(views)} nodes read so far", "dim")])
            keys.append(None)
        self._rails = {rail.name: rail for rail in rails}
        text.set_lines(lines, keys)

    def action_rails(self) -> None:
        if len(self.nodes) < 2:
            self.mltop.tell(Notice("rails are compared over nodes: one is watched", "warn"))
            return
        self._as_rails = not self._as_rails
        self.draw()
        if self._as_rails:
            self.query_one("#rails", CellLines).focus()

    def _fill_node(self, picture: Picture) -> None:
        view = self.node_here()
        if view is None:
            return
        ports, pci = self.query_one("#ports", LineTable), self.query_one("#pci", LineTable)
        sample = view.sample
        links: list[LinkSample] = sample.links if sample is not None else []
        devices: list[PciDevice] = sample.pci if sample is not None else []
        of_links = (finding for finding in picture.findings if finding.id.startswith(LINK_FINDINGS))
        own = [finding for finding in of_links if finding.node == view.node]
        alarms = {finding.subject: severity_cell(finding.severity).style for finding in reversed(own)}
        several = len(picture.view.nodes) > 1
        about = [[Cell(view.node, "bold"), Cell("  n N: other nodes   v: by rail", "dim")]] if several else []
        gaps = [gap for gap in gaps_of(view) if gap.source in ("links", "pci") and gap.kind == "unknown"]
        keys = f"{KEYCAPS['node']}, then {KEYCAPS['unreadable']}"
        top = self.set_part("#findings", [*about, *unread_lines(gaps, self.size.width, keys)])
        unknown = NO_SAMPLE.format("ports") if sample is None else ""
        port_lines = [self._counted(view.node, link, link_name(link), link.counters, alarms) for link in links]
        self.put(ports, LINK_COLUMNS, item_rows(LINK_COLUMNS, port_lines, lambda line: link_name(line.about)), unknown)
        pci_lines = [self._counted(view.node, device, device.bus_id, device.aer, alarms) for device in devices]
        self.put(pci, PCI_COLUMNS, item_rows(PCI_COLUMNS, pci_lines, lambda line: line.about.bus_id))
        self._share_out(picture, view, top)

    def _share_out(self, picture: Picture, view: NodeView, top: int) -> None:
        """What is wrong with ports and links first; in the lines that are left how the network went."""
        ports, pci, width = self.query_one("#ports", LineTable), self.query_one("#pci", LineTable), self.size.width
        own = [one for one in self.stories(picture, (view.node,), one=True) if _is_about_links(one)]
        room = self.rows - top
        shown = self.query_one(Problems).fit(own, picture.view.taken_at, width, room, LEAST_LINKS)
        blocks = 2 + bool(own)
        roomy = shown + ports.needed + pci.needed + blocks <= room
        self.set_class(roomy, "-roomy")
        room -= shown
        port_lines = self.limit_height(ports, min(ports.needed, room if roomy else max(2, room * 2 // 3)))
        pci_lines = self.limit_height(pci, min(pci.needed, room - port_lines))
        spare = room - port_lines - pci_lines - blocks - 1
        alone = roomy and len(picture.view.nodes) == 1
        none: list[list[Cell]] = []
        draw = partial(job_graph, self.mltop, None, None, width, spare if alone else 0)
        self.set_part("#graphs", guarded("the graphs", draw, none))

    def _counted(
        self, node: str, about: LinkSample | PciDevice, name: str, counters: Counters, alarms: dict[str, str]
    ) -> Counted:
        """A port or device with its counters of when it was first shown."""
        return Counted(about, self._first.setdefault((node, name), dict(counters)), alarms.get(name, ""))

    def on_cursor_view_selected(self, event: CursorView.Selected) -> None:
        """From what is wrong to all of it, from a rail to the ports of the node that differs most, from a port to its
        node.
        """
        if event.view.id != "rails":
            self.mltop.drill(Location("node", self.node_at_cursor()))
        elif (rail := self._rails.get(event.key)) is not None and rail.outliers:
            self._as_rails = False
            self.mltop.drill(Location("links", rail.outliers[0].node, label=rail.outliers[0].node))
            self.draw()


def _is_about_links(story: Story) -> bool:
    findings = story.incident.findings if story.incident is not None else ()
    return any(finding.id.startswith(LINK_FINDINGS) for finding in findings)
