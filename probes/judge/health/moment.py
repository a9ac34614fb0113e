"""What a health rule looks at: one node's sample, the one before, and what is remembered of the earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from mltop.probes.judge.health.peers import NO_PEERS, Peers
from mltop.probes.judge.health.rule import NO_EXPECTATIONS, Expectations
from mltop.probes.judge.health.trails import Trails
from mltop.probes.model import GpuSample, KernelEvent, Sample

EVENT_LISTED_S = 3600.0  # what the kernel log said is listed for so long
MINUTE_S, HOUR_S, DAY_S, WEEK_S = 60.0, 3600.0, 86_400.0, 7 * 86_400.0

T = TypeVar("T")
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Moment:
    """One node's sample, the one before it, and all that its earlier samples have told.

    ``known_gpus``: the newest that was ever seen of each GPU. Everything is forgotten at a reboot.
    """

    now: Sample
    before: Sample | None = None
    known_gpus: Mapping[int, GpuSample] = field(default_factory=dict)
    trails: Trails = field(default_factory=Trails)
    expectations: Expectations = NO_EXPECTATIONS

    @property
    def passed_s(self) -> float | None:
        """Since the sample before; None at the first."""
        return None if self.before is None else self.now.sampled_at - self.before.sampled_at

    def gpu_before(self, gpu: GpuSample) -> GpuSample | None:
        """The same board in the sample before, None when another one stands at its index."""
        old = self._gpus_before.get(gpu.index)
        return old if old is not None and old.uuid == gpu.uuid else None

    @cached_property
    def _gpus_before(self) -> dict[int, GpuSample]:
        return {gpu.index: gpu for gpu in self.before.gpus} if self.before is not None else {}

    def events(self, *kinds: str) -> Iterator[KernelEvent]:
        """What the kernel log said lately, the oldest first."""
        oldest = self.now.sampled_at - EVENT_LISTED_S
        return (event for event in self.now.kernel_events if event.kind in kinds and event.at >= oldest)

    def after_log(self, action: str) -> str:
        """What to do, after a look at the kernel log where it could not be read: else it is shown, too."""
        unread = any(gap.source == "kernel_log" and gap.kind == "unknown" for gap in self.now.gaps)
        look = "look for Xid lines: sudo dmesg | grep -i xid; "
        return f"{look}{action}" if unread and not any(self.events("xid", "off_bus")) else action


@dataclass(frozen=True)
class FleetMoment(Moment):
    """The same where other nodes are known, too."""

    peers: Peers = NO_PEERS


class OfNewest(Generic[Seen, T]):
    """Keeps what ``read`` returned for the newest sample or moment: several rules ask the same, one after the other."""

    def __init__(self, read: Callable[[Seen], T]) -> None:
        self._read = read
        self._newest: tuple[Seen, T] | None = None

    def __call__(self, seen: Seen) -> T:
        newest = self._newest  # one look: another thread may put another sample there
        return newest[1] if newest is not None and newest[0] is seen else self.afresh(seen)

    def afresh(self, seen: Seen) -> T:
        """For who sees a sample first: it may have been changed in place since it was last judged."""
        result = self._read(seen)
        self._newest = seen, result
        return result


once_per_moment = OfNewest
