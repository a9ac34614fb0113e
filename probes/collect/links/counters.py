"""What all ports have in common: the files of their counters, rates of bytes, and what is read seldom."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
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


class Refused(Exception):
    """The port's firmware refuses: ``str()`` says which file, what and when."""

    def __init__(self, file: str, error: OSError) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
        super().__init__(f"{file}: {error.strerror} at {at}; not read again (each try may fill the kernel log)")


class CounterFiles:
    """Files of counters. ``paths``: by counter, its file. ``unreadable``: by counter, why it has no value now.

    ``stops``: whether EIO, EINVAL and their like raise ``Refused``, as they must on RDMA ports.
    """

    def __init__(self, paths: dict[str, str], open_files: OpenFiles, stops: bool) -> None:
        self._files = {name: KeptFile(path, open_files, LINE_BYTES) for name, path in paths.items()}
        self._stops = stops
        self.values: dict[str, int] = {}
        self.unreadable: dict[str, str] = {}

    def read(self) -> None:
        """Reads all of them. Raises Refused."""
        values: dict[str, int] = {}
        self.unreadable = {}
        pread = os.pread
        for name, file in self._files.items():
            try:
                value = int(pread(file.descriptor, LINE_BYTES, 0))
            except (OSError, ValueError):  # also of a file that is not open
                value = -1
            if not 0 <= value <= _LARGEST_COUNT:
                careful = self._carefully(name, file)
                if careful is None:
                    continue
                value = careful
            values[name] = value
        self.values = values

    def _carefully(self, name: str, file: KeptFile) -> int | None:
        try:
            content = file.read()
        except OSError as error:
            if self._stops and error.errno in REFUSED:
                raise Refused(name, error) from error
            self.unreadable[name] = error.strerror or type(error).__name__
            return None
        value = number(content)
        if value is None:
            self.unreadable[name] = f"reads {content[:20]!r}"
        elif value > _LARGEST_COUNT:
            self.unreadable[name] = f"reads {value}: all bits are set, as of a device that does not answer"
            return None
        return value

    def forget(self) -> None:
        self.values, self.unreadable = {}, {}

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class Counters:
    """Those named ``often`` are read at each look, others seldom. ``refused``: why they are not read any more."""

    def __init__(self, paths: dict[str, str], often: Collection[str], open_files: OpenFiles, stops: bool) -> None:
        """``paths``, ``stops``: as in CounterFiles."""
        self.refused: str | None = None
        seldom = dict(paths)
        self._often = CounterFiles({name: seldom.pop(name) for name in often if name in seldom}, open_files, stops)
        self._seldom = CounterFiles(seldom, open_files, stops)

    def newest(self, name: str) -> int | None:
        """The value of one that is read often."""
        return self._often.values.get(name)

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

    def close(self) -> None:
        self._often.close()
        self._seldom.close()

    def _read(self, files: CounterFiles) -> None:
        if self.refused is not None:
            return
        try:
            files.read()
        except Refused as refused:
            self.refused = str(refused)
            # A value that is not read again would pass for one that does not grow.
            self._often.forget()
            self._seldom.forget()
            self.close()


def counter_files(folders: Iterable[str]) -> dict[str, str]:
    """Name → path of the counters in some folders; of equal names the first folder's."""
    paths: dict[str, str] = {}
    for folder in folders:
        for name in sorted(names_in(folder)):
            if name not in _SETTINGS:
                paths.setdefault(name, f"{folder}/{name}")
    return paths


class Port(ABC):
    """A port of an RDMA device, or a network interface. ``subject``: its name in gaps; ``turn``: its place in order.

    ``slot`` stays when it is renamed: its PCI function and its number there. ``gone``: it used to answer and does not.
    """

    def __init__(self, facts: NetFacts | PortFacts, subject: str, slot: tuple[str | None, int], turn: int) -> None:
        self.is_virtual_function = facts.is_virtual_function
        self.subject = subject
        self.slot = slot
        self.gone = False
        self.meter = ByteMeter()
        self._pace = Pace(SELDOM_S * (1 - turn % _TURNS / _TURNS), SELDOM_S)

    @property
    def counters_read_at(self) -> float | None:
        """When the slowest of its counters were read."""
        return self._pace.done_at

    @abstractmethod
    def replaced(self) -> bool:
        """Whether another port of the same name has taken its place."""

    @abstractmethod
    def read(self, now: float) -> LinkSample:
        """Reads the port. Never raises; ``now`` is monotonic, s."""

    @abstractmethod
    def vanished(self) -> LinkSample:
        """What is left to say when it is not there any more."""

    @abstractmethod
    def gaps(self) -> list[Gap]:
        """What the newest ``read`` could not tell, but for rates of a first sample."""

    @abstractmethod
    def close(self) -> None:
        """Close all files that are kept open."""

    def gap(self, *fields: str, why: str, kind: GapKind = "unknown") -> Gap:
        return Gap.about("links", *fields, item=self.subject, why=why, kind=kind)
