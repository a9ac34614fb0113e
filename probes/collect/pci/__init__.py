"""GPUs, NICs, NVSwitches and NVMe disks as the PCI bus of this machine shows them.

``source`` finds them and is what the agent calls, ``device`` reads one, ``acs`` walks the bridges above them.
"""

from mltop.probes.collect.pci.source import PciSource

__all__ = ["PciSource"]
