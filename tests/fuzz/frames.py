"""Streams of frames as a broken or hostile node writes them, through a real hub beside a node that is well."""

from __future__ import annotations

import json
import math
import random
import struct
import tempfile
import time
from base64 import b64encode
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mltop.probes.agent.protocol import MARK, TEXT_MARK, split
from mltop.probes.model.news.row import width_of
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.framing import FrameReader
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.launchers.srun import Speakers
from mltop.tui.render.fleet.header import totals_of
from tests.fakes.agents import well_behaved
from tests.fuzz.samples import MOST_REPEATED_BYTES, NASTY_TEXT, Bender
from tests.waiting import wait_until

EVIL, EVIL_TOO, WELL = "evil", "evil-too", "n1"
FRAMES = 60  # of one stream
MOST_BYTES = 6_000_000  # of one frame: more than is taken of a sample
SETTLE_S = 0.3
DEADLINE_S = 60.0
INFINITE_ROW, WILD_ROW = (
    b64encode(struct.pack(f"<{width_of(8)}e", *[value] * width_of(8))).decode() for value in (math.inf, -65_504.0)
)
_NOISE = (
    b"",
    b"motd\n",
    b"\x00MLT1 ",
    b"@MLT1 12 {",
    b"@MLT1+ k 0 2 3 abc\n",
    b"\xff\xfe\x00" * 9,
    b"\n",
    b": ",
    b"x" * 70_000,
)


@dataclass(frozen=True)
class Stream:
    """Bytes of one run of a channel. ``labelled``: as srun writes them."""

    data: bytes
    labelled: bool


class Forger:
    """Makes streams; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._bender = Bender(seed)

    def stream(self) -> Stream:
        chance = self._chance
        labelled = chance.random() < 0.5
        parts = []
        for _ in range(chance.randrange(1, FRAMES)):
            lines = [self._cut(line) for line in self._frame()]
            parts += (
                [chance.choice((b"0: ", b"1: ", b" 1: ", b"9: ", b"", b"x: ")) + line for line in lines]
                if labelled
                else lines
            )
            parts.append(chance.choice(_NOISE))
        return Stream(b"".join(parts), labelled)

    def _frame(self) -> list[bytes]:
        """Lines of one frame: whole, or in pieces."""
        chance = self._chance
        payload = self._payload()
        how = chance.random()
        if how < 0.3:
            return split(payload, chance.choice(("k", "k2", "k" * 200)), 900)[:4000]
        size = len(payload) if how < 0.9 else chance.choice((0, 1, len(payload) + 7, 10**9, 99))
        return [b"%s%d %s\n" % (chance.choice((MARK, TEXT_MARK)), size, payload)]

    def _cut(self, line: bytes) -> bytes:
        if self._chance.random() < 0.9:
            return line
        at = self._chance.randrange(len(line) + 1)
        return line[:at] + bytes([self._chance.randrange(256)]) + line[at + 1 :]

    def _payload(self) -> bytes:
        chance = self._chance
        kind = chance.choice(
            (
                "sample",
                "row",
                "parts",
                "judged",
                "facts",
                "hello",
                "boot",
                "part",
                "done",
                "error",
                "need",
                "pong",
                "progress",
                "?",
            )
        )
        fields: dict[str, Any] = {"kind": kind, "node": chance.choice((EVIL, EVIL_TOO, WELL, "", *NASTY_TEXT))}
        if kind == "sample":
            fields["sample"] = self._bender.sample()
        elif kind in ("row", "parts", "judged", "facts"):
            fields[kind] = self._bent_news(kind)
        elif kind == "hello":
            fields["hello"] = self._record(version="9", protocol=1, pid=1, python="3", hostname="h", machine="m")
        elif kind == "boot":
            fields["boot"] = self._record(machine="x86_64", python="3 at /p", root="/r", cached=True, notes=["n"])
        elif kind == "part":
            fields |= {"id": chance.randrange(5), "stacks": self._stacks(), "expected": chance.choice((1, -1, 10**30))}
        else:
            fields |= {"id": chance.randrange(5), "data": {"file": "bundle"}, "error": chance.choice(NASTY_TEXT)}
        if chance.random() < 0.05:
            return b"[" * 200_000
        payload = json.dumps(fields).encode()
        return payload if len(payload) < MOST_BYTES else self._payload()

    def _record(self, **fields: object) -> dict[str, object]:
        """Mostly right."""
        bent = self._chance.choice(list(fields))
        return {
            **fields,
            bent: self._chance.choice((*NASTY_TEXT, -1, 10**30, None, [])),
        }

    def _bent_news(self, kind: str) -> object:
        numbers = [
            self._chance.choice((1, 0.5, -1, 10**30, None, "x")) for _ in range(self._chance.choice((14, 3, 99)))
        ]
        if kind == "row":
            lanes = self._chance.choice(("AAAAAAAA", "AAA=", "?", "A" * 4000, "AH4AfgB+", INFINITE_ROW, WILD_ROW))
            return self._record(at=1.0, lanes=lanes, numbers=[numbers] * self._chance.choice((0, 1, 5000)))
        if kind == "parts":
            rank = self._record(pid=1, rank=0, gpu=0, started_at=1.0, state="R", level=1)
            return [self._record(job="j", uid=1, ranks=repeated(rank, self._chance.choice((1, 9000))), gone=[])]
        if kind == "facts":
            return [["topic", "group", self._chance.choice((1, "x", None, 10**30))]] * self._chance.choice((1, 9000))
        finding = self._record(id="gpu.lost", severity="critical", node="n", subject="GPU 1", message="m", since=1.0)
        return self._record(node="n", at=1.0, findings=[finding], facts=[["a", "b", 1]], ranks=[{"pid": 1}])

    def _stacks(self) -> dict[str, object]:
        chance = self._chance
        frame = {"function": chance.choice(NASTY_TEXT)[:1000], "file": "f.py", "line": chance.choice((1, -1, 10**30))}
        digest = {
            "rank": chance.choice((0, -5, 10**30, None)),
            "pid": 1,
            "frames": repeated(frame, chance.choice((1, 50, 400))),
        }
        return {
            "pid": chance.choice((1, -1, 10**30)),
            "rank": 0,
            "taken_at": 1.0,
            "digests": [digest] * chance.choice((1, 9)),
        }


def repeated(record: object, times: int) -> list[object]:
    """So often, but for long texts: the test's own memory is part of what is measured."""
    return [record] * min(times, 1 + MOST_REPEATED_BYTES // len(json.dumps(record)))


def decode_all(stream: Stream, chance: random.Random) -> int:
    """The reader alone, fed in random bits; how many frames it found."""
    reader = FrameReader(stream.labelled)
    found = at = 0
    while at < len(stream.data):
        size = chance.choice((1, 7, 900, 65_536))
        found += len(reader.feed(stream.data[at : at + size]))
        at += size
    return found


def through_hub(streams: list[Stream], directory: Path) -> None:
    """Every stream as a channel of its own; the node that is well stays so. AssertionError when it does not."""
    channels = [well_behaved(node=WELL)]
    for number, stream in enumerate(streams):
        path = directory / f"stream-{number}"
        path.write_bytes(stream.data)
        nodes = (f"{EVIL}-{number}", f"{EVIL_TOO}-{number}")
        channel = Channel(("sh", "-c", f"cat '{path}'; exec sleep 600"), nodes if stream.labelled else nodes[:1])
        speakers = partial(Speakers, channel.nodes) if stream.labelled else None
        channels.append(replace(channel, speakers=speakers))
    hub = Hub(channels, 0.1)
    hub.start()
    try:
        wait_until(lambda: hub.node(WELL).state.state == "live", DEADLINE_S, "the good node")
        pending = hub.request("stacks", nodes=[name for channel in channels for name in channel.nodes])
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            fleet = hub.view()
            for view in fleet.nodes:
                _ = view.sample, view.state
            assert totals_of(fleet).live >= 1
            assert hub.node(WELL).state.state == "live", hub.node(WELL).state
        list(pending.answers(0.0))
    finally:
        hub.close()


def run(seconds: float, seed: int) -> str:
    """Attack for so long; a sentence on what was done. Raises what the product raises."""
    began, streams, frames = time.monotonic(), 0, 0
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        while time.monotonic() - began < seconds:
            forger = Forger(seed)
            made = [forger.stream() for _ in range(8)]
            frames += sum(decode_all(stream, chance) for stream in made)
            through_hub(made, Path(directory))
            streams, seed = streams + len(made), seed + 1
    return f"{streams} streams, {frames} frames"
