"""For tests of the rules about links: only these rules judge, and healthy ports, NVLinks and PCI devices to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from mltop.probes.judge.health.link import ethernet, fabric, ib_errors, infiniband, nvlink, pcie
from mltop.probes.judge.health.registry import rules_of
from mltop.probes.judge.health.rule import Rule
from mltop.probes.model import Finding, GpuSample, KernelEvent, LinkSample, Nvlink, PciDevice, Sample
from tests.builders.evaluated import evaluate
from tests.builders.health_samples import GPU_BUSES, NIC_BUSES, gpu, link, node_h100, pci

MODULES = (nvlink, fabric, pcie, infiniband, ib_errors, ethernet)
RULES: tuple[Rule, ...] = rules_of(*MODULES)


def judge(*samples: Sample) -> list[Finding]:
    """What the rules about links say of these samples, ended or not."""
    return evaluate(samples, RULES)


def told(*samples: Sample) -> list[tuple[str, str, str]]:
    """(severity, id, subject) of each finding."""
    return [(one.severity, one.id, one.subject) for one in judge(*samples)]


def only(*samples: Sample) -> Finding:
    """The one finding that there is."""
    (finding,) = judge(*samples)
    return finding


def over(times: Iterable[float], make: Callable[[float], Sample]) -> list[Sample]:
    return [make(float(at)) for at in times]


def port(number: int = 4, /, counters: Mapping[str, int] | None = None, **fields: Any) -> LinkSample:
    """``mlx5_NUMBER``, healthy, without anything stuck; ``counters`` are set on top of its own."""
    whole = link(number, **{"saturated": [], **fields})
    return replace(whole, counters={**whole.counters, "link_downed": 2, **(counters or {})})


def ports(*changed: LinkSample, count: int = 8) -> list[LinkSample]:
    """``mlx5_0`` to ``mlx5_7``, some of them replaced by device."""
    by_device = {one.device: one for one in changed}
    own = [by_device.pop(f"mlx5_{number}", None) or port(number) for number in range(count)]
    return [*own, *by_device.values()]


def down(number: int = 4, physical: str = "Polling", **fields: Any) -> LinkSample:
    return port(number, state="DOWN", physical_state=physical, rate_bits_per_s=10e9, **fields)


def node(at: float, *changed: LinkSample, name: str = "n1", **fields: Any) -> Sample:
    """Two GPUs without NVLinks and eight HCAs in training."""
    fields = {"gpus": [bare_gpu(0), bare_gpu(1)], "links": ports(*changed), **fields}
    return Sample(name, at, boot_id="boot-1", **fields)


def board(at: float, gpus: Mapping[int, Mapping[str, Any]] | None = None, **fields: Any) -> Sample:
    """A healthy 8 x H100 node without network ports."""
    return node_h100(at, gpus, links=fields.pop("links", []), **fields)


def bare_gpu(index: int, **fields: Any) -> GpuSample:
    return gpu(index, nvlink=Nvlink(), **fields)


def nvlinks(
    inactive: Iterable[int] = (),
    count: int = 18,
    speeds: Mapping[int, float] | None = None,
    errors: Mapping[int, Mapping[str, int]] | None = None,
    **fields: Any,
) -> Nvlink:
    """The links of an H100; ``errors`` and ``speeds`` (bytes/s) by link."""
    dead, whole = set(inactive), gpu(0).nvlink.links[:count]
    return Nvlink(
        [
            replace(
                one,
                active=one.index not in dead,
                speed_bytes_per_s=(speeds or {}).get(one.index, one.speed_bytes_per_s),
                errors={**one.errors, **(errors or {}).get(one.index, {})},
                **fields,
            )
            for one in whole
        ]
    )


def device(number: int, kind: str = "nic", **fields: Any) -> PciDevice:
    """The PCI device of a GPU or of an HCA."""
    bus = (GPU_BUSES if kind == "gpu" else NIC_BUSES)[number]
    return replace(next(one for one in pci() if one.bus_id == f"0000:{bus}:00.0"), **fields)


def devices(*changed: PciDevice) -> list[PciDevice]:
    """All of a node, some replaced by address."""
    by_address = {one.bus_id: one for one in changed}
    return [by_address.get(one.bus_id, one) for one in pci()]


def event(kind: str, at: float, text: str, subject: str = "", **fields: Any) -> KernelEvent:
    return KernelEvent(at, kind, subject, text=text, **fields)
