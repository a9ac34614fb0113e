"""Links of GPUs: what the wire carries and what copies get of it, bytes/s in one direction."""

from __future__ import annotations

from dataclasses import dataclass

GB_PER_S = 1e9
AZ = "Azure health checks"


@dataclass(frozen=True)
class PcieGeneration:
    """Of 16 lanes. ``measured``: lowest and highest of good machines; ``floor``: least that a field check accepts."""

    wire: float
    measured: tuple[float, float] | None
    floor: float | None
    source: str


# Measured: published runs with pinned memory; the wire: the specification's, less what encoding and headers take.
PCIE = {
    3: PcieGeneration(15.8 * GB_PER_S, None, 9 * GB_PER_S, f"floor: {AZ} (V100, 9 to 10)"),
    4: PcieGeneration(31 * GB_PER_S, (26 * GB_PER_S, 26 * GB_PER_S), 21 * GB_PER_S, f"published runs; floor: {AZ}"),
    5: PcieGeneration(63 * GB_PER_S, (51 * GB_PER_S, 55 * GB_PER_S), 48 * GB_PER_S, f"published runs; floor: {AZ}"),
    6: PcieGeneration(121 * GB_PER_S, None, None, "the path to host memory of today's machines is still Gen5"),
}
# GT/s of a lane and what its encoding leaves (PCI Express base specification): generations that the table above
# has no copies of.
OLDER_WIRE = {1: 4.0 * GB_PER_S, 2: 8.0 * GB_PER_S}


@dataclass(frozen=True)
class PeerLink:
    """``links`` x ``each`` between a GPU and all others (NVSwitch) or, ``mesh``, one link to each of them.

    ``measured``: lowest and highest copy between two GPUs; ``floor``: least that a field check accepts.
    """

    name: str
    models: tuple[str, ...]
    links: int
    each: float
    measured: tuple[float, float] | None
    floor: float | None
    source: str
    mesh: bool = False

    @property
    def total(self) -> float:
        return self.links * self.each


_A100 = ("A100 SXM 40GB", "A100 SXM 80GB")
_H100 = ("H100 SXM", "H200 SXM")
_MI = ("MI300X", "MI325X")
PEERS = (
    PeerLink("NVLink 2", ("V100 SXM2",), 6, 25 * GB_PER_S, None, None, "NVIDIA"),
    PeerLink(
        "NVLink 3", _A100, 12, 25 * GB_PER_S, (272 * GB_PER_S, 276 * GB_PER_S), 235 * GB_PER_S,
        f"published runs (91 % of the wire); floor: {AZ} (80 GB: 238)",
    ),
    PeerLink(
        "NVLink 4", _H100, 18, 25 * GB_PER_S, (363 * GB_PER_S, 394 * GB_PER_S), 335 * GB_PER_S,
        f"published runs (83 % of the wire); floor: {AZ}",
    ),
    PeerLink(
        "NVLink 5", ("B200", "B300", "GB200", "GB300"), 18, 50 * GB_PER_S, (744 * GB_PER_S, 750 * GB_PER_S), None,
        "published runs (83 % of the wire)",
    ),
    PeerLink("xGMI", _MI, 7, 64 * GB_PER_S, None, None, "AMD; two GPUs share one link: busbw 47.7 of them", True),
    PeerLink("xGMI", ("MI355X",), 7, 76.5 * GB_PER_S, None, None, "AMD", True),
)  # fmt: skip


@dataclass(frozen=True)
class HostLink:
    """GPUs beside their CPU, which PCIe does not connect."""

    name: str
    models: tuple[str, ...]
    wire: float
    to_device: float
    to_host: float
    source: str


HOST = (
    HostLink(
        "NVLink-C2C", ("GB300",), 450 * GB_PER_S, 359 * GB_PER_S, 377 * GB_PER_S, "measured on a GB300 (Verda, 2026)"
    ),
)

# name, wire, measured lowest and highest; for reading only.
NETWORKS = (
    ("100GbE, TCP", 12.5, "~10"),
    ("200G NIC", 25.0, "24"),
    ("400G NIC", 50.0, "48"),
    ("800G NIC (B300)", 100.0, "?"),
)
