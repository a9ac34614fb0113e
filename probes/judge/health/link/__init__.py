"""Rules about what connects: PCIe, NVLink and its fabric, InfiniBand, Ethernet."""
