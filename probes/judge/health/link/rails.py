"""Rails: a job that trains on all GPUs of a node sends through all ports beside them, alike. Which port is a GPU's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from mltop.probes.judge.health.moment import FleetMoment, Moment, OfNewest
from mltop.probes.judge.health.names import RDMA, board, bus_id, group, is_up, port_name
from mltop.probes.judge.health.relations import SLOWS
from mltop.probes.judge.health.rule import HOLD, Hit, port_rule
from mltop.probes.judge.values import grouped, low_median_of, mean_of
from mltop.probes.model import LinkSample, RankSample, Sample
from mltop.probes.model.news.judged import Fact
from mltop.probes.model.units import counted, percent_words, rate_words
from mltop.probes.model.verdict import gpu_name

OVER_S = 30.0  # traffic comes in bursts, one a step
LEAST_PORTS = 4
WORKING_SHARE = 0.01  # of its rate, on average: a port that carries a job's traffic
MOST_OF_PORTS = 0.75  # so many have to work: what more of them do not do has another reason
STILL_SHARE = 0.001  # of what the others carry: addresses and the subnet manager go on
_MOVED, _WORKS = "bytes_per_s", "ib.works"  # a gauge; a topic of facts
_PORTS_SETTING = "NCCL_IB_HCA"


@port_rule("ib.still", "warning", hold_s=OVER_S, eager=False, compares_nodes=True)(
    meaning="a port carries nothing while the ports beside it carry a job's traffic",
    threshold=f"< {percent_words(STILL_SHARE)} of what the ports of its sort carry, {percent_words(WORKING_SHARE)} of "
    f"their rate or more in {percent_words(MOST_OF_PORTS)} of them, for {HOLD}*; one job on all GPUs, ports in the "
    f"number of GPUs or in use on like nodes, not left out by {_PORTS_SETTING}",
    source="/sys/class/infiniband counters; rail-optimized fabrics",
    act="probe_pairs",
    action="see which ports NCCL takes (NCCL_DEBUG=INFO)",
    needs=("ranks", "links", "links.*.rates"),
    grows=("links",),
    explains_ranks=SLOWS,
)
def still(moment: FleetMoment) -> Iterator[Hit]:
    """Its link is up, and nothing is counted: programs have lost it, or never took it."""
    job = _job_on_all_gpus(moment.now)
    for alike in _sorts(moment.now) if job else ():
        if min(map(_rate, alike)) >= _least_traffic(alike[0]):
            continue  # the most common case
        wanted = _wanted(moment, alike)
        carried = _carried(moment, wanted) if wanted else []
        usual = low_median_of(carried) if carried else 0.0
        for link in wanted if carried else ():
            lists = {rank.settings.get(_PORTS_SETTING, "") for rank in job}  # the ports that NCCL may use
            if _rate(link) < STILL_SHARE * usual and all(takes_port(one, link.device, link.port) for one in lists):
                name, gpu = port_name(link), served_gpus(moment.now).get(port_name(link))
                rail, about = ("", ()) if gpu is None else (f", the rail of {gpu_name(gpu)},", (gpu_name(gpu),))
                others = f"{counted(len(carried), 'port')} beside it carry {rate_words(usual)} each"
                text = f"{name}{rail} carries nothing while {others}"
                yield Hit(name, text, (f"its link is up ({link.state})",), about=about)


def _wanted(moment: FleetMoment, alike: Sequence[LinkSample]) -> Sequence[LinkSample]:
    """The ports that carry a job's traffic. Like nodes know them; without these they are all, where ports and GPUs
    belong together by their number. Ports of a storage or management network stand still by right.
    """
    usual = moment.peers.common(_WORKS, group(board(moment.now), _sort_name(alike[0])))
    if usual is not None:
        return [link for link in alike if port_name(link) in usual.value.split()]
    gpus, ports = len(moment.now.gpus), len(alike)
    return alike if gpus >= LEAST_PORTS and (ports % gpus == 0 or gpus % ports == 0) else ()


def _carried(moment: Moment, alike: Sequence[LinkSample]) -> list[float]:
    """What the ports that work carried, bytes/s; [] where they are too few."""
    carried = []
    since = moment.now.sampled_at - OVER_S
    for seen, link in enumerate(alike, 1):
        series = moment.trails.series(port_name(link), _MOVED)
        lately = [value for at, value in zip(series.times, series.values) if at > since] if series else []
        average = mean_of(lately) or 0.0
        if average >= _least_traffic(link):
            carried.append(average)
        elif seen - len(carried) > (1 - MOST_OF_PORTS) * len(alike):
            return []
    return carried


def _job_on_all_gpus(sample: Sample) -> Sequence[RankSample]:
    """The ranks here of the one job that has all GPUs; none where several share the node, or some GPUs are left."""
    ranks = [rank for rank in sample.ranks if rank.state != "Z"]
    if not sample.gpus or not ranks or len({rank.job_key for rank in ranks}) > 1:
        return ()
    used = {gpu for rank in ranks for gpu in rank.gpus}
    complete = used >= {gpu.index for gpu in sample.gpus} if used else len(ranks) >= len(sample.gpus)
    return ranks if complete else ()


@OfNewest
def _sorts(sample: Sample) -> list[list[LinkSample]]:
    """The ports that have a link and rates; of one kind, speed and sort of card (which the firmware tells) together."""
    ports = [link for link in sample.links if link.kind in RDMA and link.error is None and is_up(link)]
    if len(ports) < LEAST_PORTS:
        return []
    rated = (link for link in ports if link.tx_bytes_per_s is not None and link.rx_bytes_per_s is not None)
    sorts = grouped(rated, lambda link: (link.kind, link.rate_bits_per_s, link.firmware))
    return [alike for alike in sorts.values() if len(alike) >= LEAST_PORTS]


def _sort_name(link: LinkSample) -> str:
    return f"{link.kind} {link.rate_bits_per_s}"


def _rate(link: LinkSample) -> float:
    return (link.tx_bytes_per_s or 0.0) + (link.rx_bytes_per_s or 0.0)


def _least_traffic(link: LinkSample) -> float:
    """Bytes per second from which on it works."""
    return WORKING_SHARE * (link.rate_bits_per_s or 0.0) / 8


@lru_cache(maxsize=1024)
def takes_port(setting: str, device: str, port: int) -> bool:
    """Whether NCCL_IB_HCA leaves a port in: a list of beginnings ("mlx5_1:2"), "=" of whole names, "^" of others."""
    names = setting.removeprefix("^")
    exact, names = names.startswith("="), names.removeprefix("=")
    if not names:
        return True
    left_out = setting.startswith("^")
    for name in names.split(","):
        named, _, number = name.strip().partition(":")
        fits = device == named if exact else bool(named) and device.startswith(named)
        if fits and number in ("", str(port)):
            return not left_out
    return left_out


@OfNewest
def served_gpus(sample: Sample) -> dict[str, int]:
    """By a port's name the GPU beside it: in machines with a card per GPU both stand behind the same switch, and so in
    the same order of addresses. {} where there are more or fewer, or their NUMA nodes speak against it.
    """
    gpus = sorted((bus_id(gpu.pci_bus_id), gpu.index) for gpu in sample.gpus if gpu.pci_bus_id)
    nodes = {bus_id(device.bus_id): device.numa_node for device in sample.pci if device.kind == "gpu"}
    for alike in _sorts(sample):
        placed = (link for link in alike if link.pci_bus_id)
        ports = sorted(placed, key=lambda link: (bus_id(link.pci_bus_id), link.port))
        if len(ports) != len(gpus) or len(gpus) != len(sample.gpus):
            continue
        pairs = list(zip(ports, gpus))
        nearby = ((nodes.get(address), link.numa_node) for link, (address, _) in pairs)
        if all(None in both or both[0] == both[1] for both in nearby):
            return {port_name(link): index for link, (_, index) in pairs}
    return {}


def gauges(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
    for alike in _sorts(sample) if sample.ranks else ():
        yield from ((port_name(link), _MOVED, _rate(link), 2 * OVER_S) for link in alike)


def facts(sample: Sample) -> Iterator[Fact]:
    """Which ports work, of nodes on which most do: those of a network of its own stand still on all of them."""
    for alike in _sorts.afresh(sample) if sample.ranks else ():
        working = sorted(port_name(link) for link in alike if _rate(link) >= _least_traffic(link))
        if len(working) >= len(alike) / 2:
            yield _WORKS, group(board(sample), _sort_name(alike[0])), " ".join(working)
