"""GPUs, NICs, NVSwitches and NVMe disks as the PCI bus of this machine shows them.

``listing`` finds them, ``device`` reads one, ``acs`` walks the bridges above them, ``topology`` compares bus ids as
different programs write them, ``source`` ties these together.
"""

from mltop.probes.collect.bus_id import same_bus, sysfs_bus_id
from mltop.probes.collect.pci.source import PciSource

__all__ = ["PciSource", "same_bus", "sysfs_bus_id"]
