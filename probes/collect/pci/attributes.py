"""What the text in the small files of a PCI device in /sys means."""

from __future__ import annotations

from mltop.probes.plausible import PCI

_LONGEST_TEXT = 256


def number(data: bytes | None, base: int = 10) -> int | None:
    """A small number without a sign, decimal or (base 16) as in "0x10de"; None for anything else."""
    try:
        value = int((data or b"").strip()[:20] or b"-", base)
    except ValueError:
        return None
    return value if 0 <= value < 1 << 64 else None


def text(data: bytes | None) -> str | None:
    """A short printable text, None for anything else."""
    found = (data or b"").decode("ascii", "replace").strip()
    good = found and len(found) <= _LONGEST_TEXT and found.isprintable() and "\ufffd" not in found
    return found if good else None


def speed_gt_per_s(data: bytes | None) -> float | None:
    """ "32.0 GT/s PCIe" → 32.0; None for "Unknown"."""
    number_text, unit, _ = (text(data) or "").partition(" GT/s")
    try:
        value = float(number_text) if unit else 0.0
    except ValueError:
        return None
    return value if PCI["link_speed_gt_per_s"].holds(value) else None


def width(data: bytes | None) -> int | None:
    """Lanes. None for what is no width: 0 (no link), 63 (all ones, no answer), 255 (the kernel does not know)."""
    lanes = number(data)
    return lanes if PCI["link_width"].holds(lanes) else None


def error_total(data: bytes | None) -> int | None:
    """The last line of aer_dev_*: "TOTAL_ERR_COR 12" → 12. Source: sysfs-bus-pci-devices-aer_stats."""
    for line in reversed((data or b"").splitlines()):
        words = line.split()
        if len(words) == 2 and words[0].startswith(b"TOTAL_ERR_"):
            return number(words[1])
    return None
