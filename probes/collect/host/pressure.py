"""How long tasks wait for processors, memory and disks. Source: /proc/pressure (PSI, Documentation/accounting/psi)."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from mltop.probes.collect.host.files import MALFORMED, KeptFile, finite
from mltop.probes.collect.host.part import Reading, unreadable, unsupported
from mltop.probes.model import Gap, Pressure, RankSample

_WHAT = "host.pressure"
# "full" of cpu says nothing for a whole machine (psi.rst).
_WANTED = {"cpu": ("some",), "memory": ("some", "full"), "io": ("some", "full")}


class PressureStall:
    """``pressure``. A kernel without PSI, or one that was started without psi=1, has none."""

    def __init__(self, root: str) -> None:
        self._files = {name: KeptFile(root, f"/proc/pressure/{name}") for name in _WANTED}

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        pressure, gaps = Pressure(), []
        for name, file in self._files.items():
            try:
                data = file.read()
                for kind in _WANTED[name]:
                    setattr(pressure, f"{name}_{kind}", last_ten_seconds(data, kind))
            except FileNotFoundError:
                return _switched_off()
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENOTSUP):
                    return _switched_off()
                gaps.append(unreadable(f"{_WHAT}.{name}", error))
            except MALFORMED:
                gaps.append(Gap(f"{_WHAT}.{name}", f"{file.path} is not as expected"))
        if len(gaps) > 1:
            gaps = [Gap(_WHAT, gaps[0].why)]
        return Reading({"pressure": pressure}, gaps)


def last_ten_seconds(data: bytes, kind: str) -> float:
    """The share behind "some avg10=" or "full avg10=". Raises one of MALFORMED."""
    label = f"{kind} avg10=".encode()
    at = data.index(label) + len(label)
    return min(1.0, max(0.0, finite(data[at : data.index(b" ", at)]) / 100))


def _switched_off() -> Reading:
    why = "this kernel keeps no pressure information (CONFIG_PSI; on some distributions only with psi=1)"
    return Reading(gaps=[unsupported(_WHAT, why)])
