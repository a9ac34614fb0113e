"""The network ports and PCI links of one node, and what their counters did since the pane was opened."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from mltop.probes.model import LinkSample, PciDevice
from mltop.tui.app.feed import Picture
from mltop.tui.app.navigation import Location
from mltop.tui.render.cells import Cell, item_rows
from mltop.tui.render.findings import severity_cell
from mltop.tui.render.links import LINK_COLUMNS, PCI_COLUMNS, Counted, link_name
from mltop.tui.screens.lines import all_problem_lines
from mltop.tui.screens.pane import OneNodePane, TextLines
from mltop.tui.screens.tables import NO_SAMPLE, gaps_of
from mltop.tui.widgets.line_table import LineTable

Counters = dict[str, int]
LINK_FINDINGS = ("ib.", "eth.", "roce.", "efa", "pcie.", "gdr.", "fabric.", "nvlink.")


class LinksScreen(OneNodePane):
    lines_are = "ports"
    DEFAULT_CSS = """
    LinksScreen #findings { height: auto; }
    LinksScreen #pci { height: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[tuple[str, str], Counters] = {}  # (node, port or device) → counters when first shown

    def body(self) -> Iterable[Widget]:
        yield TextLines(id="findings")
        yield LineTable(id="ports", empty_text="no network ports found")
        yield LineTable(id="pci", classes="gap-above", empty_text="no PCI devices found")

    def fill(self, picture: Picture) -> None:
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
        gaps = [gap for gap in gaps_of(view) if gap.source in ("links", "pci") and gap.kind == "unknown"]
        lines = all_problem_lines(own, gaps, self.size.width)
        lines = lines[: max(1, self.size.height // 4)]
        if len(picture.view.nodes) > 1:
            lines = [[Cell(view.node, "bold"), Cell("  n N: other nodes", "dim")], *lines]
        self.set_part("#findings", lines)
        unknown = NO_SAMPLE.format("ports") if sample is None else ""
        port_lines = [self._counted(view.node, link, link_name(link), link.counters, alarms) for link in links]
        self.put(ports, LINK_COLUMNS, item_rows(LINK_COLUMNS, port_lines, lambda line: link_name(line.about)), unknown)
        pci_lines = [self._counted(view.node, device, device.bus_id, device.aer, alarms) for device in devices]
        self.put(pci, PCI_COLUMNS, item_rows(PCI_COLUMNS, pci_lines, lambda line: line.about.bus_id))
        room = self.size.height - self.chrome_height() - len(lines)
        self.limit_height(ports, min(1 + max(1, len(links)), max(3, room * 2 // 3)))

    def _counted(
        self, node: str, about: LinkSample | PciDevice, name: str, counters: Counters, alarms: dict[str, str]
    ) -> Counted:
        """A port or device with its counters of when it was first shown."""
        return Counted(about, self._first.setdefault((node, name), dict(counters)), alarms.get(name, ""))

    def on_cursor_view_selected(self) -> None:
        self.mltop.drill(Location("node", self.node_at_cursor()))
