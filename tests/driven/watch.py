"""Looks at nodes as the screen does, and keeps every frame to judge it again with more time between them."""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.rule import Expectations
from mltop.probes.model import Finding
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.receiving import sample_of_frame
from mltop.probes.reach.view import Received
from mltop.tui.app.judging import HealthWatch

LOOK_S = 0.1


@dataclass(frozen=True)
class Frame:
    """One sample as the hub received it, and the skew that was known then."""

    node: str
    at: float
    packed: bytes  # by zlib
    skew_s: float | None


@dataclass
class Fired:
    """By node the rules that have told something, as a headline or folded into one."""

    rules: dict[str, set[str]] = field(default_factory=dict)
    said: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, findings: Iterable[Finding]) -> None:
        for one in findings:
            for rule in (one.id, *(name.partition(" ")[0] for name in one.folded)):
                self.rules.setdefault(one.node, set()).add(rule)
                self.said.setdefault((one.node, rule), f"{one.severity} {one.subject}: {one.message} {one.evidence}")

    def join(self, other: Fired) -> None:
        for node, rules in other.rules.items():
            self.rules.setdefault(node, set()).update(rules)
        self.said = {**other.said, **self.said}

    def has(self, nodes: Iterable[str], rule: str) -> bool:
        return any(rule in self.rules.get(node, ()) for node in nodes)


class Watcher:
    """One screen's eyes: ``look`` takes a view of all nodes and judges what is new in it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._health = HealthWatch()
        self.frames: dict[str, list[Frame]] = {}
        self.fired = Fired()

    def look(self) -> None:
        view = self._hub.view()
        for node in view.nodes:
            newest, kept = node.newest, self.frames.setdefault(node.node, [])
            if isinstance(newest, Received) and (not kept or kept[-1].packed is not newest.packed):
                skew_s = node.connection.clock_skew_s
                kept.append(Frame(node.node, newest.whole.sampled_at, newest.packed, skew_s))
        self.fired.add((*self._health.findings(view), *self._health.ended))

    def until(self, done: Callable[[], bool], most_s: float, each: Callable[[], object] = lambda: None) -> bool:
        """Look on until ``done``; False: it was not within ``most_s``. ``each``: after every look."""
        deadline = time.monotonic() + most_s
        while not done():
            if time.monotonic() > deadline:
                return False
            self.look()
            each()
            time.sleep(LOOK_S)
        return True

    def samples(self, node: str) -> int:
        return len(self.frames.get(node, ()))


def judged_slowly(frames: Iterable[Frame], apart_s: int, asked: Expectations, until: float) -> tuple[Fired, Fired]:
    """Judge frames again as if a node's samples had come ``apart_s`` apart: what fired up to ``until`` (unix s, when
    they came really) and what after it.
    """
    ordered = sorted(frames, key=lambda frame: frame.at)
    began_at = ordered[0].at
    edited, numbers = _Edited(began_at), Counter[str]()
    health = Health(asked, eager=True)
    before, after = Fired(), Fired()
    for turn, frame in enumerate(ordered):
        at = began_at + apart_s * numbers[frame.node] + turn / 1000
        numbers[frame.node] += 1
        sample = sample_of_frame(edited.payload(zlib.decompress(frame.packed), frame.at, at))
        sample.node = frame.node
        sample.clock_skew_s = frame.skew_s
        health.see(sample)
        told = before if frame.at < until else after
        told.add((*health.of(frame.node), *health.of_jobs()))
    return before, after


class _Edited:
    """The times in frames. What counts for how long something has lasted grows as fast as they do."""

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at

    def payload(self, payload: bytes, from_at: float, to_at: float) -> bytes:
        message = json.loads(payload)
        sample: dict[str, Any] = message["sample"]
        sample["sampled_at"] = to_at
        times = (to_at - self._began_at) / max(0.001, from_at - self._began_at)
        for part, name in (("blocked", "blocked_s"), ("filesystems", "stalled_s")):
            for one in sample.get("host", {}).get(part) or ():
                if one.get(name):
                    one[name] *= times
        return json.dumps(message, separators=(",", ":")).encode()
