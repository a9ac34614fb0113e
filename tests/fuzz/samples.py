"""Samples as a broken or hostile node sends them, and everything that is done with a sample."""

from __future__ import annotations

import copy
import json
import random
import time
from io import StringIO
from typing import Any

from rich.console import Console

from mltop.probes.judge.health.fleet import Health
from mltop.probes.model import SCHEMA, Finding, GpuGaps, NodeState, Sample, Unknown, to_json
from mltop.probes.model.news.row import pack_row
from mltop.probes.model.news.row import row_of as row_of_sample
from mltop.probes.model.vocabulary import COMMANDS
from mltop.probes.reach.receiving import RowFrame
from mltop.probes.reach.records import Records
from mltop.probes.reach.view import FleetView
from mltop.tui.app.past.past import Past
from mltop.tui.render.cells import row_of
from mltop.tui.render.earlier import EarlierRanks
from mltop.tui.render.findings import happenings, state_findings
from mltop.tui.render.fleet.header import header_cells
from mltop.tui.render.fleet.heat import METRICS, Heats
from mltop.tui.render.fleet.map import node_lines
from mltop.tui.render.gpus.details import blocks_of
from mltop.tui.render.gpus.lanes import lane_lines
from mltop.tui.render.gpus.table import GPU_COLUMNS, GpuLine, gpu_row, gpu_value, mig_row
from mltop.tui.render.gpus.table import link_row as nvlink_row
from mltop.tui.render.links import LINK_COLUMNS, PCI_COLUMNS, Counted
from mltop.tui.render.ranks import RankLine, rank_row
from mltop.tui.render.story import Scope, stories_of
from mltop.tui.report import print_snapshot
from mltop.tui.report.check import Checked, print_check
from mltop.tui.screens.events.lines import event_lines, page_of
from tests.builders.health_samples import node_h100

NODE = "n1"
NASTY_TEXT = [
    "",
    "\x1b[2J\x1b]0;owned\x07",
    "a\nb\rc",
    "\u202egnp.exe",
    "x" * 40_000,
    "[/bold]",
    "\x00",
    "１２",
    "🙂" * 50,
    "%s{0}",
]
NASTY_NUMBERS = [-1, 0, -5, 1e308, -1e308, 1e-320, 10**30, -(10**30), 2**63, 2**64 - 1, 99, 1e12, 0.5, -0.0, 10**400]
MOST_REPEATED_BYTES = 3_000_000  # of one list's JSON
_HOW = ("value", "value", "value", "type", "drop", "repeat", "extra", "empty")


class Bender:
    """Bends one whole, healthy sample, or other JSON, in a few places at once."""

    def __init__(self, seed: int, whole: dict[str, Any] | None = None) -> None:
        self.chance = random.Random(seed)
        self._repeated = False
        self._whole = whole or json.loads(to_json(node_h100(1_763_640_000.0)))

    def sample(self, bends: int | None = None) -> dict[str, Any]:
        made = copy.deepcopy(self._whole)
        self._repeated = False
        for _ in range(self.chance.choice((1, 1, 2, 5, 40)) if bends is None else bends):
            if not self._repeated:  # what is bent in a repeated list would be bent in all of it
                self._bend(made)
        return made

    def _bend(self, made: dict[str, Any]) -> None:
        holder, key = self._somewhere(made)
        how, chance = self.chance.choice(_HOW), self.chance
        value = holder[key]
        if how == "value":
            holder[key] = self._other(value)
        elif how == "type":
            holder[key] = chance.choice([None, True, "text", 3, [], {}, [[]], {"a": {"b": 1}}])
        elif how == "drop":
            del holder[key]
        elif how == "repeat" and isinstance(value, list):
            self._repeated = True
            room = MOST_REPEATED_BYTES // (1 + len(json.dumps(value)))
            holder[key] = value * min(room, chance.choice((2, 50, 400, 20_000)))
        elif how == "empty" and isinstance(value, (list, dict)):
            holder[key] = type(value)()
        elif how == "extra" and isinstance(value, dict):
            value[chance.choice(NASTY_TEXT)] = self._other(1)

    def _other(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.chance.choice(NASTY_TEXT)
        if isinstance(value, bool) or value is None:
            return not value
        if isinstance(value, int):
            return self.chance.choice([number for number in NASTY_NUMBERS if isinstance(number, int)])
        if isinstance(value, float):
            return self.chance.choice(NASTY_NUMBERS)
        return value

    def _somewhere(self, made: Any) -> tuple[Any, Any]:
        """A place in the tree: half of the time deeper."""
        holder: Any = made
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                return made, "node" if "node" in made else next(iter(made))
            key = self.chance.choice(keys)
            below = holder[key]
            if not isinstance(below, (dict, list)) or not below or self.chance.random() < 0.15:
                return holder, key
            holder = below


def frame_of(sample: dict[str, Any]) -> bytes:
    """Its JSON with everything that Python's encoder can write."""
    return json.dumps({"kind": "sample", "node": NODE, "sample": sample}).encode()


class Watcher:
    """One node's samples through all that a session does with them. Raises what any of it raises."""

    def __init__(self) -> None:
        self.records = Records([NODE], 1.0)
        self.health = Health(eager=True)
        self.taken = self.refused = 0
        self.history, self.earlier = Past(), EarlierRanks()

    def take(self, payload: bytes, now: float) -> Sample | None:
        """As the hub takes a frame, and the screen and the commands its view."""
        self.records.set_phase(NODE, "live", "")
        at = 1_763_640_000.0 + self.taken + self.refused
        self.records.take_news(NODE, "sample", payload)
        self.records.take(NODE, RowFrame(at, pack_row(row_of_sample(Sample(NODE, at)))), now)
        view = self.records.view()
        self.history.feed(view)
        self.earlier.feed(view)
        sample = view.nodes[0].sample
        if sample is None or view.nodes[0].state.state == "stale":
            self.refused += 1
            return None
        self.taken += 1
        self.health.see(sample)
        self.draw(sample)
        return sample

    def draw(self, sample: Sample) -> None:
        """All panes' rows and lines, and the commands' pages."""
        view = self.records.view()
        findings = self.health.findings()
        for width in (80, 200):
            pages(view, sample, findings, self.health.unknowns(), width)
        rows(view, sample, findings, self.earlier, self.history)
        to_json({"schema": SCHEMA, "samples": [sample], "findings": findings})


def pages(view: FleetView, sample: Sample, findings: list[Finding], unknown: list[Unknown], width: int) -> None:
    header_cells(view, "mltop", width=width)
    console = Console(file=StringIO(), width=width)
    print_snapshot([sample], findings, [NodeState(NODE, "live")], console)
    print_check(Checked([NodeState(NODE, "live")], findings, unknown), console, verbose=True)
    many = FleetView(view.taken_at, view.nodes * 5, view.serial)
    print_snapshot([sample], findings, [one.state for one in many.nodes], console)
    stories_of([], [*state_findings(view.nodes, view.taken_at), *findings], Scope())
    node_lines(view.nodes[0], METRICS[0], width)


def rows(view: FleetView, sample: Sample, findings: list[Finding], earlier: EarlierRanks, history: Past) -> None:
    node = view.nodes[0]
    for metric in METRICS:
        Heats(metric).of(node)
    for gpu in sample.gpus:
        blocks_of(gpu, GpuGaps(sample.gaps, gpu.index), gpu)
        gpu_row(GpuLine(gpu, [rank for rank in sample.ranks if gpu.index in rank.gpus]))
        for instance in gpu.mig_instances:
            mig_row(gpu, instance)
        for one in gpu.nvlink.links:
            nvlink_row(one, one.errors)
        track = history.track(NODE, gpu.index, sample.sampled_at)
        if track is not None:
            lane_lines(track, gpu, 120, 20)
    for column in GPU_COLUMNS:
        for gpu in sample.gpus:
            gpu_value(column.key, GpuLine(gpu, sample.ranks[:1]))
    for rank in sample.ranks[:64]:
        rank_row(RankLine(NODE, rank, earlier.rank(NODE, rank.pid)))
    for link in sample.links[:64]:
        row_of(LINK_COLUMNS, Counted(link, link.counters), "")
    for device in sample.pci[:64]:
        row_of(PCI_COLUMNS, Counted(device, device.aer), "")
    events = happenings(findings, (), [(NODE, event) for event in (*sample.kernel_events, *sample.deaths)])
    event_lines(events, 80, with_nodes=True)
    for happening in events:
        page_of(happening, (), view.taken_at, 80, COMMANDS)


def run(seconds: float, seed: int) -> str:
    """Bent samples, one after the other, for so long; how many. Raises what the product raises."""
    began = time.monotonic()
    bender, watcher = Bender(seed), Watcher()
    while time.monotonic() - began < seconds:
        watcher.take(frame_of(bender.sample()), time.monotonic())
    assert watcher.taken, "none was taken: nothing was tried"
    return f"{watcher.taken + watcher.refused} samples, {watcher.refused} of them refused"
