"""What all ports have in common: the files of their counters, rates of bytes, and what is read seldom."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from functools import partial

from mltop.probes.collect.links.discovery import NetFacts, PortFacts
from mltop.probes.collect.sysfile import LINE_BYTES, REFUSED, KeptFile, OpenFiles, names_in, number
from mltop.probes.collect.timing import LastLook, Pace
from mltop.probes.model import Gap, LinkSample
from mltop.probes.model.plausible import LINKS
from mltop.probes.model.vocabulary import GapKind

SELDOM_S = 5.0
_TURNS = 5
_MOST_BYTES_PER_S = LINKS["rx_bytes_per_s"].high
_LARGEST_COUNT = int(LINKS["counters.*"].high)
_SETTINGS = frozenset({"lifespan"})  # how long hw_counters are cached


class ByteMeter:
    """Bytes per second from two looks at a port's byte counters. ``unit_bytes``: what one count stands for.

    ``is_first``: rates need another look. ``gap``: why the newest rates are None otherwise, but for counters that
    cannot be read, which their own gaps tell.
    """

    def __init__(self, unit_bytes: int = 1) -> None:
        self.is_first = True
        self._gap: partial[Gap] | None = None
        self._unit_bytes = unit_bytes
        self._last_look: LastLook[tuple[int, int]] = LastLook()

    def rates(self, now: float, received: int | None, sent: int | None) -> tuple[float | None, float | None]:
        """Since the look before. A counter that went back gives no rate: it was reset, it cannot wrap (64 bits)."""
        self.is_first, self._gap = False, None
        if received is None or sent is None:
            self._last_look.forget()
            return None, None
        before = self._last_look.since(now, (received, sent))
        if before is None:
            self.is_first = True
            return None, None
        passed_s, (received_before, sent_before) = before
        if received < received_before or sent < sent_before:
            self._gap = partial(Gap.about, why="the byte counters started anew", kind="starting")
            return None, None
        scale = self._unit_bytes / passed_s
        rates = (received - received_before) * scale, (sent - sent_before) * scale
        if max(rates) > _MOST_BYTES_PER_S:
            why = f"the byte counters went on by {max(rates):.2g} bytes/s: no port does"
            self._gap = partial(Gap.about, why=why, code="implausible")
            return None, None
        return rates

    def gaps(self, port: str) -> list[Gap]:
        """Why there are no newest rates, but for a first sample's and where the counters' own gaps say it."""
        return [] if self._gap is None else [self._gap("links", "rates", item=port)]


def refusal(file: str, error: OSError) -> str:
    """The port's firmware refuses: which file, what and when."""
    at = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    return f"{file}: {error.strerror} at {at}; not read again (each try may fill the kernel log)"


class Counters:
    """Files of counters, ``paths`` by name: those named ``often`` are read at each look, others seldom.

    ``values``: those that have one; ``unreadable``: why others have none now. ``stops``: whether EIO, EINVAL and their
    like end the reading, as they must on RDMA ports; ``refused`` says why then.
    """

    def __init__(self, paths: dict[str, str], often: Collection[str], open_files: OpenFiles, stops: bool) -> None:
        self._seldom = {name: KeptFile(path, open_files, LINE_BYTES) for name, path in paths.items()}
        self._often = {name: self._seldom.pop(name) for name in often if name in self._seldom}
        self._stops = stops
        self.refused: str | None = None
        self.values: dict[str, int] = {}
        self.unreadable: dict[str, str] = {}

    def read(self) -> None:
        self._read(self._often)

    def read_seldom(self) -> None:
        self._read(self._seldom)

    def close(self) -> None:
        for file in (*self._often.values(), *self._seldom.values()):
            file.close()

    def _read(self, files: dict[str, KeptFile]) -> None:
        if self.refused is not None:
            return
        values, pread = self.values, os.pread
        for name, file in files.items():
            try:
                value = int(pread(file.descriptor, LINE_BYTES, 0))
            except (OSError, ValueError):  # also of a file that is not open
                value = -1
            if 0 <= value <= _LARGEST_COUNT:
                values[name] = value
                self.unreadable.pop(name, None)
                continue
            values.pop(name, None)
            self._read_carefully(name, file)
            if self.refused is not None:
                # A value that is not read again would pass for one that does not grow.
                self.values, self.unreadable = {}, {}
                self.close()
                return

    def _read_carefully(self, name: str, file: KeptFile) -> None:
        try:
            content = file.read()
        except OSError as error:
            if self._stops and error.errno in REFUSED:
                self.refused = refusal(name, error)
            self.unreadable[name] = error.strerror or type(error).__name__
            return
        value = number(content)
        if value is None:
            self.unreadable[name] = f"reads {content[:20]!r}"
        elif value > _LARGEST_COUNT:
            self.unreadable[name] = f"reads {value}: all bits are set, as of a device that does not answer"
        else:
            self.values[name] = value
            self.unreadable.pop(name, None)


def counter_files(folders: Iterable[str]) -> dict[str, str]:
    """Name → path of the counters in some folders; of equal names the first folder's."""
    paths: dict[str, str] = {}
    for folder in folders:
        for name in sorted(names_in(folder)):
            if name not in _SETTINGS:
                paths.setdefault(name, f"{folder}/{name}")
    return paths


class Port:
    """What a port of an RDMA device and a network interface have in common. ``subject``: its name in gaps; ``turn``:
    its place in order. ``slot`` stays when it is renamed: its PCI function and its number there. ``gone``: it used to
    answer and does not.

    ``_flaps``, ``_received`` and ``_sent`` are the counters that are read at each look. All others follow every five
    seconds, and at once when the state or the flap counter has changed.

    Both have ``gaps``: what the newest ``read`` could not find, but for rates of a first sample, ``replaced``: whether
    another port of the same name has taken its place, ``vanished``: what is left to say when it is not there any more,
    and ``close``.
    """

    _counters: Counters

    def __init__(self, facts: NetFacts | PortFacts, subject: str, slot: tuple[str | None, int], turn: int) -> None:
        self.is_virtual_function = facts.is_virtual_function
        self.subject = subject
        self.slot = slot
        self.gone = False
        self.meter = ByteMeter()
        self._pace = Pace(SELDOM_S * (1 - turn % _TURNS / _TURNS), SELDOM_S)
        self._flaps, self._received, self._sent = "", "", ""
        self._refused: str | None = None  # why the port is not asked any more
        self._state: str | None = None
        self._physical_state: str | None = None
        self._rate_bits_per_s: float | None = None

    def read(self, now: float) -> LinkSample:
        """Never raises."""
        before = self._state, self._counters.values.get(self._flaps)
        self._read_state()
        self.gone = before[0] is not None and self._state is None and self._refused is None
        self._counters.read()
        if self._pace.is_due(now) or before != (self._state, self._counters.values.get(self._flaps)):
            self._pace.done(now)
            self._read_seldom()
        values, sample = self._counters.values, self._base()
        sample.state, sample.physical_state = self._state, self._physical_state
        sample.rate_bits_per_s = self._rate_bits_per_s
        rates = self.meter.rates(now, values.get(self._received), values.get(self._sent))
        sample.rx_bytes_per_s, sample.tx_bytes_per_s = rates
        sample.counters = dict(values)
        self._complete(sample)
        return sample

    def _base(self) -> LinkSample:
        """What does not change."""
        raise NotImplementedError

    def _read_state(self) -> None:
        raise NotImplementedError

    def _read_seldom(self) -> None:
        raise NotImplementedError

    def _complete(self, sample: LinkSample) -> None:
        raise NotImplementedError

    @property
    def counters_read_at(self) -> float | None:
        """When the slowest of its counters were read."""
        return self._pace.done_at

    def gap(self, *fields: str, why: str, kind: GapKind = "unknown") -> Gap:
        return Gap.about("links", *fields, item=self.subject, why=why, kind=kind)
