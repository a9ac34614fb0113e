"""mltop's memory and copies probes against plain torch: within a GPU, host to GPU and back, GPU to GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.hardware.checks import Check, Told, compare, not_tried, ratio
from tests.hardware.context import Context
from tests.hardware.loads import free_gpu, free_gpus
from tests.hardware.plain import Plain, Said, plain
from tests.hardware.probing import Answer, probe
from tests.hardware.sources import Query, SmiError, pci_attribute, sysfs_bus_id
from tests.hardware.watching import Watch, Watched

SIZES = {"memory": 1 << 30, "host": 256 << 20, "peer": 256 << 20}  # mltop's own
SECONDS = 2.0  # of each kind of copy: nvidia-smi is asked about the link meanwhile
LIMIT_S = 120.0
# Both are long copies by the same engine; by the GPU's clock there and by the host's here, which also sees how copies
# are begun: some microseconds of 0.7 ms.
MEMORY_SAME = 0.05
# DMA over PCIe is steady, but host memory is shared with all that runs on the socket, and pinned pages lie elsewhere in
# every process.
HOST_SAME, PEER_SAME = 0.1, 0.1
LINK_FIELDS = {
    "pcie_gen": ("pcie.link.gen.gpucurrent", "pcie.link.gen.current"),
    "pcie_width": ("pcie.link.width.current",),
}
CHECKS: tuple[str, ...] = (
    "memory",
    "memory (intact)",
    "to_device",
    "to_host",
    "host (intact)",
    *LINK_FIELDS,
    "peer",
    "peer (direct)",
    "peer (intact)",
)


@dataclass
class Measured:
    """``gpus``: the first that is free, and the second where there is one; ``alone``: why there is none."""

    gpus: list[dict[str, Any]]
    alone: str
    watch: Watched
    memory: Answer
    copies: Answer
    plain: Plain = field(default_factory=Plain)

    @property
    def index(self) -> int:
        return int(self.gpus[0]["index"])

    def result(self, answer: Answer) -> dict[str, Any]:
        return answer.result(self.gpus[0]["uuid"]) or {}


def run(context: Context) -> Iterator[Check]:
    yield from checks_of(measured(context))


def measured(context: Context) -> Measured:
    free, why = free_gpus(context)
    gpus = free[:2]
    alone = "" if len(gpus) > 1 else "; ".join(f"gpu {index}: {text}" for index, text in why.items())
    first, uuids = gpus[0], [gpu["uuid"] for gpu in gpus]
    memory = probe(context, "memory", uuids[:1], {})
    memory.check_begun()
    free_gpu(context, uuids[0])
    copies = probe(context, "copies", uuids, {})
    copies.check_begun()
    watch = Watch(first["index"], [name for names in LINK_FIELDS.values() for name in names])
    found = Measured(gpus, alone or "there is one GPU only", watch, memory, copies)
    sizes = {name: SIZES[name] for name in SIZES if name != "peer" or len(gpus) > 1}
    for name, answer in (("memory", memory), ("host", copies), ("peer", copies)):
        if name in sizes:  # a small GPU or host has made it less
            sizes[name] = found.result(answer).get("size_bytes") or sizes[name]

    def on_said(said: Said) -> None:
        if said["event"] == "stage" and said["name"] == "to_device":
            watch.start()
        elif said["event"] == "rate" and said["name"] == "to_host":
            watch.stop()

    order = {"size_bytes": sizes, "seconds": SECONDS, "cpus": cpus_beside(first["index"])}
    for uuid in uuids:
        free_gpu(context, uuid)
    with watch.running():
        found.plain = plain(context, "plain_copies.py", order, uuids, LIMIT_S, on_said)
    context.record_json("copies.json", asdict(found))
    return found


def cpus_beside(index: int) -> list[int]:
    """Of sysfs local_cpulist; [] where it is not told."""
    query = Query(["pci.bus_id"])
    try:
        bus_id = query.told(query.ask(), str(index), "pci.bus_id")
    except SmiError:
        return []
    told = bus_id if bus_id.value is None else pci_attribute(sysfs_bus_id(bus_id.value), "local_cpulist")
    ends = [part.split("-") for part in (told.value or "").split(",") if part]
    return [cpu for part in ends for cpu in range(int(part[0]), int(part[-1]) + 1)]


def checks_of(found: Measured) -> Iterator[Check]:
    yield from _memory(found)
    yield from _host(found)
    yield from _peer(found)


def _memory(found: Measured) -> Iterator[Check]:
    """mltop counts a byte that is copied twice, as it is read and written."""
    result, none = found.result(found.memory), found.memory.why_nothing
    rate = result.get("copy_bytes_per_s")
    yield _rate(found, "memory", None if rate is None else rate / 2, MEMORY_SAME, none)
    yield _intact(found, "memory (intact)", result.get("intact"))


def _host(found: Measured) -> Iterator[Check]:
    result = found.result(found.copies)
    for way in ("to_device", "to_host"):
        none = result.get("gaps", {}).get(way.replace("_", " ")) or found.copies.why_nothing
        yield _rate(found, way, result.get(f"{way}_bytes_per_s"), HOST_SAME, none)
    yield _intact(found, "host (intact)", result.get("intact"))
    phases = result.get("phases", [])
    for name, fields in LINK_FIELDS.items():
        ours = max((one[name] for one in phases if one.get(name) is not None), default=None)
        theirs = found.watch.told(*fields, over=max)
        source = f"nvidia-smi {fields[0]} while plain torch copies"
        yield compare(name, ours, theirs, gpu=found.index, source=source)


def _peer(found: Measured) -> Iterator[Check]:
    names = ("peer", "peer (direct)", "peer (intact)")
    if len(found.gpus) < 2:
        yield from (not_tried(name, f"{found.alone}: copies between GPUs need two that are free") for name in names)
        return
    target = found.gpus[1]["index"]
    peers = found.result(found.copies).get("peers", [])
    copy = next((one for one in peers if one["to_gpu"] == target), {})
    none = copy.get("why") or found.copies.why_nothing
    yield _rate(found, "peer", copy.get("bytes_per_s"), PEER_SAME, none)
    direct = found.plain.told("direct", "value")
    yield compare("peer (direct)", copy.get("direct"), direct, gpu=found.index, source="plain torch")
    yield _intact(found, "peer (intact)", copy.get("intact"))


def _rate(found: Measured, name: str, ours: float | None, slack: float, none: str) -> Check:
    theirs = found.plain.told("rate", "bytes_per_s", name=name)
    why = f"plain torch by the host's clock, ±{slack:.0%}"
    ours = None if ours is None else ours / 1e9
    theirs = theirs if theirs.value is None else Told(theirs.value / 1e9)
    return ratio(name, ours, theirs, 1 - slack, 1 + slack, why, "GB/s", none, gpu=found.index)


def _intact(found: Measured, name: str, ours: bool | None) -> Check:
    return compare(name, ours, Told(True), gpu=found.index, source="expected")
