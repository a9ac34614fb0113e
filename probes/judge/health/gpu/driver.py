"""The driver: a call that does not return, gone or not matching its library, versions that are not the fleet's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mltop.probes.judge.health.gpu.xids import failed
from mltop.probes.judge.health.host.cpu import RANK_BLOCKED_S, stuck_in_driver
from mltop.probes.judge.health.moment import FleetMoment, Moment
from mltop.probes.judge.health.names import is_of_nvml
from mltop.probes.judge.health.peers import NODES_AT_LEAST
from mltop.probes.judge.health.relations import GPU_LOST, SILENT_PEER, STOPS
from mltop.probes.judge.health.rule import Hit, gpu_fault, rule
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Gap, GpuSample, Remedy, Sample
from mltop.probes.model.news.judged import Fact
from mltop.probes.model.units import counted
from mltop.probes.model.verdict import gpu_name
from mltop.probes.model.vocabulary import REFUSALS

# Without these no GPU was ever seen here, or nobody says that it is gone.
_NO_FAULT = ("no_permission", "no_bindings", "old_driver")
# NVML itself speaks of a GPU here, and of what it needs.
_REMEDIES: dict[str, Remedy] = {
    "driver_mismatch": "reboot",
    "lost": "reboot",
    "needs_reset": "reset",
    "devices_denied": "restart",
}
ANSWER_S = 5.0  # the reader waits so long for a call before it says that it is stuck
START_S = 20.0  # longer than any other answer
SIBLINGS_AT_LEAST = 4  # of one model in a node: then a single other version stands out
# As in _versions: field of GpuSample, topic among peers, what it is called. CUDA's version follows from the driver's.
_FIELDS = (
    ("driver", "gpu.driver", "driver"),
    ("vbios", "gpu.vbios", "VBIOS"),
    ("gsp_firmware", "gpu.gsp_firmware", "GSP firmware"),
)

Versions = tuple[str, tuple["str | None", ...]]


def refusal(sample: Sample) -> Gap | None:
    """Why all of NVML is refused, None when it is not."""
    return next((gap for gap in sample.gaps if is_of_nvml(gap) and gap.code in REFUSALS), None)


@rule("nvml.stuck", "critical", clear_s=10.0, remedy="reboot")(
    meaning="a driver call does not return",
    threshold=f"no answer for {ANSWER_S:.0f} s; the first answer, for which the driver wakes all GPUs: "
    f"{ANSWER_S + START_S:.0f} s*; nvidia-* or nv-* in state D for {RANK_BLOCKED_S:.0f} s, or hung as the kernel says",
    source="breadcrumb of the NVML child; /proc/PID/stat, kernel log",
    action="if the call never returns: reboot",
    needs=("nvml", "host.blocked"),
    eager=False,  # that mltop has just begun is no reason not to wait for it
    precedence=GPU_LOST,  # what it explains goes with it where it is explained itself
    explains_node=("gpu.error", "gpu.missing"),
    explains_ranks=STOPS,
    explains_peers=SILENT_PEER,
    tells_nvml=("stuck",),
)
def stuck(moment: Moment) -> Iterator[Hit]:
    """One hit per node; a stuck driver is most often one GPU that is about to be lost."""
    whys = [gap.why for gap in moment.now.gaps if is_of_nvml(gap) and gap.code == "stuck"]
    programs = stuck_in_driver(moment)
    action = "reboot: the driver does not come back" if programs else moment.after_log(stuck.action)
    since = min(known(hit.since for hit in programs), default=None)
    texts = [*whys, *(hit.message for hit in programs)]
    if texts:
        # Without persistence mode the driver first wakes every GPU, which takes seconds for each.
        starts = not programs and any(is_of_nvml(gap, "starting") for gap in moment.now.gaps)
        yield Hit("NVML", texts[0], tuple(texts[1:]), None, action, since, hold_s=START_S if starts else None)


def _unlike_fleet(moment: FleetMoment) -> Iterator[Hit]:
    if moment.peers.nodes < NODES_AT_LEAST:
        return
    versions = _versions(moment.now)
    told: set[tuple[str, str]] = set()  # what differs of which model: the driver brings its GSP firmware
    for column, (field, topic, called) in enumerate(_FIELDS):
        own = _by_model(versions, column)
        if len(own) != len({name for name, _ in own}):
            continue  # the node's own GPUs differ, which it says itself
        for name, version in own:
            usual = moment.peers.common(topic, name) if version else None
            if usual is not None and usual.value != version and (field, name) not in told:
                told |= {("gsp_firmware", name)} if field == "driver" else set()
                text = f"{moment.now.node} has {called} {version}, {usual.count} others {usual.value}"
                yield Hit(called, text, (name,) if name else (), key=field)


@gpu_fault("gpu.driver", "warning")(
    meaning="the driver is gone or does not match its library; or driver, VBIOS or GSP firmware differ from the other "
    "GPUs of the node or the other nodes",
    threshold="NVML refused as a whole with error 15, 16 or 18, or with another one where GPUs were seen: critical; "
    f"another version than most of ≥ {SIBLINGS_AT_LEAST} GPUs of its model in the node or of ≥ {NODES_AT_LEAST} "
    "nodes*: warning",
    source="nvmlSystemGetDriverVersion, nvmlDeviceGetVbiosVersion, nvmlDeviceGetGspFirmwareVersion",
    action="bring the node's versions (driver, Fabric Manager, firmware) in line with the others",
    needs=("gpu.*.driver", "gpu.*.vbios", "gpu.*.gsp_firmware"),
    orders=True,
    adds=True,
    explains_node=("gpu.error", "gpu.lost", "gpu.missing", "fabric.manager"),
    tells_nvml=tuple(sorted(REFUSALS)),
    compare=_unlike_fleet,
)
def driver(moment: Moment) -> Iterator[Hit]:
    """One line for the node, whatever the number of its GPUs. Without any GPU it is a fault only if they must be there:
    a library that does not match its driver, a GPU that is lost or needs a reset, or GPUs that this node had.
    """
    refused = refusal(moment.now)
    indexes = {gpu.index for gpu in (*moment.known_gpus.values(), *moment.now.gpus)}
    remedy = _REMEDIES.get(refused.code) if refused is not None else None
    if refused is not None and refused.code not in _NO_FAULT and (indexes or remedy is not None):
        seen = (f"{counted(len(indexes), 'GPU')} of this node cannot be read",) if indexes else ()
        why = refused.why[:1].upper() + refused.why[1:]
        of_gpus = failed(moment) if refused.code in ("lost", "needs_reset") else []
        subject = of_gpus[0] if len(of_gpus) == 1 else "driver"
        yield Hit(subject, why, seen, severity="critical", action=refused.fix, remedy=remedy or "none")
    if len(_versions(moment.now)) > 1:
        yield from _unlike_siblings(moment.now.gpus)


def _versions(sample: Sample) -> set[Versions]:
    """(model, (driver, VBIOS, GSP firmware)): most often one for all GPUs of a node."""
    return {(gpu.name or "", (gpu.driver, gpu.vbios, gpu.gsp_firmware)) for gpu in sample.gpus if gpu.state == "ok"}


def _unlike_siblings(gpus: list[GpuSample]) -> Iterator[Hit]:
    """The few of a model in one node that have another version than most."""
    by_model = grouped(gpus, lambda gpu: gpu.name)
    for field, _, called in _FIELDS:
        for alike in by_model.values():
            versions = {gpu.index: getattr(gpu, field) for gpu in alike if getattr(gpu, field)}
            if len(versions) < SIBLINGS_AT_LEAST:
                continue
            ((usual, count),) = Counter(versions.values()).most_common(1)
            for index, version in versions.items():
                if version != usual and count > len(versions) / 2:
                    text = f"{gpu_name(index)} has {called} {version}, {count} beside it {usual}"
                    yield Hit(gpu_name(index), text, key=field)


def _by_model(versions: set[Versions], column: int) -> set[tuple[str, str | None]]:
    return {(name, of_model[column]) for name, of_model in versions}


def facts(sample: Sample) -> Iterator[Fact]:
    """Each version of a node once per model."""
    versions = _versions(sample)
    for column, (_, topic, _) in enumerate(_FIELDS):
        yield from ((topic, name, version) for name, version in _by_model(versions, column) if version)
