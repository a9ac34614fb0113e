"""Network ports of this machine, read from /sys: InfiniBand, RoCE, EFA and Ethernet.

``discovery`` finds them and says which interface belongs to which RDMA port, ``files`` keeps their files open,
``words`` gives their text a meaning, ``rdma`` and ``netdev`` read one port, ``source`` ties these together.
"""

from mltop.probes.collect.links.source import LinkSource

__all__ = ["LinkSource"]
