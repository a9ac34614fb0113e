"""Nodes that judge themselves, one of which lies in its rows, parts of jobs, findings and facts: the others' stay."""

from __future__ import annotations

import json
import math
import random
import struct
import time
from base64 import b64encode

import msgspec

from mltop.probes.agent.frames import Frames
from mltop.probes.agent.protocol import Message, encode, payload_of
from mltop.probes.reach.receiving import Envelope
from mltop.probes.reach.records import NEWS, Records
from mltop.tui.app.judging import HealthWatch, StateWatch
from mltop.tui.app.past.past import Past
from mltop.tui.render.fleet.header import header_cells, totals_of
from mltop.tui.render.fleet.heat import METRICS, Heats
from mltop.tui.render.guarded import FAILURES
from tests.builders.health_samples import node_h100
from tests.fuzz.samples import Bender

HONEST, LIAR = ("n1", "n2", "n3"), "liar"
BEGAN = 1_763_640_000.0
SAMPLES, STEP_S = 24, 5.0  # as long as rules wait that compare nodes
NAMESAKES = 2000  # facts of one name, of a node that wants to decide what is usual
INFINITE = struct.pack("<e", math.inf)

_envelopes = msgspec.json.Decoder(Envelope)


class Fleet:
    """The agents' frames, bent where they are the liar's, through records, rules and pictures."""

    def __init__(self, seed: int) -> None:
        names = (*HONEST, LIAR)
        self._chance = random.Random(seed)
        self._seed = seed
        self._frames = {name: Frames(name) for name in names}
        self._records = Records(names, 1.0)
        self._health, self._states, self._past = HealthWatch(), StateWatch(), Past()
        self._heats = [Heats(metric) for metric in METRICS]

    def second(self, number: int) -> list[tuple[str, str]]:
        """One sample of each node. What is found of the honest ones: (rule, message)."""
        for node, frames in self._frames.items():
            sample = node_h100(BEGAN + number * STEP_S)
            sample.node, sample.boot_id = node, f"boot {node}"
            for message in frames.of(sample):
                self._take(node, self._bent(message) if node == LIAR else _payload(message))
        view = self._records.view()
        self._past.feed(view)
        findings = self._health.findings(view, self._states.states(view))
        self._health.states()
        header_cells(view, "mltop", width=120)
        for heats in self._heats:
            for node in view.nodes:
                heats.of(node)
        totals_of(view)
        states = {node.state.state for node in view.nodes if node.node in HONEST}
        assert states <= {"live", "stale"}, states  # stale: where a second of theirs takes longer than three
        return [(finding.id, finding.message) for finding in findings if finding.node in HONEST]

    def _take(self, node: str, payload: bytes) -> None:
        try:
            envelope = _envelopes.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return  # the link ends such a channel
        self._records.set_phase(node, "live", "")
        if envelope.kind in NEWS:
            self._records.take_news(node, envelope.kind, payload)
        elif envelope.row is not None:
            self._records.take(node, envelope.row, time.monotonic())

    def _bent(self, message: Message) -> bytes:
        plain = json.loads(_payload(message))
        for _ in range(self._chance.choice((0, 1, 1, 3))):
            self._seed += 1
            plain = Bender(self._seed, plain).sample(1)
        facts = plain.get("facts")
        if isinstance(facts, list) and facts and self._chance.random() < 0.5:
            name = self._chance.choice([fact for fact in facts if isinstance(fact, list) and len(fact) == 3] or [None])
            facts += [[*name[:2], self._chance.choice((1, 0.5, "x", True))]] * NAMESAKES if name else []
        row = plain.get("row")
        if isinstance(row, dict) and isinstance(row.get("lanes"), str):
            size = len(row["lanes"]) // 4 * 3 - row["lanes"].count("=")
            row["lanes"] = b64encode(
                self._chance.choice((INFINITE * (size // 2), self._chance.randbytes(size)))
            ).decode()
        return json.dumps(plain).encode()


def _payload(message: Message) -> bytes:
    found = payload_of(encode(message)[:-1])
    assert found is not None
    return found


def run(seconds: float, seed: int) -> str:
    """Attack for so long; how many fleets. Raises what the product raises, or would only say."""
    began, fleets = time.monotonic(), 0
    while time.monotonic() - began < seconds or fleets < 2:
        FAILURES.forget()
        fleet = Fleet(seed + fleets)
        for number in range(SAMPLES):
            found = fleet.second(number)
            assert not found, (seed + fleets, found)
            assert not FAILURES.all(), (seed + fleets, FAILURES.all())
        fleets += 1
    return f"{fleets} fleets with a liar"
