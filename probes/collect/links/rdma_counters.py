"""The counters of one RDMA port: bytes and flaps at each look, all others seldom."""

from __future__ import annotations

from mltop.probes.collect.links.counters import CounterFiles, Refused, counter_files
from mltop.probes.collect.links.discovery import PortFacts
from mltop.probes.collect.links.files import OpenFiles
from mltop.probes.collect.links.rates import ByteMeter
from mltop.probes.collect.links.words import beyond_narrow, saturated

LINK_DOWNED = "link_downed"
# InfiniBand counts words of four bytes (PortXmitData), EFA and some RoCE drivers bytes.
_BYTE_COUNTERS = (("port_rcv_data", "port_xmit_data", 4), ("rx_bytes", "tx_bytes", 1))


class PortCounters:
    """``refused``: why they are not read any more. ``has_bytes``: False where this driver counts none.

    ``saturated``: counters that can count no further; [] where a value has shown that this driver's are wider.
    """

    def __init__(self, facts: PortFacts, files: OpenFiles) -> None:
        folders = [f"{facts.folder}/counters", f"{facts.folder}/hw_counters"]
        if facts.is_first_port:
            folders.append(f"{facts.folder}/../../hw_counters")  # the device's own are told once
        found = counter_files(folders)
        pairs = [pair for pair in _BYTE_COUNTERS if pair[0] in found and pair[1] in found]
        self.has_bytes = bool(pairs)
        self._received, self._sent, unit_bytes = pairs[0] if pairs else ("", "", 1)
        self.meter = ByteMeter(unit_bytes)
        often = {name: found.pop(name) for name in (LINK_DOWNED, self._received, self._sent) if name in found}
        self._often = CounterFiles(often, files, stops=True)
        self._seldom = CounterFiles(found, files, stops=True)
        self._wide = False
        self.saturated: list[str] = []
        self.refused: str | None = None

    @property
    def flaps(self) -> int | None:
        return self._often.values.get(LINK_DOWNED)

    @property
    def values(self) -> dict[str, int]:
        """All that have a value: a new dictionary."""
        return {**self._often.values, **self._seldom.values}

    @property
    def unreadable(self) -> dict[str, str]:
        """By counter, why it has no value now."""
        return {**self._often.unreadable, **self._seldom.unreadable}

    def read(self) -> None:
        self._read(self._often)

    def read_seldom(self) -> None:
        self._read(self._seldom)
        values = self.values
        self._wide = self._wide or beyond_narrow(values)
        self.saturated = [] if self._wide else saturated(values)

    def rates(self, now: float) -> tuple[float | None, float | None]:
        """Bytes per second received and sent since the look before."""
        values = self._often.values
        return self.meter.rates(now, values.get(self._received), values.get(self._sent))

    def close(self) -> None:
        self._often.close()
        self._seldom.close()

    def _read(self, counters: CounterFiles) -> None:
        if self.refused is not None:
            return
        try:
            counters.read()
        except Refused as refused:
            self.refused = str(refused)
            # A value that is not read again would pass for one that does not grow.
            self._often.forget()
            self._seldom.forget()
            self.close()
