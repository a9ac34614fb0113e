"""State, physical state and rate of one RDMA port.

The counters of one RDMA port: bytes and flaps at each look, all others seldom.

One port of an RDMA device: InfiniBand, RoCE or EFA.

Each look asks for the state, the flap counter and the bytes. Asking costs the firmware, not only this process: most
counter files are a management datagram each, ``rate`` and ``phys_state`` a port query each. So all others follow every
five seconds, and at once when the state or the flap counter has changed. Source: /sys/class/infiniband/D/ports/N.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mltop.probes.collect.links import parsing
from mltop.probes.collect.links.counters import ByteMeter, CounterFiles, Refused, Tier, counter_files
from mltop.probes.collect.links.discovery import PortFacts
from mltop.probes.collect.links.netdev import DEVICE_VANISHED, MergedInterface
from mltop.probes.collect.links.parsing import beyond_narrow, saturated
from mltop.probes.collect.sysfile import REFUSED, Attribute, OpenFiles
from mltop.probes.model import Gap, LinkSample

_Value = TypeVar("_Value")


class PortState:
    """``refused``: why the port is not asked any more. ``gone``: it used to answer, now its files are not there.

    ``unreadable``: by file, why it has no value now.
    """

    def __init__(self, folder: str, files: OpenFiles) -> None:
        self._state_file = files.attribute(f"{folder}/state")
        self._seldom_files = (files.attribute(f"{folder}/phys_state"), files.attribute(f"{folder}/rate"))
        self.state: str | None = None
        self.physical_state: str | None = None
        self.rate_bits_per_s: float | None = None
        self.refused: str | None = None
        self.gone = False
        self.unreadable: dict[str, str] = {}

    def read(self) -> None:
        """The state."""
        answered = self.state is not None
        self.state = self._text("state", self._state_file, parsing.state_word)
        self.gone = answered and self.state is None and self.refused is None

    def read_seldom(self) -> None:
        """The physical state and the rate."""
        physical, rate = self._seldom_files
        self.physical_state = self._text("phys_state", physical, parsing.state_word)
        self.rate_bits_per_s = self._text("rate", rate, parsing.rate_bits_per_s)

    def replaced(self) -> bool:
        return self._state_file.replaced()

    def close(self) -> None:
        for file in (self._state_file, *self._seldom_files):
            file.close()

    def _text(self, name: str, file: Attribute, meaning: Callable[[bytes], _Value | None]) -> _Value | None:
        if self.refused is not None:
            return None
        self.unreadable.pop(name, None)
        try:
            data = file.read()
        except OSError as error:
            if error.errno in REFUSED:
                self.refused = str(Refused(name, error))
            else:
                self.unreadable[name] = error.strerror or type(error).__name__
            return None
        value = meaning(data)
        if value is None:
            self.unreadable[name] = f"reads {data[:20]!r}"
        return value


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
