"""Links of GPUs: what the wire carries and what copies should get, by link and model, in bytes/s of one direction."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.judge.probes.hardware.peaks import GB_PER_S, Expected, peak_of

AZ = "Azure health checks"


@dataclass(frozen=True)
class PcieGeneration:
    """Rates of 16 lanes. ``measured``: lowest and highest of good machines; ``floor``: what a field check accepts."""

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


@dataclass(frozen=True)
class PeerLink:
    """``links`` x ``each`` between a GPU and all others (NVSwitch; xGMI: one link to each of them).

    ``measured``: lowest and highest copy between two GPUs; ``floor``: least that a field check accepts.
    """

    name: str
    models: tuple[str, ...]
    links: int
    each: float
    measured: tuple[float, float] | None
    floor: float | None
    source: str

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
    PeerLink("xGMI", _MI, 7, 64 * GB_PER_S, None, None, "AMD; two GPUs share one link: busbw 47.7 of them"),
    PeerLink("xGMI", ("MI355X",), 7, 76.5 * GB_PER_S, None, None, "AMD"),
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


def pcie_copy(gen: int, width: int) -> Expected | None:
    """A copy through pinned memory: the lowest that was measured on good machines, None where nothing was.

    Links with other than 16 lanes are calculated: uncertain.
    """
    generation = PCIE.get(gen)
    if generation is None or generation.measured is None or width <= 0:
        return None
    name = f"measured on PCIe gen {gen} x16"
    if width == 16:
        return Expected(generation.measured[0], name)
    return Expected(generation.measured[0] * width / 16, f"{name}, for {width} lanes", certain=False)


def host_copy(
    model: str, pci_device: str = "", way: str = "to_device", gen: int | None = None, width: int | None = None
) -> Expected | None:
    """Between host memory and a GPU, ``way``: to_device | to_host; ``gen``, ``width``: of its PCIe link under load."""
    peak = peak_of(model, pci_device)
    if peak is not None and peak.host_link != "pcie":
        link = next((each for each in HOST if peak.name in each.models), None)
        if link is None:
            return None
        return Expected(link.to_device if way == "to_device" else link.to_host, link.source, peak.certain)
    return pcie_copy(gen, width) if gen is not None and width is not None else None


def peer_copy(model: str, pci_device: str = "") -> Expected | None:
    """Between two GPUs of a board with NVSwitches: the lowest that was measured on good machines."""
    peak = peak_of(model, pci_device)
    link = next((each for each in PEERS if peak is not None and peak.name in each.models), None)
    if peak is None or link is None or link.measured is None:
        return None
    return Expected(link.measured[0], f"{link.name}, published runs", peak.certain)


def uses_pcie(model: str, pci_device: str = "") -> bool:
    """False where host memory is reached over another link: the state of the PCIe link then explains nothing."""
    peak = peak_of(model, pci_device)
    return peak is None or peak.host_link == "pcie"
