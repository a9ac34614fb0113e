"""A device's result against its own earlier ones, its peers of this run, or a published figure, in this order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mltop.probes.judge.probes.compare import Comparison, against_past, past_of, slower_than_peers, subject
from mltop.probes.judge.probes.matmul import published
from mltop.probes.model import ProbeKind
from mltop.probes.model.probe import CopiesResult, DeviceResult, MatmulResult, MemoryResult, PastResult, ProbeReport
from mltop.probes.model.units import UNKNOWN, signed_percent
from mltop.tui.render.cells import Cell

MUCH = 0.15  # slower than this is shown as gravely slow


@dataclass(frozen=True)
class Against:
    """A result beside others. ``share``: of what is usual there, 0.88 for 12 % less. ``of``: own | peers | table."""

    share: float
    of: str
    slow: bool = False

    @property
    def cell(self) -> Cell:
        style = "" if not self.slow else "crit" if self.share < 1 - MUCH else "warn"
        return Cell(f"{signed_percent(self.share - 1)} {self.of}", style)


NOT_KNOWN = Cell(UNKNOWN, "dim")


def main_value(result: DeviceResult) -> float | None:
    """The figure that devices are ordered by: TFLOP/s of GEMMs without a pause, bytes/s of copies; higher is better."""
    if isinstance(result, MatmulResult):
        return result.burst_tflops if result.sustained_tflops is None else result.sustained_tflops
    if isinstance(result, MemoryResult):
        return result.copy_bytes_per_s
    if isinstance(result, CopiesResult):
        rates = (result.to_device_bytes_per_s, result.to_host_bytes_per_s)
        return min((rate for rate in rates if rate is not None), default=None)
    return None


class Compared:
    """All results of one run. ``past``: by what it is of; what was not there before ``began_at`` (unix s) is left out.

    Each device is compared when it is first asked for: a table draws 50 of 4,096.
    """

    def __init__(
        self,
        probe: ProbeKind,
        results: Iterable[DeviceResult],
        past: Mapping[str, Sequence[PastResult]],
        began_at: float | None,
    ) -> None:
        self._probe = probe
        self._past = past
        self._began_at = began_at
        self._made: dict[tuple[str, str], Against | None] = {}
        self._peers: dict[tuple[str, str], Comparison] = {}
        alike: dict[tuple[str, ...], dict[tuple[str, str], float]] = {}
        for result in results:
            value = main_value(result)
            if value is not None:
                alike.setdefault(_kind_of(result), {})[result.node, result.uuid] = value
        for values in alike.values():
            self._peers |= slower_than_peers(values)

    def earlier(self, of: str) -> list[PastResult]:
        """The results of one device (``past.subject``), the oldest first, without what this run itself has left."""
        return [past for past in self._past.get(of, ()) if self._began_at is None or past.at < self._began_at]

    def of(self, result: DeviceResult) -> Against | None:
        """The comparison that says most; None while nothing is there to compare it with."""
        key = (result.node, result.uuid)
        if key not in self._made:
            self._made[key] = self._compare(result, key)
        return self._made[key]

    def _compare(self, result: DeviceResult, key: tuple[str, str]) -> Against | None:
        own, peers = self._own(result), self._peers.get(key)
        # A comparison that can tell slow from fast goes before one that cannot.
        for comparison, of in ((own, "own"), (peers, "peers")):
            if comparison is not None and comparison.slow is not None and comparison.share is not None:
                return Against(comparison.share, of, comparison.slow)
        figure = published(result) if isinstance(result, MatmulResult) else None
        shares = {
            "own": None if own is None else own.share,
            "table": None if figure is None else figure.share,
            "peers": peers.share if peers is not None and peers.count > 1 else None,
        }
        return next((Against(share, of) for of, share in shares.items() if share is not None), None)

    def _own(self, result: DeviceResult) -> Comparison | None:
        earlier, now = self.earlier(subject(result)), self._main_as_past(result)
        return against_past(now.uuid, now.key, now.value, now.versions, earlier) if earlier and now else None

    def values(self, result: DeviceResult) -> list[float]:
        """Its own earlier main values, the oldest first, whatever the versions were."""
        earlier = self.earlier(subject(result))
        now = self._main_as_past(result) if earlier else None
        return [past.value for past in earlier if now is not None and past.key == now.key]

    def _main_as_past(self, result: DeviceResult) -> PastResult | None:
        """The main value as it is kept: it has its key and versions."""
        value = main_value(result)
        values = past_of(ProbeReport(self._probe, 0.0, results=[result])) if value is not None else []
        return next((past for past in values if past.value == value), None)


def _kind_of(result: DeviceResult) -> tuple[str, ...]:
    """Only what is alike is compared."""
    dtype = result.dtype if isinstance(result, MatmulResult) else ""
    return (type(result).__name__, result.name, result.kind, dtype)
