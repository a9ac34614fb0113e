"""Links: PCIe, NVLink, the fabric."""

from __future__ import annotations

import re

from mltop.probes.model import NvlinkLink
from tests.hardware.asked import Asked, links, query, sysfs, xml
from tests.hardware.checks import Told
from tests.hardware.rows.row import Row, number


def generation(text: str) -> int:
    """Of PCIe, by the transfer rate in sysfs: "16.0 GT/s PCIe"."""
    return {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}[number(text)]


def lanes(text: str) -> int:
    """ValueError for what the kernel and virtual machines show where they do not know: 0, 63, 255."""
    if text not in ("1", "2", "4", "8", "12", "16", "32"):
        raise ValueError(text)
    return int(text)


PCIE = (
    Row(
        "pcie.gen",
        "nvidia-smi pcie.link.gen.gpucurrent",
        query("pcie.link.gen.gpucurrent", "pcie.link.gen.current", convert=number),
        "moves",
    ),
    Row("pcie.gen", "sysfs current_link_speed", sysfs("current_link_speed", generation), "moves", suffix="sysfs"),
    Row("pcie.gen_max", "nvidia-smi pcie.link.gen.max", query("pcie.link.gen.max", convert=number)),
    Row(
        "pcie.width",
        "nvidia-smi pcie.link.width.current",
        query("pcie.link.width.current", convert=number),
        "moves",
        "lanes",
    ),
    Row("pcie.width", "sysfs current_link_width", sysfs("current_link_width", lanes), "moves", "lanes", suffix="sysfs"),
    Row("pcie.width_max", "nvidia-smi pcie.link.width.max", query("pcie.link.width.max", convert=number), unit="lanes"),
    Row("pcie.replay_count", "nvidia-smi -q replay_counter", xml("pci/replay_counter", convert=number), "moves"),
)


def link_speeds(lines: list[str]) -> list[float]:
    return [float(text.partition(": ")[2].split()[0]) for text in lines if text.endswith("GB/s")]


ERRORS = ("replay", "recovery", "crc")  # up to Hopper


def link_errors(lines: list[str]) -> dict[str, int]:
    """Empty where none of these is told: from Blackwell on links count other things."""
    if not any(re.match(rf"\d+: ({'|'.join(ERRORS)}) ", line, re.IGNORECASE) for line in lines):
        return {}
    found = dict.fromkeys(ERRORS, 0)
    for line in lines:
        told = re.match(r"\d+: (\w+) (?:\w+ )?Errors: (\d+)", line)
        if told and told[1].lower() in found:
            found[told[1].lower()] += int(told[2])
    return found


def told_errors(asked: Asked, index: int) -> Told:
    told = links("errorcounters", link_errors)(asked, index)
    none = "nvidia-smi nvlink --errorcounters tells no replay, recovery and CRC errors of this GPU's links"
    return Told(why=none, unsupported=True) if told.value == {} else told


def counted_errors(all_links: list[NvlinkLink]) -> dict[str, int] | None:
    """None where a link that is up tells none of them."""
    if any(one.active and not one.errors.keys() & set(ERRORS) for one in all_links):
        return None
    return {kind: sum(one.errors.get(kind, 0) for one in all_links) for kind in ERRORS}


NVLINK = (
    Row(
        "nvlink.links",
        "nvidia-smi nvlink --status, GB/s of each active link",
        links("status", link_speeds),
        unit="GB/s",
        ours=lambda all_links: [round((one.speed_bytes_per_s or 0) / 1e9, 3) for one in all_links if one.active],
        suffix="speeds",
    ),
    Row(
        "nvlink.links",
        "nvidia-smi nvlink --errorcounters, all links together",
        told_errors,
        ours=counted_errors,
        suffix="errors",
    ),
)
_FABRIC_STATES = {"not supported": "not_supported", "not started": "not_started", "in progress": "in_progress"}
_FABRIC_HEALTH = {"healthy": "ok", "unhealthy": "unhealthy", "limited capacity": "limited"}


def clique_id(asked: Asked, index: int) -> Told:
    """0 may be one; but of a GPU that is not registered in its fabric nvidia-smi prints zeros, too."""
    told = xml("fabric/cliqueId", convert=number)(asked, index)
    for name, wanted in (("state", "completed"), ("status", "success")):
        then = xml(f"fabric/{name}", convert=str.lower)(asked, index)
        if told.value == 0 and then.value not in (None, wanted):
            return Told(why=f"nvidia-smi -q says fabric {name} {then.value}: cliqueId 0 means nothing then")
    return told


def cluster_uuid(asked: Asked, index: int) -> Told:
    told = xml("fabric/clusterUuid", convert=str.lower)(asked, index)
    if told.value and not told.value.strip("0-"):
        return Told(why="nvidia-smi -q says fabric clusterUuid is all zeros: there is none", unsupported=True)
    return told


FABRIC = (
    Row(
        "fabric.state",
        "nvidia-smi -q fabric state",
        xml("fabric/state", convert=lambda text: {**_FABRIC_STATES, "completed": "completed"}[text.lower()]),
    ),
    Row(
        "fabric.health",
        "nvidia-smi -q fabric health summary",
        xml("fabric/health/summary", convert=lambda text: _FABRIC_HEALTH[text.lower()]),
    ),
    Row("fabric.clique_id", "nvidia-smi -q fabric cliqueId", clique_id),
    Row("fabric.cluster_uuid", "nvidia-smi -q fabric clusterUuid", cluster_uuid),
)
