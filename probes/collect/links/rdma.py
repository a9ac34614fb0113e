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


class PortState:
    """State, physical state and rate. ``refused``: why the port is not asked any more. ``gone``: it used to answer, now
    its files are not there. ``unreadable``: by file, why it has no value now.
    """

    def __init__(self, folder: str, open_files: OpenFiles) -> None:
        self._files = {
            name: KeptFile(f"{folder}/{name}", open_files, LINE_BYTES) for name in ("state", "phys_state", "rate")
        }
        self.state: str | None = None
        self.physical_state: str | None = None
        self.rate_bits_per_s: float | None = None
        self.refused: str | None = None
        self.gone = False
        self.unreadable: dict[str, str] = {}

    def read(self) -> None:
        """The state."""
        answered = self.state is not None
        self.state = self._meaning("state", parsing.state_word)
        self.gone = answered and self.state is None and self.refused is None

    def read_seldom(self) -> None:
        """The physical state and the rate."""
        self.physical_state = self._meaning("phys_state", parsing.state_word)
        self.rate_bits_per_s = self._meaning("rate", parsing.rate_bits_per_s)

    def replaced(self) -> bool:
        return self._files["state"].replaced()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _meaning(self, name: str, meaning: Callable[[bytes], _Value | None]) -> _Value | None:
        if self.refused is not None:
            return None
        self.unreadable.pop(name, None)
        try:
            content = self._files[name].read()
        except OSError as error:
            if error.errno in REFUSED:
                self.refused = str(Refused(name, error))
            else:
                self.unreadable[name] = error.strerror or type(error).__name__
            return None
        value = meaning(content)
        if value is None:
            self.unreadable[name] = f"reads {content[:20]!r}"
        return value


class PortCounters(Counters):
    """Bytes and flaps at each look, all other counters seldom.

    ``has_bytes``: False where this driver counts none. ``saturated``: counters that can count no further; [] where a
    value has shown that this driver's are wider.
    """

    def __init__(self, facts: PortFacts, open_files: OpenFiles) -> None:
        folders = [f"{facts.folder}/counters", f"{facts.folder}/hw_counters"]
        if facts.is_first_port:
            folders.append(f"{facts.folder}/../../hw_counters")  # the device's own are told once
        paths = counter_files(folders)
        pairs = [pair for pair in _BYTE_COUNTERS if pair[0] in paths and pair[1] in paths]
        self.has_bytes = bool(pairs)
        self._received, self._sent, self.unit_bytes = pairs[0] if pairs else ("", "", 1)
        super().__init__(paths, (LINK_DOWNED, self._received, self._sent), open_files, stops=True)
        self._wide = False
        self.saturated: list[str] = []

    @property
    def bytes(self) -> tuple[int | None, int | None]:
        """Received and sent, in the counters' unit."""
        return self.newest(self._received), self.newest(self._sent)

    def read_seldom(self) -> None:
        super().read_seldom()
        values = self.values
        self._wide = self._wide or parsing.beyond_narrow(values)
        self.saturated = [] if self._wide else parsing.saturated(values)


class RdmaPort(Port):
    """Keep one object while the device exists. ``has_chardev`` is for the owner to set, and the interface with
    ``adopt``.
    """

    def __init__(self, facts: PortFacts, subject: str, open_files: OpenFiles, turn: int = 0) -> None:
        super().__init__(facts, subject, (facts.pci_bus_id, facts.port), turn)
        self.facts = facts
        self.netdev: MergedInterface | None = None
        self.has_chardev: bool | None = None
        self._state = PortState(facts.folder, open_files)
        self._counters = PortCounters(facts, open_files)
        self.meter = ByteMeter(self._counters.unit_bytes)

    def adopt(self, netdev: MergedInterface | None) -> None:
        """Takes another interface as its own from now on."""
        if self.netdev is not None:
            self.netdev.close()
        self.netdev = netdev
        self._pace.hurry()

    def replaced(self) -> bool:
        return self._state.replaced()

    def read(self, now: float) -> LinkSample:
        state, counters = self._state, self._counters
        before = state.state, counters.newest(LINK_DOWNED)
        state.read()
        counters.read()
        if self._pace.is_due(now) or before != (state.state, counters.newest(LINK_DOWNED)):
            self._pace.done(now)
            state.read_seldom()
            counters.read_seldom()
            if self.netdev is not None:
                self.netdev.read()
        self.gone = state.gone or (self.netdev is not None and self.netdev.gone)
        sample = self._base()
        sample.state, sample.physical_state = state.state, state.physical_state
        sample.rate_bits_per_s = state.rate_bits_per_s
        sample.rx_bytes_per_s, sample.tx_bytes_per_s = self.meter.rates(now, *counters.bytes)
        sample.saturated = list(counters.saturated)
        sample.error = state.refused or counters.refused
        sample.has_chardev = self.has_chardev
        sample.counters = counters.values
        if self.netdev is not None:
            self.netdev.merge_into(sample)
        return sample

    def vanished(self) -> LinkSample:
        return vanished(self._base(), "device_vanished")

    def gaps(self) -> list[Gap]:
        state, counters = self._state, self._counters
        gaps = [self.gap(file, why=why) for file, why in state.unreadable.items()]
        if state.refused:
            gaps.append(self.gap(why=state.refused))
        if counters.refused:
            gaps.append(self.gap("counters", why=counters.refused))
        elif counters.unreadable:
            gaps.append(self.gap("counters", why=_listed(counters.unreadable)))
        if counters.refused is None and not counters.has_bytes:
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
        self._state.close()
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


def _listed(unreadable: dict[str, str]) -> str:
    """ "symbol_error reads b'x', 3 more"."""
    (name, why), *others = unreadable.items()
    return f"{name}: {why}" + (f", and {len(others)} more" if others else "")
