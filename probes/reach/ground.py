"""What the links of one hub have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mltop.probes.reach.pacing import Limits
from mltop.probes.reach.poller import Poller
from mltop.probes.reach.records import Records
from mltop.probes.reach.requests import Switchboard
from mltop.probes.reach.stream import Reaper
from mltop.probes.reach.uploads import Files

if TYPE_CHECKING:
    from mltop.probes.reach.link import Link


@dataclass(frozen=True)
class Ground:
    """What all links of a hub share.

    ``up(link)``: it gives back its place; ``down(link, retry)``: it ended; ``rejoin(link, node, retry)``: this one of
    its nodes is lost while others are fine, and goes to a channel of its own.
    """

    limits: Limits
    interval_s: float
    poller: Poller
    reaper: Reaper
    records: Records
    files: Files
    switchboard: Switchboard
    up: Callable[[Link], None]
    down: Callable[[Link, bool], None]
    rejoin: Callable[[Link, str, bool], None]
