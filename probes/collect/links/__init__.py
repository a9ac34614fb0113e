"""Network ports of this machine, read from /sys: InfiniBand, RoCE, EFA and Ethernet.

``discovery`` finds them, says which interface belongs to which RDMA port and what the text in their files means,
``counters`` has what all ports share, ``ports`` read one, ``source`` ties these together.
"""

from mltop.probes.collect.links.source import LinkSource

__all__ = ["LinkSource"]
