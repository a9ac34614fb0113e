"""What there is to read of a network interface, whether it is a port of its own or belongs to an RDMA port."""

from __future__ import annotations

import os

from mltop.probes.collect.links.words import word
from mltop.probes.collect.small_files import read_small

CARRIER = ("carrier_down_count", "carrier_up_count", "carrier_changes")
BYTES = ("statistics/rx_bytes", "statistics/tx_bytes")
ERRORS = ("statistics/rx_errors", "statistics/tx_errors", "statistics/rx_dropped", "statistics/tx_dropped")
# Each of the statistics makes the driver add up all its queues: those that tell of faults, no more.
DETAILS = (
    "statistics/rx_packets",
    "statistics/tx_packets",
    "statistics/rx_crc_errors",
    "statistics/rx_frame_errors",
    "statistics/rx_length_errors",
    "statistics/rx_missed_errors",
    "statistics/rx_fifo_errors",
    "statistics/rx_over_errors",
    "statistics/tx_fifo_errors",
    "statistics/tx_carrier_errors",
    "statistics/tx_aborted_errors",
    "statistics/collisions",
)


def counter_paths(folder: str, names: tuple[str, ...], prefix: str = "") -> dict[str, str]:
    """Path by counter. A kernel or driver without one of them has no such counter: nothing is missed."""
    paths = {prefix + os.path.basename(name): f"{folder}/{name}" for name in names}
    return {name: path for name, path in paths.items() if os.path.exists(path)}


def bond_ports(folder: str, prefix: str = "") -> dict[str, int]:
    """How many ports a bond has and how many of them are up."""
    names = (read_small(f"{folder}/bonding/slaves") or b"").decode("ascii", "replace").split()
    up = sum(word(read_small(f"{os.path.dirname(folder)}/{name}/operstate")) == "up" for name in names)
    return {f"{prefix}bond_ports": len(names), f"{prefix}bond_ports_up": up}
