"""One node of a collective probe, as its launcher told."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.model.receipt import MOST_PROBE_RANKS

MOST_ADDRESSES = 256
BACKENDS = ("nccl", "gloo")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,32}")  # of fe80::1%eth0


@dataclass
class Member:
    """``ready``: what the launcher said when it had joined, {} before. ``failed``: why it takes no part (any more).

    ``rounds``: those it has finished. Times are monotonic s.
    """

    node: str
    asked_at: float = field(default_factory=time.monotonic)
    stage: str = ""
    stage_at: float = field(default_factory=time.monotonic)
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
        """It may still join."""
        return not self.ready and not self.failed and not self.ended

    @property
    def ranks(self) -> int:
        ranks: int = self.ready.get("ranks", 0)
        return ranks

    def enter(self, stage: str) -> None:
        if stage != self.stage:
            self.stage, self.stage_at = stage, time.monotonic()


# What a launcher says goes to other nodes, and into a command that the user is shown: it is read, or refused.


def heard(said: Mapping[str, Any], alone: bool = False) -> dict[str, Any]:
    """Where the leader listens: {"addresses": [IP, ...], "port": number}. Raises ValueError for anything else.

    ``alone``: there are no other nodes, and nothing is opened for them: no addresses, port 0.
    """
    told, port = said.get("addresses"), said.get("port")
    if alone and told == [] and port == 0:
        return {"addresses": [], "port": 0}
    if not isinstance(told, list) or not 0 < len(told) <= MOST_ADDRESSES or not isinstance(port, int):
        raise ValueError("it does not say where it listens")
    addresses = [_address(entry["address"]) for entry in told]
    if not 0 < port < 65_536:
        raise ValueError(f"it listens on port {port}")
    return {"addresses": addresses, "port": port}


def ready(said: Mapping[str, Any]) -> dict[str, Any]:
    """What it has joined with: {"ranks": number, "backend": nccl | gloo, "address": IP or ""}. Raises ValueError."""
    ranks, backend, address = said.get("ranks", 0), said.get("backend") or "", said.get("address") or ""
    if not isinstance(ranks, int) or not 0 <= ranks <= MOST_PROBE_RANKS or backend not in ("", *BACKENDS):
        raise ValueError(f"it joined with {ranks!r:.40} ranks by {backend!r:.40}")
    return {**said, "ranks": ranks, "backend": backend, "address": _address(address) if address else ""}


def _address(said: object) -> str:
    address, percent, scope = str(said).partition("%")
    if percent and not _SCOPE.fullmatch(scope):
        raise ValueError("its address has a scope that is no interface")
    return str(ipaddress.ip_address(address)) + percent + scope
