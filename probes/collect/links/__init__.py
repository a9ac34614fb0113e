"""Network ports of this machine, read from /sys: InfiniBand, RoCE, EFA and Ethernet.

``discovery`` finds them and says which interface belongs to which RDMA port, ``parsing`` gives their text a meaning,
``counters`` has what all ports share, ``ports`` read one, ``source`` ties these together.
"""

from mltop.probes.collect.links.source import LinkSource

__all__ = ["LinkSource"]
