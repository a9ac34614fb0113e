"""How often what is read.

Bytes per second from two looks at a port's byte counters.

Some counter files of one port, and the values they last had.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from mltop.probes.collect.sysfile import READ_BYTES, REFUSED, Attribute, OpenFiles, counter
from mltop.probes.model import Gap, GapCode
from mltop.probes.model.plausible import LINKS

SELDOM_S = 5.0
LISTED_S = 10.0
_TURNS = 5
_EARLY_S = 0.5  # looks come once a second, some a little early


class Tier:
    """Something that is due every so often, and at first. ``turn``: a number of its own for each of several such: they
    are all done at first, the second time comes early, and from then on they take turns.
    """

    def __init__(self, every_s: float = SELDOM_S, turn: int = 0) -> None:
        self._every_s = every_s
        self._early_s = every_s * (turn % _TURNS) / _TURNS
        self._done_at: float | None = None  # less by how much early the next time is
        self._read_at: float | None = None

    def due(self, now: float) -> bool:
        """Also when the clock went back."""
        return self._done_at is None or not 0 <= now - self._done_at < self._every_s - _EARLY_S

    def done(self, now: float) -> None:
        self._read_at, self._done_at = now, now - self._early_s
        self._early_s = 0.0

    @property
    def read_at(self) -> float | None:
        """When it was done last."""
        return self._read_at

    def hurry(self) -> None:
        """Make it due at the next look."""
        self._done_at = None


SHORTEST_S = 0.05

FIRST = "first sample: rates need two"
STARTED_ANEW = "the byte counters started anew"
_MOST_BYTES_PER_S = LINKS["rx_bytes_per_s"].high


@dataclass
class ByteMeter:
    """``unit_bytes``: what one count stands for. ``why``: why the newest rates are None, "" when they are not.

    ``code``: Gap.code of rates that cannot be.
    """

    unit_bytes: int = 1
    why: str = FIRST
    code: GapCode = ""
    _last: tuple[float, int, int] | None = None

    def rates(self, now: float, received: int | None, sent: int | None) -> tuple[float | None, float | None]:
        """Since the look before. A counter that went back gives no rate: it was reset, it cannot wrap (64 bits)."""
        self.code = ""
        if received is None or sent is None:
            self._last, self.why = None, "the byte counters cannot be read"
            return None, None
        last, self._last = self._last, (now, received, sent)
        if last is None or now - last[0] < SHORTEST_S:
            self.why = FIRST
            return None, None
        if received < last[1] or sent < last[2]:
            self.why = STARTED_ANEW
            return None, None
        scale = self.unit_bytes / (now - last[0])
        rates = (received - last[1]) * scale, (sent - last[2]) * scale
        if max(rates) > _MOST_BYTES_PER_S:
            self.why, self.code = f"the byte counters went on by {max(rates):.2g} bytes/s: no port does", "implausible"
            return None, None
        self.why = ""
        return rates

    def gaps(self, name: str) -> list[Gap]:
        """Of the newest rates, but for a first sample's and where the counters' own gaps say it."""
        if self.why == STARTED_ANEW:
            return [Gap(f"{name}.rates", self.why, kind="starting")]
        return [Gap(f"{name}.rates", self.why, code=self.code)] if self.code else []


_LARGEST_COUNT = int(LINKS["counters.*"].high)
_SETTINGS = frozenset({"lifespan"})  # how long hw_counters are cached


class Refused(Exception):
    """The port's firmware refuses: ``str()`` says which file, what and when."""

    def __init__(self, file: str, error: OSError) -> None:
        at = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
        super().__init__(f"{file}: {error.strerror} at {at}; not read again (each try may fill the kernel log)")


class CounterFiles:
    """``names``: by what a counter is called, its file. ``unreadable``: by counter, why it has no value now.

    ``stops``: whether EIO, EINVAL and their like raise ``Refused``, as they must on RDMA ports.
    """

    def __init__(self, names: dict[str, str], files: OpenFiles, stops: bool) -> None:
        self._attributes = {name: files.attribute(path) for name, path in names.items()}
        self._stops = stops
        self.values: dict[str, int] = {}
        self.unreadable: dict[str, str] = {}

    def read(self) -> None:
        """All of them. Raises Refused."""
        values: dict[str, int] = {}
        self.unreadable = {}
        pread = os.pread
        for name, attribute in self._attributes.items():
            try:
                value = int(pread(attribute.descriptor, READ_BYTES, 0))
            except (OSError, ValueError):  # also of a file that is not open
                value = -1
            if not 0 <= value <= _LARGEST_COUNT:
                careful = self._carefully(name, attribute)
                if careful is None:
                    continue
                value = careful
            values[name] = value
        self.values = values

    def _carefully(self, name: str, attribute: Attribute) -> int | None:
        try:
            data = attribute.read()
        except OSError as error:
            if self._stops and error.errno in REFUSED:
                raise Refused(name, error) from error
            self.unreadable[name] = error.strerror or type(error).__name__
            return None
        value = counter(data)
        if value is None:
            self.unreadable[name] = f"reads {data[:20]!r}"
        elif value > _LARGEST_COUNT:
            self.unreadable[name] = f"reads {value}: all bits are set, as of a device that does not answer"
            return None
        return value

    def forget(self) -> None:
        self.values, self.unreadable = {}, {}

    def close(self) -> None:
        for attribute in self._attributes.values():
            attribute.close()


def counter_files(folders: Iterable[str]) -> dict[str, str]:
    """Name → path of the counters in some folders; of equal names the first folder's."""
    found: dict[str, str] = {}
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if name not in _SETTINGS:
                found.setdefault(name, f"{folder}/{name}")
    return found
