"""What copies to host memory and between GPUs should give, by link and model. Bytes/s in one direction."""

from __future__ import annotations

from mltop.probes.judge.active.expected import Expected
from mltop.probes.judge.active.links_table import HOST, OLDER_WIRE, PCIE, PEERS
from mltop.probes.judge.active.peaks import peak_of


def pcie_wire(gen: int, width: int) -> float | None:
    """What a PCIe link of so many lanes can carry; None for an unknown generation."""
    known = PCIE.get(gen)
    wire = known.wire if known is not None else OLDER_WIRE.get(gen)
    return wire * width / 16 if wire is not None and width > 0 else None


def pcie_copy(gen: int, width: int) -> Expected | None:
    """A copy through pinned memory: the lowest that was measured on good machines, None where nothing was.

    Links with other than 16 lanes are calculated: uncertain.
    """
    known = PCIE.get(gen)
    if known is None or known.measured is None or width <= 0:
        return None
    name = f"measured on PCIe gen {gen} x16"
    if width == 16:
        return Expected(known.measured[0], name)
    return Expected(known.measured[0] * width / 16, f"{name}, for {width} lanes", certain=False)


def host_copy(
    model: str, pci_device: str = "", way: str = "to_device", gen: int | None = None, width: int | None = None
) -> Expected | None:
    """Between host memory and a GPU, ``way``: to_device | to_host; ``gen``, ``width``: of its PCIe link under load."""
    peak = peak_of(model, pci_device)
    if peak is not None and peak.host_link != "pcie":
        found = next((link for link in HOST if peak.name in link.models), None)
        if found is None:
            return None
        return Expected(found.to_device if way == "to_device" else found.to_host, found.source, peak.certain)
    return pcie_copy(gen, width) if gen is not None and width is not None else None


def peer_copy(model: str, pci_device: str = "") -> Expected | None:
    """Between two GPUs of a board with NVSwitches: the lowest that was measured on good machines."""
    peak = peak_of(model, pci_device)
    found = next((link for link in PEERS if peak is not None and peak.name in link.models), None)
    if peak is None or found is None or found.measured is None:
        return None
    return Expected(found.measured[0], f"{found.name}, published runs", peak.certain)


def uses_pcie(model: str, pci_device: str = "") -> bool:
    """False where host memory is reached over another link: the state of the PCIe link then explains nothing."""
    peak = peak_of(model, pci_device)
    return peak is None or peak.host_link == "pcie"
