"""The network interface that belongs to an RDMA port: what only it knows becomes part of the port's sample.

Of IP over InfiniBand that is the carrier, which still counts when ``link_downed`` stands at its maximum.
"""

from __future__ import annotations

import os

from mltop.probes.collect.links.counters import CounterFiles
from mltop.probes.collect.links.discovery import NetFacts
from mltop.probes.collect.links.files import OpenFiles, counter
from mltop.probes.collect.links.interface import BYTES, CARRIER, DETAILS, ERRORS, bond_ports, counter_paths
from mltop.probes.model import Gap, LinkSample

PREFIX = "netdev_"


class MergedInterface:
    """Keep one object while the interface belongs to the port. ``gone``: it used to answer and does not."""

    def __init__(self, facts: NetFacts, files: OpenFiles, is_infiniband: bool) -> None:
        self.facts = facts
        self.gone = False
        names = CARRIER + ERRORS if is_infiniband else CARRIER + BYTES + ERRORS + DETAILS
        self._mtu_file = files.attribute(f"{facts.folder}/mtu")
        self._mtu: int | None = None
        self._counters = CounterFiles(counter_paths(facts.folder, names, PREFIX), files, stops=False)
        self._is_bond = os.path.isdir(f"{facts.folder}/bonding")
        self._bond: dict[str, int] = {}

    def read(self) -> None:
        """Never raises."""
        before = self._mtu
        try:
            self._mtu = counter(self._mtu_file.read())
        except OSError:
            self._mtu = None
        self.gone = before is not None and self._mtu is None
        self._counters.read()
        if self._is_bond:
            self._bond = bond_ports(self.facts.folder, PREFIX)

    def merge_into(self, sample: LinkSample) -> None:
        sample.mtu = self._mtu
        sample.counters.update(self._counters.values)
        sample.counters.update(self._bond)

    def gaps(self, name: str) -> list[Gap]:
        """What the newest ``read`` could not tell; ``name``: of the port, "links.mlx5_0"."""
        found = [Gap(f"{name}.mtu", f"cannot be read of {self.facts.name}")] if self._mtu is None else []
        return found + [Gap(f"{name}.{one}", why) for one, why in self._counters.unreadable.items()]

    def replaced(self) -> bool:
        """Whether another interface of the same name has taken its place."""
        return self._mtu_file.replaced()

    def close(self) -> None:
        self._mtu_file.close()
        self._counters.close()
