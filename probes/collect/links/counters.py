"""Some counter files of one port, and the values they last had."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from mltop.probes.collect.links.files import READ_BYTES, REFUSED, Attribute, OpenFiles, counter
from mltop.probes.plausible import LINKS

_MOST = int(LINKS["counters.*"].high)
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
            if not 0 <= value <= _MOST:
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
        elif value > _MOST:
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
