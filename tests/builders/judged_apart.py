"""Recordings judged in one place, and in two: by a judge on each node, and by who joins and compares what these say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache

import msgspec

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.node import NodeJudge
from mltop.probes.model import LinkSample, Sample, to_json
from mltop.probes.model.news.judged import Judged
from tests.builders.fault_recordings import BROKE_AT, EVERY_S, Change, on, recording
from tests.builders.faults import FAULTS, WHOLE_FAULTS

ASKED_EVERY = 20  # samples


def _gpus(index: int | None = None, **fields: object) -> Change:
    def change(_: float, sample: Sample) -> None:
        sample.gpus = [replace(gpu, **fields) if index in (None, gpu.index) else gpu for gpu in sample.gpus]  # type: ignore[arg-type]

    return on(0, change)


def _ports(kind: str, do: Callable[[LinkSample], LinkSample | None], count: int = 1) -> Change:
    def change(_: float, sample: Sample) -> None:
        chosen = [link for link in sample.links if link.kind == kind][:count]
        made = [do(link) if link in chosen else link for link in sample.links]
        sample.links = [link for link in made if link is not None]

    return on(0, change)


def _hosts(**fields: object) -> Change:
    return on(0, lambda _, sample: sample.__setattr__("host", replace(sample.host, **fields)))  # type: ignore[arg-type]


def _still(_: float, sample: Sample) -> None:
    port = next(link for link in sample.links if link.kind == "infiniband")
    port.rx_bytes_per_s = port.tx_bytes_per_s = 0.0


# What only other nodes can tell, of one that is unlike five: what breaks, and the rule that says it.
UNLIKE: dict[str, tuple[Change, str]] = {
    "driver": (_gpus(driver="535.1"), "gpu.driver"),
    "clock": (_gpus(2, sm_clock_mhz=1000), "gpu.clock.low_busy"),
    "capped": (_gpus(2, sm_clock_mhz=1000, throttle_reasons=["sw_power_cap"]), "gpu.throttle.power_cap"),
    "pinned": (_gpus(2, sm_clock_mhz=1000, throttle_reasons=["applications_clocks"]), "gpu.throttle.user_clocks"),
    "power limit": (_gpus(2, power_limit_w=500.0), "gpu.power.limit_low"),
    "clock source": (_hosts(clocksource="kvm-clock"), "host.clocksource"),
    "missing port": (_ports("infiniband", lambda link: None), "ib.missing"),
    "port down": (_ports("infiniband", lambda link: replace(link, state="DOWN", physical_state="Polling")), "ib.down"),
    "slow port": (_ports("infiniband", lambda link: replace(link, rate_bits_per_s=2e11)), "ib.rate"),
    "still port": (on(0, _still), "ib.still"),
    "MTU": (_ports("ethernet", lambda link: replace(link, mtu=576)), "eth.slow"),
}


@cache
def samples_of(name: str) -> list[Sample]:
    """Every fourth of each node, from shortly before the fault on."""
    if name in UNLIKE:
        every = recording(UNLIKE[name][0], nodes=5, lasts_s=96.0)
    elif name in FAULTS:
        every = recording(*FAULTS[name][0], lasts_s=96.0)
    else:
        changes, nodes, *_ = WHOLE_FAULTS[name]
        every = recording(*changes, nodes=nodes, lasts_s=96.0)
    begun = (sample for sample in every if sample.sampled_at > BROKE_AT - 24.0)
    return [sample for sample in begun if (sample.sampled_at - BROKE_AT) // EVERY_S % 4 == 0]


def told(health: Health) -> str:
    return to_json([health.findings(), health.unknowns(at_the_end=True)])


def in_one_place(samples: Iterable[Sample]) -> Iterator[str]:
    health = Health()
    for number, sample in enumerate(samples):
        health.see(sample)
        if number % ASKED_EVERY == 0:
            yield told(health)
    health.settle()
    yield told(health)


def in_halves(samples: Iterable[Sample], judged: Callable[[Sample], bytes]) -> Iterator[str]:
    health, decoder = Health(), msgspec.json.Decoder(Judged, dec_hook=lambda kind, text: kind.parsed(text))
    for number, sample in enumerate(samples):
        health.take(decoder.decode(judged(sample)), sample, sample.sampled_at)
        if number % ASKED_EVERY == 0:
            yield told(health)
    health.settle()
    yield told(health)


class Nodes:
    """A judge on each of them."""

    def __init__(self) -> None:
        self._judges: dict[str, NodeJudge] = {}

    def judged(self, sample: Sample) -> bytes:
        judge = self._judges.setdefault(sample.node, NodeJudge(sample.node))
        judge.see(sample)
        return to_json(judge.judged()).encode()
