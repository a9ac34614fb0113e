"""The NVLink fabric: Fabric Manager, IMEX, and whether the GPUs have joined it.

NVL72 racks have their switches elsewhere, a virtual machine may see GPUs only. Where drivers run in containers, so does
the Fabric Manager: that the host has no service of that name is no fault by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mltop.probes.judge.health.link.nvlink import active_count
from mltop.probes.judge.health.moment import FleetMoment, Moment
from mltop.probes.judge.health.names import board, named_gpus
from mltop.probes.judge.health.relations import FABRIC, STOPS
from mltop.probes.judge.health.rule import HOLD, Hit, critical_if, device_rule
from mltop.probes.model import Sample
from mltop.probes.model.news.judged import Fact
from mltop.probes.model.units import duration_words

_fabric_rule = partial(device_rule, precedence=FABRIC, explains_ranks=STOPS)

MANAGER, IMEX = "nvidia-fabricmanager", "nvidia-imex"
BOOT_GRACE_S = 300.0  # services and links take their time (NVSentinel)
RESTARTS, RESTARTS_OVER_S = 3, 600.0
_STOPPED = ("inactive", "failed")
_NOT_JOINED = ("not_started", "in_progress")
_ACTIVE, _STOPS = "was active", "stops"
_PROBLEMS = {
    "degraded_bandwidth": "its bandwidth is degraded",
    "route_recovery": "its routes are being recovered",
    "route_unhealthy": "its routes are unhealthy",
    "access_timeout": "it recovers from an access timeout",
    "misconfigured": "its configuration is wrong",
}


@_fabric_rule("fabric.state", "critical", hold_s=60.0, remedy="reset")(
    meaning="a GPU is not, or not well, part of the NVLink fabric: NCCL fails or hangs at start",
    threshold=f"not completed, health summary unhealthy or limited, or a problem in the health mask, for {HOLD}",
    source="nvmlDeviceGetGpuFabricInfoV; gpud, DCGM",
    action="restart the Fabric Manager (in racks IMEX and NMX); reset the GPU if it stays",
    needs=("gpu.*.fabric.state", "gpu.*.fabric.health", "gpu.*.fabric.status"),
    explains=("nvlink.",),
    whole_node=(
        "The NVLink fabric is not ready on all {count} GPUs",
        "restart the Fabric Manager (in racks IMEX and NMX)",
    ),
)
def state(moment: Moment) -> Iterator[Hit]:
    if _is_booting(moment.now):
        return
    for gpu, name in named_gpus(moment):
        fabric = gpu.fabric
        if fabric.state is None or fabric.state == "not_supported" or gpu.state != "ok" or gpu.mig_enabled:
            continue
        # A virtual machine with a single GPU has nobody to join, unless its NVLinks are connected.
        has_partners = len(moment.now.gpus) > 1 or _has_switches(moment.now) or active_count(gpu.nvlink.links) > 0
        if fabric.state in _NOT_JOINED and has_partners:
            text = f"{name} has not joined the NVLink fabric ({fabric.state.replace('_', ' ')})"
        elif fabric.problems or fabric.health in ("unhealthy", "limited"):
            why = "; ".join(_PROBLEMS.get(problem, problem) for problem in fabric.problems)
            text = f"{name}: NVLink fabric is {fabric.health or 'unhealthy'}{f': {why}' if why else ''}"
        else:
            continue
        parts = (("state", fabric.state), ("clique", fabric.clique_id), ("cluster", fabric.cluster_uuid or None))
        identity = ", ".join(f"{what} {value}" for what, value in parts if value is not None)
        yield Hit(name, text, (identity,))


@_fabric_rule("fabric.manager", "critical", hold_s=10.0)(
    meaning="the service that sets up the NVSwitches does not run: no NVLink traffic for new jobs",
    threshold="failed, with NVSwitches or NVLinks that lead to some (else info); inactive with NVSwitches, or with "
    f"GPUs outside of the fabric; absent with NVSwitches and such GPUs; {RESTARTS} stops in "
    f"{duration_words(RESTARTS_OVER_S)}",
    source="systemctl is-active; NVSentinel, gpud",
    action="sudo systemctl restart nvidia-fabricmanager",
    needs=("host.services",),
    explains=("gpu.driver",),
    explains_node=("fabric.state", "nvlink."),
)
def manager(moment: Moment) -> Iterator[Hit]:
    """A service that has failed was wanted. One that does not run may run elsewhere, unless the switches are here."""
    now = moment.now
    status = now.host.services.get(MANAGER)
    stops = moment.trails.increase(MANAGER, _STOPS, RESTARTS_OVER_S).amount
    if status is None or _is_booting(now) or (status == "active" and stops < RESTARTS):
        return
    switches = _has_switches(now)
    # Whether the GPUs belong to switches, wherever these are: by their NVLinks' other ends, or the driver's word.
    fabric = any(
        gpu.fabric.state not in (None, "not_supported") or any(link.remote == "switch" for link in gpu.nvlink.links)
        for gpu in now.gpus
    )
    waits = any(gpu.state == "ok" and gpu.fabric.state in _NOT_JOINED for gpu in now.gpus)
    if (status == "failed" and (switches or fabric)) or (status == "inactive" and (switches or (fabric and waits))):
        joined = sum(gpu.fabric.state == "completed" for gpu in now.gpus)
        evidence = (f"{joined} of {len(now.gpus)} GPUs are in the fabric",)
        yield Hit("Fabric Manager", f"Fabric Manager is down ({status})", evidence, about=("driver",))
    elif status == "failed":  # as wherever an image that has it finds no NVSwitch
        text = "Fabric Manager has failed; this machine has no NVSwitch, and needs none"
        yield Hit("Fabric Manager", text, (), "info", "sudo systemctl disable nvidia-fabricmanager")
    elif not switches:
        return
    elif status == "absent" and not now.host.is_confined and waits:
        text = "Fabric Manager is not installed, and GPUs have not joined the fabric"
        yield Hit("Fabric Manager", text, action="install and start nvidia-fabricmanager in the driver's version")
    elif status == "active":
        text = f"Fabric Manager stopped {stops:.0f} times in {duration_words(RESTARTS_OVER_S)}"
        yield Hit("Fabric Manager", text, action="read its log: journalctl -u nvidia-fabricmanager")


@_fabric_rule("fabric.imex", "critical", hold_s=10.0, compares_nodes=True)(
    meaning="the service that lets GPUs of several nodes share memory does not run",
    threshold="failed; inactive where like nodes have it active, or (warning) with processes on the GPUs",
    source="systemctl is-active; DCGM",
    action="sudo systemctl restart nvidia-imex; nvidia-imex-ctl -N shows the domain",
    needs=("host.services",),
)
def imex(moment: FleetMoment) -> Iterator[Hit]:
    """Some sites start it for each job: that it does not run matters when something runs, or when it ran before."""
    now = moment.now
    status = now.host.services.get(IMEX)
    joined = (gpu.fabric for gpu in now.gpus if gpu.fabric.state not in (None, "not_supported"))
    in_rack = any((fabric.cluster_uuid or "").strip("0-") for fabric in joined)  # elsewhere it is all zeros
    if status not in _STOPPED or _is_booting(now) or not in_rack:
        return
    text = f"IMEX is down ({status}): GPUs cannot share memory between nodes"
    usual = moment.peers.common("service.imex", board(now))
    if status == "failed":
        yield Hit("IMEX", text)
    elif usual is not None and usual.value == "active":
        yield Hit("IMEX", text, (f"active on {usual}",))
    elif now.ranks or any(gpu.processes for gpu in now.gpus):
        yield Hit("IMEX", text, ("processes use the GPUs",), critical_if(moment.trails.has_seen(IMEX, _ACTIVE)))


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    status = sample.host.services.get(MANAGER)
    if status is not None and status != "absent":
        yield MANAGER, _STOPS, status != "active"  # grows by one at each stop: what falls to 0 does not count


def seen(sample: Sample) -> Iterator[tuple[str, str]]:
    if sample.host.services.get(IMEX) == "active":
        yield IMEX, _ACTIVE


def facts(sample: Sample) -> Iterator[Fact]:
    status = sample.host.services.get(IMEX)
    if status is not None and status != "absent":
        yield "service.imex", board(sample), status


def _is_booting(sample: Sample) -> bool:
    return sample.host.uptime_s is not None and sample.host.uptime_s < BOOT_GRACE_S


def _has_switches(sample: Sample) -> bool:
    return any(device.kind == "nvswitch" for device in sample.pci)
