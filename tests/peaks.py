"""What hardware should give, as a document: `python -m tests.peaks` prints PEAKS.md."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mltop.probes.judge.probes.hardware import busbw, links
from mltop.probes.judge.probes.hardware.busbw import Curve
from mltop.probes.judge.probes.hardware.peaks import PEAKS, SOURCES, Peak

HEAD = """# What hardware should give

What the verdicts of `mltop probe` compare with after a device's own history and its peers. Made from the tables
(`python -m tests.peaks`); a test compares it, and calculates every TFLOPS figure again
from multiprocessors x FLOP/clock x clock. Figures accuse nobody: those marked ? are general knowledge or disputed, and
software alone moves the others.

"""
_DTYPES = ("fp32", "tf32", "bf16", "fp8", "fp4")


def document() -> str:
    sources = "Sources: " + "; ".join(f"{name}: {what}" for name, what in SOURCES.items()) + "."
    parts = [f"{HEAD}{textwrap.fill(sources, 120)}\n", *_gpus(), *_doubts(), *_links(), *_busbw()]
    reading = Path(busbw.__file__).with_name("READING.md").read_text(encoding="utf-8")
    return "\n".join([*parts, "", reading])


def _gpus() -> Iterator[str]:
    yield "## GPUs\n"
    yield (
        "SM: multiprocessors (AMD: compute units). F: bf16 FLOP per clock and multiprocessor (V100: fp16). "
        "MHz: the clock that gives the vendor's figures. MAMF: mamf-finder's figures "
        "@ their shapes: the mean of 100 products after 50 warm-ups, the L2 flushed between them. A burst is compared "
        "with them at that shape alone, and under the W of the row; without a shape, never. Copy: TB/s within the "
        "memory of good ones, a byte counting twice (DCGM's floor).\n"
    )
    measured = ("GB", "TB/s", "W", "L2 MB", "NVLink GB/s", "MAMF", "copy", "source")
    yield _table(("GPU", "ids", "SM", "F", "MHz", *_DTYPES, *measured), (_gpu(peak) for peak in PEAKS))


def _gpu(peak: Peak) -> list[str]:
    flop = peak.flop_per_clock.get("bf16") or peak.flop_per_clock.get("fp16")
    others = [f"{dtype} {mhz:g}" for dtype, mhz in peak.clocks_mhz.items()]
    tflops = [peak.tflops.get(dtype) for dtype in _DTYPES]
    if "bf16" not in peak.tflops and "fp16" in peak.tflops:
        tflops[2] = peak.tflops["fp16"]
    return [
        peak.name + _mark(peak, "row"),
        ", ".join(peak.ids) + _mark(peak, "ids"),
        _number(peak.sms) + _mark(peak, "sms"),
        _number(flop),
        "; ".join([_number(peak.boost_mhz), *others]) + _mark(peak, "boost_mhz"),
        *(_number(value) + _mark(peak, f"tflops.{dtype}") for dtype, value in zip(_DTYPES, tflops, strict=True)),
        _number(peak.memory_bytes, 1 << 30) + _mark(peak, "memory_bytes"),
        _number(peak.memory_bytes_per_s, 1e12) + _mark(peak, "memory_bytes_per_s"),
        _number(peak.power_w) + _mark(peak, "power_w"),
        _number(peak.l2_bytes, 1 << 20) + _mark(peak, "l2_bytes"),
        _number(peak.nvlink_bytes_per_s, 1e9),
        "; ".join(_mamf(peak)),
        _copy(peak),
        peak.source,
    ]


def _mamf(peak: Peak) -> Iterator[str]:
    for dtype, rate in peak.mamf_tflops.items():
        shape = peak.best_shapes.get(dtype)
        at = f" @{'x'.join(map(str, shape))}" if shape else ""
        yield f"{dtype} {rate:g}{at}{_mark(peak, f'mamf.{dtype}')}"


def _copy(peak: Peak) -> str:
    good, floor = peak.copy_bytes_per_s, peak.copy_floor_bytes_per_s
    measured = [] if good is None else [f"{good[0] / 1e12:g}–{good[1] / 1e12:g}"]
    return " ".join([*measured, *([] if floor is None else [f"({floor / 1e12:g})"])]) or "–"


def _doubts() -> Iterator[str]:
    yield "\n## What is doubtful\n"
    doubts = ([peak.name, f"`{what}`", why] for peak in PEAKS for what, why in peak.doubts.items())
    yield _table(("GPU", "what", "why"), doubts)


def _links() -> Iterator[str]:
    yield "\n## Links, GB/s in one direction\n"
    pcie = (
        [f"PCIe gen {gen} x16", _rate(link.wire), _range(link.measured), _rate(link.floor), link.source]
        for gen, link in links.PCIE.items()
    )
    rows = [*pcie]
    for peer in links.PEERS:
        name = f"{peer.name} ({', '.join(peer.models)}): {peer.links} x {_rate(peer.each)}"
        rows.append([name, _rate(peer.total), _range(peer.measured), _rate(peer.floor), peer.source])
    for host in links.HOST:
        both_ways = f"{_rate(host.to_device)} to the GPU, {_rate(host.to_host)} to the host"
        rows.append([f"{host.name} ({', '.join(host.models)})", _rate(host.wire), both_ways, "–", host.source])
    yield _table(("link", "wire", "measured", "field check's floor", "source"), rows)


def _busbw() -> Iterator[str]:
    yield "\n## busbw, GB/s\n"
    yield (
        "Compared at the same size, between two measured ones on the line over the logarithm of the size. Several "
        f"nodes: 8 GPUs with {busbw.MANY_NODES_NICS} each; without a figure at most r (gk - 1)/(k - 1), an estimate.\n"
    )
    curves = [*busbw.ONE_NODE, busbw.NVL72, *busbw.MANY_NODES]
    yield _table(("GPUs", "collective", "size: busbw", "source"), (_curve(curve) for curve in curves))
    ring = ", ".join(f"{model} {_rate(rate)}" for model, rate in busbw.RING.items())
    yield f"\nWithout NVLS (ring), large sizes: {ring} (NV). All-gather and reduce-scatter stay there."


def _curve(curve: Curve) -> list[str]:
    nodes = f"{curve.nodes} nodes x " if curve.nodes > 1 else ""
    points = ", ".join(f"{_size(size)}: {_rate(rate)}" for size, rate in sorted(curve.points.items()))
    source = f"{curve.source}; {curve.doubt}" if curve.doubt else curve.source
    return [f"{nodes}{curve.gpus} {curve.model}", curve.collective, points, source]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _mark(peak: Peak, what: str) -> str:
    if what == "row":
        return "" if peak.certain else " ?"
    return " ?" if what in peak.doubts else ""


def _number(value: float | None, unit: float = 1) -> str:
    return "–" if value is None else f"{value / unit:.5g}"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e9:.4g}"


def _range(values: tuple[float, float] | None) -> str:
    if values is None:
        return "–"
    return _rate(values[0]) if values[0] == values[1] else f"{_rate(values[0])}–{_rate(values[1])}"


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


if __name__ == "__main__":
    sys.stdout.write(document())
