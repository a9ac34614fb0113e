"""What all ports have in common: the files of their counters, rates of bytes, and how often what is read."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial

from mltop.probes.collect.links.discovery import NetFacts, PortFacts
from mltop.probes.collect.sysfile import LINE_BYTES, REFUSED, KeptFile, OpenFiles, names_in, number
from mltop.probes.model import Gap, LinkSample
from mltop.probes.model.plausible import LINKS
from mltop.probes.model.vocabulary import GapKind

SELDOM_S = 5.0
LISTED_S = 10.0
SHORTEST_S = 0.05
FIRST = "first sample: rates need two"
_TURNS = 5
_EARLY_S = 0.5  # looks come once a second, some a little early
_MOST_BYTES_PER_S = LINKS["rx_bytes_per_s"].high
_LARGEST_COUNT = int(LINKS["counters.*"].high)
_SETTINGS = frozenset({"lifespan"})  # how long hw_counters are cached


class Tier:
    """Something that is due every so often, and at first. ``turn``: a number of its own for each of several such: they
    are all done at first, the second time comes early, and from then on they take turns. ``read_at``: when last.
    """

    def __init__(self, every_s: float = SELDOM_S, turn: int = 0) -> None:
        self.read_at: float | None = None
        self._every_s = every_s
        self._early_s = every_s * (turn % _TURNS) / _TURNS
        self._done_at: float | None = None  # less by how much early the next time is

    def due(self, now: float) -> bool:
        """Also when the clock went back."""
        return self._done_at is None or not 0 <= now - self._done_at < self._every_s - _EARLY_S

    def done(self, now: float) -> None:
        self.read_at, self._done_at = now, now - self._early_s
        self._early_s = 0.0

    def hurry(self) -> None:
        """Make it due at the next look."""
        self._done_at = None


class ByteMeter:
    """Bytes per second from two looks at a port's byte counters. ``unit_bytes``: what one count stands for.

    ``is_first``: rates need another look. ``gap``: why the newest rates are None otherwise, but for counters that
    cannot be read, which their own gaps tell.
    """

    def __init__(self, unit_bytes: int = 1) -> None:
        self.is_first = True
        self._gap: partial[Gap] | None = None
        self._unit_bytes = unit_bytes
        self._last: tuple[float, int, int] | None = None

    def rates(self, now: float, received: int | None, sent: int | None) -> tuple[float | None, float | None]:
        """Since the look before. A counter that went back gives no rate: it was reset, it cannot wrap (64 bits)."""
        self.is_first, self._gap = False, None
        if received is None or sent is None:
            self._last = None
            return None, None
        last, self._last = self._last, (now, received, sent)
        if last is None or now - last[0] < SHORTEST_S:
            self.is_first = True
            return None, None
        if received < last[1] or sent < last[2]:
            self._gap = partial(Gap.about, why="the byte counters started anew", kind="starting")
            return None, None
        scale = self._unit_bytes / (now - last[0])
        rates = (received - last[1]) * scale, (sent - last[2]) * scale
        if max(rates) > _MOST_BYTES_PER_S:
            why = f"the byte counters went on by {max(rates):.2g} bytes/s: no port does"
            self._gap = partial(Gap.about, why=why, code="implausible")
            return None, None
        return rates

    def gaps(self, port: str) -> list[Gap]:
        """Of the newest rates, but for a first sample's and where the counters' own gaps say it."""
        return [] if self._gap is None else [self._gap("links", "rates", item=port)]


class Refused(Exception):
    """The port's firmware refuses: ``str()`` says which file, what and when."""

    def __init__(self, file: str, error: OSError) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
        super().__init__(f"{file}: {error.strerror} at {at}; not read again (each try may fill the kernel log)")


class CounterFiles:
    """``paths``: by what a counter is called, its file. ``unreadable``: by counter, why it has no value now.

    ``stops``: whether EIO, EINVAL and their like raise ``Refused``, as they must on RDMA ports.
    """

    def __init__(self, paths: dict[str, str], open_files: OpenFiles, stops: bool) -> None:
        self._files = {name: KeptFile(path, open_files, LINE_BYTES) for name, path in paths.items()}
        self._stops = stops
        self.values: dict[str, int] = {}
        self.unreadable: dict[str, str] = {}

    def read(self) -> None:
        """All of them. Raises Refused."""
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
        self._tier = Tier(turn=turn)

    @property
    def counters_read_at(self) -> float | None:
        """When the slowest of its counters were read."""
        return self._tier.read_at

    @abstractmethod
    def replaced(self) -> bool:
        """Whether another port of the same name has taken its place."""

    @abstractmethod
    def read(self, now: float) -> LinkSample:
        """Never raises; ``now`` is monotonic, s."""

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
