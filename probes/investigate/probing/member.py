"""One node of a collective probe, as its launcher says; who has joined and whom the others wait for in one sentence."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.investigate.probing.board import MOST_CHARS
from mltop.probes.judge.nodes import folded
from mltop.probes.judge.values import grouped
from mltop.probes.model import NodePhase
from mltop.probes.model.probe import ProbeEvent
from mltop.probes.model.receipt import MOST_PROBE_RANKS
from mltop.probes.model.text import plain_text
from mltop.probes.model.units import counted

# A launcher's stages as what it is busy with. Before the first its agent has not started it, or cannot.
_STAGES = {
    "start python": "starting Python",
    "import torch": "torch import",
    "listen": "opening its port",
    "join": "meeting the other nodes",
    "init": "making the process group",
}
GROUPS = 3
SAME_S = 5.0  # nodes that are in one stage for times so close are told together


@dataclass(frozen=True)
class Joining:
    """One node on its way. ``stage``: the launcher's, "" before the first; ``seconds``: in it. ``failed``: why it will
    not come, "" while it may.

    ``reached``: its agent answers; None: unknown.
    """

    node: str
    joined: bool
    stage: str = ""
    seconds: float = 0.0
    failed: str = ""
    reached: bool | None = None


def joined_sentence(nodes: Sequence[Joining], elapsed_s: float) -> str:
    """``14 of 16 nodes joined within 12 s; waiting for node-07: ssh fine, torch import 22 s so far``.

    Nodes in one stage are told together, as ``node-[07-09]``; those that failed with their reason.
    """
    joined = sum(node.joined for node in nodes)
    count = counted(len(nodes), "node")
    if joined == len(nodes):
        return f"all {count} joined within {_seconds(elapsed_s)}" if joined > 1 else f"{count} joined"
    if len(nodes) == 1 and not nodes[0].failed:  # this machine, or one node: nobody else to wait for
        return f"not ready within {_seconds(elapsed_s)}: {_state(nodes)}"
    parts = [f"{joined} of {count} joined within {_seconds(elapsed_s)}"]
    parts += _grouped("waiting for ", _by_stage([node for node in nodes if not node.joined and not node.failed]))
    failed = grouped((node for node in nodes if node.failed and not node.joined), lambda node: node.failed)
    parts += _grouped("", [([node.node for node in alike], why) for why, alike in failed.items()])
    return "; ".join(parts)


def _grouped(before: str, groups: Sequence[tuple[Sequence[str], str]]) -> list[str]:
    """The largest groups first; what is left over is counted."""
    ordered = sorted(groups, key=lambda group: -len(group[0]))
    first = [f"{before}{folded(nodes)}: {text}" for nodes, text in ordered[:GROUPS]]
    left = [node for nodes, _ in ordered[GROUPS:] for node in nodes]
    return first + ([f"{before}{len(left)} more: {folded(left)}"] if left else [])


def _by_stage(waiting: Sequence[Joining]) -> list[tuple[list[str], str]]:
    groups: list[list[Joining]] = []
    for node in sorted(waiting, key=lambda node: (node.stage, str(node.reached), node.seconds)):
        first = groups[-1][0] if groups else None
        same = first is not None and (first.stage, first.reached) == (node.stage, node.reached)
        if first is not None and same and node.seconds - first.seconds <= SAME_S:
            groups[-1].append(node)
        else:
            groups.append([node])
    # A stage was said, so its agent is reached.
    reach = ["ssh fine, " if group[0].stage or group[0].reached else "" for group in groups]
    return [([node.node for node in group], ssh + _state(group)) for group, ssh in zip(groups, reach, strict=True)]


def _state(group: Sequence[Joining]) -> str:
    first, seconds = group[0], _seconds(max(node.seconds for node in group))
    if first.stage:
        return f"{_STAGES.get(first.stage, first.stage)} {seconds} so far"
    return f"{'not reached' if first.reached is False else 'no word of its probe'} for {seconds}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s"


BACKENDS = ("nccl", "gloo")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,32}")  # of fe80::1%eth0


@dataclass(frozen=True)
class Place:
    """Where a launcher listens, an IP address, and the ranks that it has."""

    address: str
    port: int
    ranks: int


@dataclass
class Member:
    """One node's launcher. ``place``: where it listens, with how many ranks; ``cannot``: which nodes it cannot connect
    to, and why; ``ready``: what it said when it had joined, {} before. ``failed``: why it takes no part (any more).
    ``rounds``: those it has finished. Times are monotonic s.
    """

    node: str
    asked_at: float = field(default_factory=time.monotonic)
    stage: str = ""
    stage_at: float = field(default_factory=time.monotonic)
    place: Place | None = None
    cannot: dict[str, str] | None = None
    ready: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    ended: bool = False
    rounds: set[int] = field(default_factory=set)
    rank_stages: dict[int, str] = field(default_factory=dict)
    failed_ranks: dict[int, str] = field(default_factory=dict)  # in the newest round

    @property
    def usable(self) -> bool:
        return bool(self.ready) and not self.failed and not self.ended

    @property
    def waiting(self) -> bool:
        """Whether it may still join."""
        return not self.ready and not self.failed and not self.ended

    @property
    def ranks(self) -> int:
        ranks: int = self.ready.get("ranks", 0)
        return ranks

    def joining(self, phase: NodePhase, now: float) -> Joining:
        """How far it is; ``phase``: of the stream from its agent."""
        reached = phase in ("live", "stale")
        return Joining(self.node, bool(self.ready), self.stage, now - self.stage_at, self.failed, reached)

    def take(self, event: ProbeEvent) -> None:
        """Raises ValueError for what cannot be read."""
        if event.event == "listening":
            self.place = place_of(event.data)
        elif event.event == "reached":
            self.cannot = cannot_of(event.data)
        elif event.event == "ready":
            self.ready = readiness_of(event.data)
        else:
            self.rounds.add(int(event.data.get("round", 0)))

    def enter(self, stage: str) -> None:
        if stage != self.stage:
            self.stage, self.stage_at = stage, time.monotonic()


# What a launcher says goes to other nodes, and into a command that the user is shown: it is read, or refused.


def place_of(data: Mapping[str, Any]) -> Place:
    """Raises ValueError for what is none."""
    port, ranks = data.get("port"), data.get("ranks")
    if not isinstance(port, int) or not 0 < port < 65_536:
        raise ValueError(f"it listens on port {port!r:.40}")
    if not isinstance(ranks, int) or not 0 < ranks <= MOST_PROBE_RANKS:
        raise ValueError(f"it has {ranks!r:.40} ranks")
    return Place(_address(data.get("address")), port, ranks)


def cannot_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Node → why it cannot be connected to. Raises ValueError for what is none."""
    cannot = data.get("cannot")
    if not isinstance(cannot, dict):
        raise ValueError("it does not say whom it reaches")
    return {str(name): plain_text(str(why), MOST_CHARS) for name, why in cannot.items()}


def readiness_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """What it has joined with: {"ranks": number, "backend": nccl | gloo, "address": IP or ""}. Raises ValueError."""
    ranks, backend, address = data.get("ranks", 0), data.get("backend") or "", data.get("address") or ""
    if not isinstance(ranks, int) or not 0 <= ranks <= MOST_PROBE_RANKS or backend not in ("", *BACKENDS):
        raise ValueError(f"it joined with {ranks!r:.40} ranks by {backend!r:.40}")
    return {**data, "ranks": ranks, "backend": backend, "address": _address(address) if address else ""}


def _address(text: object) -> str:
    address, percent, scope = str(text).partition("%")
    if percent and not _SCOPE.fullmatch(scope):
        raise ValueError("its address has a scope that is no interface")
    return str(ipaddress.ip_address(address)) + percent + scope
