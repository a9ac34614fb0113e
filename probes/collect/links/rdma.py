"""One port of an RDMA device: InfiniBand, RoCE or EFA.

Each look asks for the state, the flap counter and the bytes. Asking costs the firmware, not only this process: most
counter files are a management datagram each, ``rate`` and ``phys_state`` a port query each. So all others follow every
five seconds, and at once when the state or the flap counter has changed. Source: /sys/class/infiniband/D/ports/N.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mltop.probes.collect.links import parsing
from mltop.probes.collect.links.counters import ByteMeter, Counters, Port, Refused, counter_files
from mltop.probes.collect.links.discovery import PortFacts
from mltop.probes.collect.links.netdev import MergedInterface, vanished
from mltop.probes.collect.sysfile import LINE_BYTES, REFUSED, KeptFile, OpenFiles
from mltop.probes.model import Gap, LinkSample

LINK_DOWNED = "link_downed"
# InfiniBand counts words of four bytes (PortXmitData), EFA and some RoCE drivers bytes.
_BYTE_COUNTERS = (("port_rcv_data", "port_xmit_data", 4), ("rx_bytes", "tx_bytes", 1))
_Value = TypeVar("_Value")


class RdmaPort(Port):
    """Keep one object while the device exists. ``has_chardev`` is for the owner to set, and the interface with
    ``adopt``.
    """

    def __init__(self, facts: PortFacts, subject: str, open_files: OpenFiles, turn: int = 0) -> None:
        super().__init__(facts, subject, (facts.pci_bus_id, facts.port), turn)
        self.facts = facts
        self.netdev: MergedInterface | None = None
        self.has_chardev: bool | None = None
        names = ("state", "phys_state", "rate")
        self._files = {name: KeptFile(f"{facts.folder}/{name}", open_files, LINE_BYTES) for name in names}
        self._state: str | None = None
        self._physical_state: str | None = None
        self._rate_bits_per_s: float | None = None
        self._refused: str | None = None  # why the port is not asked any more
        self._unreadable: dict[str, str] = {}  # by file, why it has no value now
        folders = [f"{facts.folder}/counters", f"{facts.folder}/hw_counters"]
        if facts.is_first_port:
            folders.append(f"{facts.folder}/../../hw_counters")  # the device's own are told once
        paths = counter_files(folders)
        pairs = [pair for pair in _BYTE_COUNTERS if pair[0] in paths and pair[1] in paths]
        self._has_bytes = bool(pairs)
        self._received, self._sent, unit_bytes = pairs[0] if pairs else ("", "", 1)
        # Bytes and flaps at each look, all other counters seldom.
        self._counters = Counters(paths, (LINK_DOWNED, self._received, self._sent), open_files, stops=True)
        self._is_wide = False  # a value has shown that this driver's counters are wider than the classic ones
        self.meter = ByteMeter(unit_bytes)

    def adopt(self, netdev: MergedInterface | None) -> None:
        """Takes another interface as its own from now on."""
        if self.netdev is not None:
            self.netdev.close()
        self.netdev = netdev
        self._pace.hurry()

    def replaced(self) -> bool:
        return self._files["state"].replaced()

    def read(self, now: float) -> LinkSample:
        before = self._state, self._counters.values.get(LINK_DOWNED)
        self._state = self._meaning("state", parsing.state_word)
        self.gone = before[0] is not None and self._state is None and self._refused is None
        self._counters.read()
        if self._pace.is_due(now) or before != (self._state, self._counters.values.get(LINK_DOWNED)):
            self._pace.done(now)
            self._read_seldom()
        values = self._counters.values
        self.gone = self.gone or (self.netdev is not None and self.netdev.gone)
        sample = self._base()
        sample.state, sample.physical_state = self._state, self._physical_state
        sample.rate_bits_per_s = self._rate_bits_per_s
        rates = self.meter.rates(now, values.get(self._received), values.get(self._sent))
        sample.rx_bytes_per_s, sample.tx_bytes_per_s = rates
        sample.saturated = [] if self._is_wide else parsing.saturated(values)
        sample.error = self._refused or self._counters.refused
        sample.has_chardev = self.has_chardev
        sample.counters = dict(values)
        if self.netdev is not None:
            self.netdev.merge_into(sample)
        return sample

    def _read_seldom(self) -> None:
        self._physical_state = self._meaning("phys_state", parsing.state_word)
        self._rate_bits_per_s = self._meaning("rate", parsing.rate_bits_per_s)
        self._counters.read_seldom()
        self._is_wide = self._is_wide or parsing.beyond_narrow(self._counters.values)
        if self.netdev is not None:
            self.netdev.read()

    def _meaning(self, name: str, meaning: Callable[[bytes], _Value | None]) -> _Value | None:
        if self._refused is not None:
            return None
        self._unreadable.pop(name, None)
        try:
            content = self._files[name].read()
        except OSError as error:
            if error.errno in REFUSED:
                self._refused = str(Refused(name, error))
            else:
                self._unreadable[name] = error.strerror or type(error).__name__
            return None
        value = meaning(content)
        if value is None:
            self._unreadable[name] = f"reads {content[:20]!r}"
        return value

    def vanished(self) -> LinkSample:
        return vanished(self._base(), "device_vanished")

    def gaps(self) -> list[Gap]:
        counters = self._counters
        gaps = [self.gap(file, why=why) for file, why in self._unreadable.items()]
        if self._refused:
            gaps.append(self.gap(why=self._refused))
        if counters.refused:
            gaps.append(self.gap("counters", why=counters.refused))
        elif counters.unreadable:
            (name, why), *others = counters.unreadable.items()
            more = f", and {len(others)} more" if others else ""
            gaps.append(self.gap("counters", why=f"{name}: {why}{more}"))
        if counters.refused is None and not self._has_bytes:
            gaps.append(self.gap("rates", why="its driver has no byte counters", kind="unsupported"))
        else:
            gaps += self.meter.gaps(self.subject)
        if self.facts.kind == "roce" and self.netdev is None:
            gaps.append(self.gap("netdev", why="no network interface of this port is visible here"))
        if self.has_chardev is None:
            gaps.append(self.gap("has_chardev", why="/sys/class/infiniband_verbs cannot be listed"))
        merged = {} if self.netdev is None else self.netdev.unreadable()
        return gaps + [self.gap(field, why=why) for field, why in merged.items()]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._counters.close()
        if self.netdev is not None:
            self.netdev.close()

    def _base(self) -> LinkSample:
        facts = self.facts
        return LinkSample(
            device=facts.device,
            port=facts.port,
            kind=facts.kind,
            firmware=facts.firmware,
            pci_bus_id=facts.pci_bus_id,
            numa_node=facts.numa_node,
            netdev=None if self.netdev is None else self.netdev.facts.name,
        )
