"""The machine: processors, memory, pressure, cgroups, filesystems, services and settings that slow training down.

``source`` says which part is read how often; every part fails on its own.
"""

from mltop.probes.collect.host.source import HostSource

__all__ = ["HostSource"]
