"""The driver: gone or not matching its library, and nodes whose versions are not those of the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mltop.probes.judge.health.gpu.nvml import fault_of, refusal
from mltop.probes.judge.health.names import gpu_name, plural
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import DRIVER, Hit, Moment, Rule
from mltop.probes.model import GpuSample, Remedy, Sample

SIBLINGS_AT_LEAST = 4  # of one model in a node: then a single other version stands out
NODES_AT_LEAST = 3
# Without these no GPU was ever seen here, or nobody says that it is gone.
_NO_FAULT = ("no_permission", "no_bindings")
# NVML itself speaks of a GPU here, and of what it needs.
_REMEDIES: dict[str, Remedy] = {"driver_mismatch": "reboot", "lost": "reboot", "needs_reset": "reset"}
# As in _versions: field of GpuSample, topic among peers, what it is called. CUDA's version follows from the driver's.
_FIELDS = (
    ("driver", "gpu.driver", "driver"),
    ("vbios", "gpu.vbios", "VBIOS"),
    ("gsp_firmware", "gpu.gsp_firmware", "GSP firmware"),
)

Versions = tuple[str, tuple["str | None", ...]]


def _versions(sample: Sample) -> set[Versions]:
    """(model, (driver, VBIOS, GSP firmware)): most often one for all GPUs of a node."""
    return {(gpu.name or "", (gpu.driver, gpu.vbios, gpu.gsp_firmware)) for gpu in sample.gpus if gpu.state == "ok"}


def is_mismatch(sample: Sample) -> str:
    """Why NVML refuses: NVML_ERROR_LIB_RM_VERSION_MISMATCH (18); "" when it does not."""
    refused = refusal(sample)
    return refused.why if refused is not None and fault_of(refused) == "driver_mismatch" else ""


def driver(moment: Moment) -> Iterator[Hit]:
    yield from _refused(moment)
    found = _versions(moment.now)
    if len(found) > 1:
        yield from _unlike_siblings(moment.now.gpus)
    if moment.peers.nodes >= NODES_AT_LEAST:
        yield from _unlike_fleet(moment, found)


def _refused(moment: Moment) -> Iterator[Hit]:
    """One line for the node, whatever the number of its GPUs. Without any GPU it is a fault only if they must be there:
    a library that does not match its driver, a GPU that is lost or needs a reset, or GPUs that this node had.
    """
    refused = refusal(moment.now) if moment.now.gaps else None
    if refused is None or fault_of(refused) in _NO_FAULT:
        return
    known = {gpu.index: gpu for gpu in (*moment.known_gpus.values(), *moment.now.gpus)}
    remedy = _REMEDIES.get(fault_of(refused))
    if known or remedy is not None:
        seen = (f"{plural(len(known), 'GPU')} of this node cannot be read",) if known else ()
        why = refused.why[:1].upper() + refused.why[1:]
        yield Hit("driver", why, seen, severity="critical", action=refused.fix, remedy=remedy or "none")


def _unlike_siblings(gpus: list[GpuSample]) -> Iterator[Hit]:
    """The few of a model in one node that have another version than most."""
    by_name: dict[str | None, list[GpuSample]] = {}
    for gpu in gpus:
        by_name.setdefault(gpu.name, []).append(gpu)
    for field, _, called in _FIELDS:
        for own in by_name.values():
            versions = {gpu.index: getattr(gpu, field) for gpu in own if getattr(gpu, field)}
            if len(versions) < SIBLINGS_AT_LEAST or len(set(versions.values())) < 2:
                continue
            ((usual, count),) = Counter(versions.values()).most_common(1)
            if count <= len(versions) / 2:
                continue
            for index, version in versions.items():
                if version != usual:
                    text = f"{gpu_name(index)} has {called} {version}, {count} beside it {usual}"
                    yield Hit(gpu_name(index), text, key=field)


def _unlike_fleet(moment: Moment, found: set[Versions]) -> Iterator[Hit]:
    for place, (field, topic, called) in enumerate(_FIELDS):
        own = {(name, versions[place]) for name, versions in found}
        if len(own) != len({name for name, _ in own}):
            continue  # the node's own GPUs differ: told above
        for name, version in own:
            usual = moment.peers.common(topic, name, NODES_AT_LEAST) if version else None
            if usual is not None and usual.value != version:
                text = f"{moment.now.node} has {called} {version}, {usual.count} others {usual.value}"
                yield Hit(called, text, (name,) if name else (), key=field)


def facts(sample: Sample) -> Iterator[Fact]:
    """Each version of a node once per model."""
    found = _versions(sample)
    for place, (_, topic, _) in enumerate(_FIELDS):
        for name, version in {(name, versions[place]) for name, versions in found}:
            if version:
                yield topic, name, version


FACTS = facts

RULES = (
    Rule(
        "gpu.driver",
        "warning",
        0.0,
        "bring the node's versions in line with the others",
        driver,
        meaning=(
            "the driver is gone or does not match its library; or driver, VBIOS or GSP firmware differ from the other "
            "GPUs of the node or the other nodes"
        ),
        threshold=(
            "NVML refused as a whole with error 15, 16 or 18, or with another one where GPUs were seen: critical; "
            "another version than most of ≥ 4 GPUs of its model in the node or of ≥ 3 nodes*: warning"
        ),
        source="nvmlSystemGetDriverVersion, nvmlDeviceGetVbiosVersion, nvmlDeviceGetGspFirmwareVersion",
        needs=("gpu.*.driver", "gpu.*.vbios", "gpu.*.gsp_firmware"),
        explains_node=("gpu.error", "gpu.lost", "gpu.missing"),
        precedence=DRIVER,
    ),
)
