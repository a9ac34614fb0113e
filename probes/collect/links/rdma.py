"""One port of an RDMA device: InfiniBand, RoCE or EFA.

Each look asks for the state, the flap counter and the bytes. Asking costs the firmware, not only this process: most
counter files are a management datagram each, ``rate`` and ``phys_state`` a port query each. So all others follow every
five seconds, and at once when the state or the flap counter has changed. Source: /sys/class/infiniband/D/ports/N.
"""

from __future__ import annotations

from mltop.probes.collect.links.discovery import PortFacts
from mltop.probes.collect.links.files import OpenFiles
from mltop.probes.collect.links.merged import MergedInterface
from mltop.probes.collect.links.netdev import DEVICE_VANISHED
from mltop.probes.collect.links.rdma_counters import PortCounters
from mltop.probes.collect.links.rdma_state import PortState
from mltop.probes.collect.links.tiers import Tier
from mltop.probes.model import Gap, LinkSample


class RdmaPort:
    """Keep one object while the device exists. ``subject``: its name in gaps ("mlx5_0"); ``turn``: its place in order.

    ``has_chardev`` is for the owner to set, and the interface with ``adopt``.
    """

    def __init__(self, facts: PortFacts, subject: str, files: OpenFiles, turn: int = 0) -> None:
        self.facts = facts
        self.subject = subject
        self.netdev: MergedInterface | None = None
        self.has_chardev: bool | None = None
        self._state = PortState(facts.folder, files)
        self._counters = PortCounters(facts, files)
        self._tier = Tier(turn=turn)

    @property
    def place(self) -> tuple[str | None, int]:
        """What stays when a device is renamed."""
        return self.facts.pci_bus_id, self.facts.port

    @property
    def gone(self) -> bool:
        """It (or its interface) used to answer and does not: the devices are to be listed anew."""
        return self._state.gone or (self.netdev is not None and self.netdev.gone)

    @property
    def rates_why(self) -> str:
        """Why the newest rates are None, "" when they are not."""
        return self._counters.meter.why if self._counters.has_bytes else ""

    def adopt(self, netdev: MergedInterface | None) -> None:
        """Its interface from now on."""
        if self.netdev is not None:
            self.netdev.close()
        self.netdev = netdev
        self._tier.hurry()

    @property
    def counters_read_at(self) -> float | None:
        """When the slowest of its counters were read."""
        return self._tier.read_at

    def replaced(self) -> bool:
        """Whether another device of the same name has taken its place."""
        return self._state.replaced()

    def read(self, now: float) -> LinkSample:
        """Never raises; ``now`` is monotonic, s."""
        state, counters = self._state, self._counters
        before = state.state, counters.flaps
        state.read()
        counters.read()
        if self._tier.due(now) or before != (state.state, counters.flaps):
            self._tier.done(now)
            state.read_seldom()
            counters.read_seldom()
            if self.netdev is not None:
                self.netdev.read()
        values = counters.values
        received, sent = counters.rates(now)
        sample = self._base()
        sample.state, sample.physical_state = state.state, state.physical_state
        sample.rate_bits_per_s = state.rate_bits_per_s
        sample.rx_bytes_per_s, sample.tx_bytes_per_s = received, sent
        sample.saturated = list(counters.saturated)
        sample.error = state.refused or counters.refused
        sample.has_chardev = self.has_chardev
        sample.counters = values
        if self.netdev is not None:
            self.netdev.merge_into(sample)
        return sample

    def vanished(self) -> LinkSample:
        """What is left to say when the device is not there any more."""
        sample = self._base()
        sample.error = DEVICE_VANISHED
        return sample

    def gaps(self) -> list[Gap]:
        """What the newest ``read`` could not tell, but for rates of a first sample."""
        state, counters, name = self._state, self._counters, f"links.{self.subject}"
        found = [Gap(f"{name}.{file}", why) for file, why in state.unreadable.items()]
        if state.refused:
            found.append(Gap(name, state.refused))
        if counters.refused:
            found.append(Gap(f"{name}.counters", counters.refused))
        elif counters.unreadable:
            found.append(Gap(f"{name}.counters", _listed(counters.unreadable)))
        if counters.refused is None and not counters.has_bytes:
            found.append(Gap(f"{name}.rates", "its driver has no byte counters", kind="unsupported"))
        else:
            found += counters.meter.gaps(name)
        if self.facts.kind == "roce" and self.netdev is None:
            found.append(Gap(f"{name}.netdev", "no network interface of this port is visible here"))
        if self.has_chardev is None:
            found.append(Gap(f"{name}.has_chardev", "/sys/class/infiniband_verbs cannot be listed"))
        return found + ([] if self.netdev is None else self.netdev.gaps(name))

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
