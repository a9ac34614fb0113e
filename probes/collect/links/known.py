"""The ports that are there, and those that were: a port that is missing is a finding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from mltop.probes.model import Gap, LinkSample


class _Facts(Protocol):
    @property
    def is_virtual_function(self) -> bool: ...


class Port(Protocol):
    """What RdmaPort and NetDevice have in common."""

    @property
    def facts(self) -> _Facts: ...
    @property
    def place(self) -> tuple[str | None, int]: ...
    @property
    def gone(self) -> bool: ...
    @property
    def rates_why(self) -> str: ...
    @property
    def counters_read_at(self) -> float | None: ...
    def replaced(self) -> bool: ...
    def read(self, now: float) -> LinkSample: ...
    def vanished(self) -> LinkSample: ...
    def gaps(self) -> list[Gap]: ...
    def close(self) -> None: ...


_Key = TypeVar("_Key", bound=Hashable)
_Port = TypeVar("_Port", bound=Port)


class Known(Generic[_Key, _Port]):
    """``present`` and ``lost`` ports by key; a port is in one of them."""

    def __init__(self) -> None:
        self.present: dict[_Key, _Port] = {}
        self.lost: dict[_Key, _Port] = {}

    def update(self, found: Sequence[_Key], make: Callable[[_Key], _Port]) -> None:
        """``found``: all that are there now, in the order to show. ``make`` builds the reader of a new one."""
        for key, port in list(self.present.items()):
            if key not in found:
                self.lost[key] = port
            elif not port.replaced():
                continue
            port.close()
            del self.present[key]
        self.present = {key: self.present.get(key) or make(key) for key in found}
        self._forget_lost(found)

    def _forget_lost(self, found: Sequence[_Key]) -> None:
        """Those that are back, that have another name now, and virtual functions: these come and go."""
        places = {port.place for port in self.present.values() if port.place[0]}
        for key, port in list(self.lost.items()):
            if key in found or port.place in places or port.facts.is_virtual_function:
                del self.lost[key]

    def close(self) -> None:
        for port in self.present.values():
            port.close()
