"""What the hub reads of every frame before anything else.

Values of hardware that cannot be, in samples from elsewhere: unknown, with what was said in the reason.

An agent sifts what its own driver answers (collect/nvml/sieve.py). What comes from a node or a file is sifted here by
the same table: the node may be hostile, the recording of an older version, or edited.

Samples and dumps as they come from nodes and from files: decoded within bounds, or one sentence why not.

A node may send anything. How much memory a sample takes once it is decoded is bounded before it is: a GPU of twelve
bytes of JSON ("{"index":1},") becomes an object of thousands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from mltop.probes.agent.protocol import Message
from mltop.probes.model import Gap, GpuSample, HostSample, Sample
from mltop.probes.model.plausible import CLOCK_OVER_MAX, GPU, LINKS, PCI, Range
from mltop.probes.model.receipt import LARGE_BYTES, MOST_GPUS, MOST_RANKS, Refused, admit
from mltop.probes.reach.view import Glance, SampleFrame


class SampleHead(msgspec.Struct):
    sampled_at: float


class Envelope(msgspec.Struct):
    """As much of a frame as most of them need: the rest of a sample is decoded when somebody looks at it."""

    kind: str
    node: str = ""
    sample: SampleHead | None = None


# By the record that they are fields of: ("pcie", "gen"), and (nvlink.links, *, version) as ("nvlink.links", "version").
_Fields = tuple[tuple[str, Range], ...]


def _fields_of(table: dict[str, Range], prefix: str) -> _Fields:
    """Of one record: the rows "prefix.NAME", without what is deeper."""
    found = ((path[len(prefix) :], limits) for path, limits in table.items() if path.startswith(prefix))
    return tuple((name, limits) for name, limits in found if "." not in name and name != "*")


_GPU = _fields_of(GPU, "")
_PARTS = tuple((part, _fields_of(GPU, f"{part}.")) for part in ("ecc", "remap", "pcie", "nvlink", "fabric"))
_BANKS = _fields_of(GPU, "remap.banks.")
_LINK = _fields_of(GPU, "nvlink.links.*.")
_PROCESS = _fields_of(GPU, "processes.*.")
_INSTANCE = _fields_of(GPU, "mig_instances.*.")
_TABLES = ("throttle_ns", "throttle_share")
_CLOCKS = (("sm_clock_mhz", "sm_clock_max_mhz"), ("memory_clock_mhz", "memory_clock_max_mhz"))
_PCI = _fields_of(PCI, "")
_PORT = _fields_of(LINKS, "")
# What collectors, and so the needs of rules, call what these fields are parts of.
_CALLED = {
    "link_speed_gt_per_s": "link",
    "link_speed_max_gt_per_s": "link",
    "link_width": "link",
    "link_width_max": "link",
    "rate_bits_per_s": "rate",
}


def sift(sample: Sample) -> list[Gap]:
    """Take out, in place, what cannot be. Returns a gap for each."""
    gaps: list[Gap] = []
    for gpu in sample.gpus:
        _sift_gpu(gpu, gaps)
    for device in sample.pci:
        _sift_record(device, _PCI, f"pci.{device.bus_id}", gaps)
        device.aer = _sifted_counters(device.aer, PCI["aer.*"], f"pci.{device.bus_id}.aer", gaps)
    _sift_host(sample.host, gaps)
    for link in sample.links:
        where = f"links.{link.device}"
        _sift_record(link, _PORT, where, gaps)
        link.counters = _sifted_counters(link.counters, LINKS["counters.*"], f"{where}.counters", gaps)
    return gaps


def _sift_host(host: HostSample, gaps: list[Gap]) -> None:
    """Of a machine everything is counted from 0 on."""
    _sift_counts(host, "host", gaps)
    _sift_counts(host.pressure, "host.pressure", gaps)
    for group in host.cgroups:
        _sift_counts(group, f"host.cgroups.{group.path}", gaps)
    for filesystem in host.filesystems:
        _sift_counts(filesystem, f"host.filesystems.{filesystem.mount}", gaps)


def _sift_counts(record: Any, where: str, gaps: list[Gap]) -> None:
    for name, value in vars(record).items():
        if type(value) in (int, float) and value < 0:
            gaps.append(_gap(f"{where}.{name}", str(value), "it is counted from 0 on"))
            setattr(record, name, None)


def _sift_gpu(gpu: GpuSample, gaps: list[Gap]) -> None:
    where = f"gpu.{gpu.index}"
    _sift_record(gpu, _GPU, where, gaps)
    for part, known in _PARTS:
        _sift_record(getattr(gpu, part), known, f"{where}.{part}", gaps)
    _sift_record(gpu.remap.banks, _BANKS, f"{where}.remap.banks", gaps)
    for name in _TABLES:
        setattr(gpu, name, _sifted_table(getattr(gpu, name), GPU[f"{name}.*"], f"{where}.{name}", gaps))
    gpu.pcie.errors = _sifted_table(gpu.pcie.errors, GPU["pcie.errors.*"], f"{where}.pcie.errors", gaps)
    for link in gpu.nvlink.links:
        of = f"of link {link.index} "
        _sift_record(link, _LINK, f"{where}.nvlink", gaps, of)
        counters = GPU["nvlink.links.*.errors.*"]
        link.errors = _sifted_counters(link.errors, counters, f"{where}.nvlink.errors", gaps, of)
    for instance in gpu.mig_instances:
        _sift_record(instance, _INSTANCE, f"{where}.mig_instances.{instance.index}", gaps)
    for process in gpu.processes or ():
        _sift_record(process, _PROCESS, f"{where}.processes", gaps)
    _sift_pairs(gpu, where, gaps)


def _sift_pairs(gpu: GpuSample, where: str, gaps: list[Gap]) -> None:
    """What only two numbers together tell."""
    for name, maximum in _CLOCKS:
        mhz, most = getattr(gpu, name), getattr(gpu, maximum)
        if mhz is not None and most is not None and mhz > most * CLOCK_OVER_MAX:
            gaps.append(_gap(f"{where}.{name}", f"{mhz} MHz", f"it names {most} MHz as the maximum"))
            setattr(gpu, name, None)
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is not None and total is not None and used > total:
        gaps.append(_gap(f"{where}.memory_used_bytes", f"{used} bytes", f"the memory has {total} bytes"))
        gpu.memory_used_bytes = None


def _sift_record(record: Any, known: _Fields, where: str, gaps: list[Gap], of: str = "") -> None:
    """``of``: which of several it is, for the reason. Identities (an index, a pid) cannot be None: receipt.py sees to
    them.
    """
    values = vars(record)
    for name, limits in known:
        # Of a field that was not sent there is no value; a comparison costs a fifth of what ``holds`` does.
        value = values.get(name)
        if value is None or (limits.only is None and limits.low <= value <= limits.high) or limits.holds(value):
            continue
        if name not in ("index", "pid"):
            what, said = f"{where}.{_CALLED.get(name, name)}", f"{of}{limits.shown(value)}"
            gaps.append(_gap(what, said, f"{limits.between} are plausible"))
            setattr(record, name, None)


def _sifted_counters(table: dict[str, Any], limits: Range, where: str, gaps: list[Gap], of: str = "") -> dict[str, Any]:
    """As ``_sifted_table``, of what rules need as a whole: a single counter that is missing is missed."""
    bad = _implausible(table, limits)
    gaps += [
        _gap(where, f"{of}{name} {limits.shown(table[name])}", f"{limits.between} are plausible")
        for name in _first(bad)
    ]
    return _without(table, bad)


def _sifted_table(table: dict[str, Any], limits: Range, where: str, gaps: list[Gap]) -> dict[str, Any]:
    bad = _implausible(table, limits)
    gaps += [
        _gap(f"{where}.{name}", limits.shown(table[name]), f"{limits.between} are plausible") for name in _first(bad)
    ]
    return _without(table, bad)


def _implausible(table: dict[str, Any], limits: Range) -> list[str]:
    if not table or (limits.low <= min(table.values()) and max(table.values()) <= limits.high):
        return []
    return [name for name, value in table.items() if not limits.holds(value)]


def _without(table: dict[str, Any], names: list[str]) -> dict[str, Any]:
    left_out = set(names)
    return {name: value for name, value in table.items() if name not in left_out} if names else table


def _first(names: Iterable[str], most: int = 8) -> list[str]:
    """Of many alike, some are told."""
    return sorted(names)[:most]


def _gap(what: str, said: str, why: str) -> Gap:
    return Gap(what, f"it says {said}, which cannot be: {why}", code="implausible")


MOST_SAMPLE_BYTES = 4 * 1024 * 1024  # of JSON: fifty times what a node of 8 GPUs sends
# What decoding raises; of JSON nested too deep and of bytes that are no UTF-8, msgspec does not make errors of its own.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, Refused)
MANY_OBJECTS = 4096  # 8 GPUs with their ports make 1,000
_MOST_OF = {"gpus": MOST_GPUS, "ranks": MOST_RANKS, "links": 4096, "pci": 16_384, "kernel_events": 4096, "gaps": 16_384}


class _Shape(msgspec.Struct):
    """How many there are of what takes most memory."""

    gpus: list[msgspec.Raw] = []
    ranks: list[msgspec.Raw] = []
    links: list[msgspec.Raw] = []
    pci: list[msgspec.Raw] = []
    kernel_events: list[msgspec.Raw] = []
    gaps: list[msgspec.Raw] = []


class _ShapeFrame(msgspec.Struct):
    sample: _Shape | None = None


_shapes = msgspec.json.Decoder(_Shape)
_shapes_of_frames = msgspec.json.Decoder(_ShapeFrame)
_samples = msgspec.json.Decoder(Sample)
_messages = msgspec.json.Decoder(Message)
_glances = msgspec.json.Decoder(SampleFrame)


def sample_of_frame(payload: bytes) -> tuple[Sample | None, list[Gap]]:
    """The sample of an agent's frame, None when it has none, and what was left out of it. Raises UNREADABLE."""
    if _may_be_too_much(payload):
        _bounded(payload, _shapes_of_frames.decode(payload).sample)
    sample = _messages.decode(payload).sample
    return sample, [] if sample is None else admit(sample, len(payload) > LARGE_BYTES) + sift(sample)


def sample_of_line(line: bytes) -> Sample:
    """One line of a recording; its gaps say what was left out. Raises UNREADABLE."""
    if _may_be_too_much(line):
        _bounded(line, _shapes.decode(line))
    sample = _samples.decode(line)
    sample.gaps += admit(sample, len(line) > LARGE_BYTES) + sift(sample)
    return sample


def glance_of_frame(payload: bytes) -> Glance | None:
    """What views of all nodes need of a frame, None when it has no sample. Raises UNREADABLE."""
    if _may_be_too_much(payload):
        _bounded(payload, _shapes_of_frames.decode(payload).sample)
    glance = _glances.decode(payload).sample
    return None if glance is None else glance.admitted()


def why_unreadable(error: Exception) -> str:
    """Behind "is": which kind of UNREADABLE it was; anything else is a bug of ours, and says so."""
    if isinstance(error, Refused):
        return f"refused: {error}"
    if not isinstance(error, UNREADABLE):
        return f"more than mltop can read: {type(error).__name__}: {error} (please report)"
    return f"not readable, or of another version: {error or type(error).__name__}"


def too_large(payload: bytes) -> str:
    """Why a sample of so many bytes is not even kept, "" when it may be."""
    if len(payload) <= MOST_SAMPLE_BYTES:
        return ""
    return f"its sample has {len(payload) / 1e6:.1f} MB of JSON (at most {MOST_SAMPLE_BYTES / 1e6:.1f})"


def _may_be_too_much(payload: bytes) -> bool:
    """A look that costs little: samples that are usual need not be gone through twice."""
    return len(payload) > LARGE_BYTES or payload.count(b"{") > MANY_OBJECTS


def _bounded(payload: bytes, shape: _Shape | None) -> None:
    if too_large(payload):
        raise Refused(too_large(payload))
    for name, most in _MOST_OF.items():
        count = len(getattr(shape, name, ()))
        if count > most:
            raise Refused(f"its sample has {count} {name.replace('_', ' ')} (at most {most})")
