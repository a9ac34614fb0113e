"""Which of a server's hundreds of PCI functions matter here."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mltop.probes.collect.pci.attributes import number
from mltop.probes.collect.small_files import read_small

NVIDIA = 0x10DE
# Class codes (PCI Code and ID Assignment Specification): base class and subclass.
_DISPLAY = (0x0300, 0x0302)  # VGA and 3D controllers
_NETWORK = 0x02  # Ethernet 0x0200, InfiniBand 0x0207, …
_NVME = 0x0108
_NVSWITCH = 0x0680


def kind_of(vendor_id: int | None, pci_class: int | None) -> str | None:
    """gpu | nic | nvswitch | nvme, None for all others. ``pci_class``: three bytes, as in the file ``class``."""
    if pci_class is None:
        return None
    subclass = pci_class >> 8
    if subclass >> 8 == _NETWORK:
        return "nic"
    if subclass == _NVME:
        return "nvme"
    if vendor_id != NVIDIA:
        return None
    return "gpu" if subclass in _DISPLAY else "nvswitch" if subclass == _NVSWITCH else None


class Listing:
    """``folder``: /sys/bus/pci/devices. Remembers what the others are: a look costs one listing of the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._kinds: dict[str, str | None] = {}

    def kinds(self) -> dict[str, str]:
        """Kind by bus id of all that matter, sorted. Raises OSError."""
        names = os.listdir(self._folder)
        self._kinds = {name: self._kinds[name] if name in self._kinds else self._kind(name) for name in names}
        return dict(sorted(self._of_interest()))

    def _of_interest(self) -> Iterator[tuple[str, str]]:
        for name, kind in self._kinds.items():
            if kind is not None:
                yield name, kind

    def _kind(self, name: str) -> str | None:
        path = f"{self._folder}/{name}"
        kind = kind_of(number(read_small(f"{path}/vendor"), 16), number(read_small(f"{path}/class"), 16))
        # A NIC's virtual functions share its link.
        return None if os.path.lexists(f"{path}/physfn") else kind
