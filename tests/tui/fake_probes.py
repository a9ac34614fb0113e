"""Scripted active probes: progress of matmul, collectives and pairs, and a session that plays it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from mltop.probes.investigate.probing.wanted import DeviceProgress, ProbeProgress, ProbeWanted
from mltop.probes.model.probe import (
    CollectiveResult,
    CopiesResult,
    MatmulResult,
    MemoryResult,
    PairResult,
    PastResult,
    PeerCopy,
    Phase,
    ProbeFailure,
    ProbeReport,
    ProbeVerdict,
    RankArrival,
    Suspect,
)
from mltop.probes.reach.view import FleetView
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import T0

H100 = "NVIDIA H100 80GB HBM3"
MIB, GIB = 2**20, 2**30
VERSIONS = {"torch": "2.5.1", "driver": "550.90.07"}
SUSTAINED_KEY = "matmul bf16 sustained 8192x8192x8192"


class FakeProbe:
    """One running probe: ``say(progress)`` reports from another thread, ``finish()`` the rest of its script."""

    def __init__(self, script: Sequence[ProbeProgress], on_progress: Callable[[ProbeProgress], None]) -> None:
        self.cancelled = 0
        self._script = list(script)
        self._on_progress = on_progress
        self.last: ProbeProgress | None = None

    def say(self, progress: ProbeProgress) -> None:
        self.last = progress
        thread = threading.Thread(target=self._on_progress, args=(progress,), daemon=True)
        thread.start()
        thread.join(5)

    def advance(self) -> None:
        self.say(self._script.pop(0))

    def finish(self) -> None:
        while self._script:
            self.advance()

    def cancel(self) -> None:
        """As real ones: the last report comes when everything has ended; ``end_cancelled`` sends it."""
        self.cancelled += 1

    def end_cancelled(self) -> None:
        assert self.last is not None
        self.say(replace(self.last, phase="cancelled", text="", elapsed_s=self.last.elapsed_s + 2))


class ProbeSession(FakeSession):
    """``script``: what a probe of these wishes reports; ``probes``, ``asked``: what the screen started."""

    def __init__(
        self,
        views: Sequence[FleetView] | None = None,
        script: Callable[[ProbeWanted], Sequence[ProbeProgress]] | None = None,
        past: Sequence[PastResult] = (),
        title: str = "this machine",
    ) -> None:
        super().__init__(**({"views": views} if views is not None else {}), title=title)  # type: ignore[arg-type]
        self.probes: list[FakeProbe] = []
        self.asked: list[ProbeWanted] = []
        self.past_read = 0
        self._probe_script = script or matmul_script
        self._past = past

    def run_probe(self, wanted: ProbeWanted, on_progress: Callable[[ProbeProgress], None]) -> FakeProbe:
        self.asked.append(wanted)
        self.probes.append(FakeProbe(self._probe_script(wanted), on_progress))
        return self.probes[-1]

    def past(self) -> Sequence[PastResult]:
        self.past_read += 1
        return self._past


# matmul: GPU 3 of node01 is hot and slow, GPU 6 is in use, GPU 7 computed wrong bits.


def phase(clock: float = 1755, power: float = 698, temperature: float = 64, **share: float) -> Phase:
    return Phase("sustained", 3.0, power, 700, 700, clock, 1980, temperature, dict(share))


def matmul_result(node: str, gpu: int, tflops: float = 720, **fields: object) -> MatmulResult:
    result = MatmulResult(
        node,
        gpu,
        f"GPU-{node}-{gpu}",
        H100,
        pci_device="2330",
        seconds=10.1,
        versions=dict(VERSIONS),
        phases=[phase(temperature=60 + gpu, sw_power_cap=0.98)],
        shape=[2048, 2048, 13312],
        iterations=100,
        burst_tflops=tflops * 1.09,
        burst_median_tflops=tflops * 1.09,
        burst_p5_tflops=tflops * 1.05,
        burst_best_tflops=tflops * 1.12,
        sustained_shape=[8192, 8192, 8192],
        sustained_tflops=tflops,
        burst_efficiency=0.81,
        sustained_efficiency=0.74,
        checked_iterations=64,
        checked_pflop=3.1,
    )
    return replace(result, **fields)  # type: ignore[arg-type]


def matmul_results(node: str = "node01") -> list[MatmulResult]:
    hot = [phase(1210, 512, 91, hw_thermal=0.62, sw_power_cap=0.1)]
    found = [matmul_result(node, gpu, 716 + 2 * gpu) for gpu in range(8) if gpu != 6]
    found[3] = matmul_result(node, 3, 498, phases=hot, sustained_efficiency=0.75)
    found[6] = matmul_result(node, 7, 727, corrupt_iterations=3)
    return found


REFUSED = ProbeFailure(
    "node01", "in use by ada: pid 8126, python3.11 train.py", 6, stage="gate", fix="end it, or --force", refused=True
)


def devices(results: Sequence[MatmulResult], stage: str = "", fraction: float | None = None) -> list[DeviceProgress]:
    found = [DeviceProgress(one.node, one.gpu, one.uuid, one.name, stage=stage, fraction=fraction) for one in results]
    found.insert(6, DeviceProgress("node01", 6, "GPU-node01-6", H100, problem=REFUSED.why))
    return found


def matmul_verdict() -> ProbeVerdict:
    return ProbeVerdict(
        "GPU 7 on node01 computes wrong bits; GPU 3 on node01 is 31 % slower than its peers: too hot",
        [
            Suspect("node01", "3 of 64 GEMMs gave other bits than the first", 7, action="take it out of service"),
            Suspect(
                "node01",
                "498 against 720 TFLOPS: held at 1210 MHz by heat, 91 C, neighbours 60 to 67 C",
                3,
                action="check its fan, its heat sink and the inlet",
            ),
        ],
        ["the other 5 GPUs: 716-726 TFLOPS without a pause, at their power limit as is normal under full load"],
    )


def matmul_script(wanted: ProbeWanted) -> list[ProbeProgress]:
    """Importing, bursts, half of the results, done."""
    results = matmul_results()
    begun = ProbeReport("matmul", T0, results=[], failures=[REFUSED])
    partly = [
        replace(one, stage="sustained", fraction=0.2 + 0.1 * (one.gpu or 0)) if not one.problem else one
        for one in devices(results)
    ]
    partly[0] = replace(partly[0], stage="done", fraction=1.0, result=results[0])
    final = [
        replace(one, stage="done", fraction=1.0, result=next(r for r in results if r.gpu == one.gpu))
        if not one.problem
        else one
        for one in devices(results)
    ]
    report = ProbeReport("matmul", T0, 14.2, list(results), [REFUSED], matmul_verdict())
    progress = ProbeProgress(wanted, "running", deadline_s=120.0, failures=(REFUSED,))
    return [
        replace(progress, text="node01: import torch", elapsed_s=2.1, devices=tuple(devices(results, "import torch"))),
        replace(progress, elapsed_s=9.4, devices=tuple(partly), report=begun, text="1 of 8 measured"),
        replace(progress, phase="done", elapsed_s=14.2, devices=tuple(final), report=report),
    ]


def past_results(node: str = "node01") -> list[PastResult]:
    """Of GPU 3, when it was well; the last with another driver."""
    found = [
        PastResult(f"GPU-{node}-3", SUSTAINED_KEY, 715.0 + 3 * (at % 3), T0 - 86400 * (20 - 2 * at), dict(VERSIONS))
        for at in range(8)
    ]
    burst = [replace(one, key="matmul bf16 burst", value=one.value * 1.09) for one in found[-3:]]
    return [*found, *burst]


# Other kinds that measure each device.


def memory_script(wanted: ProbeWanted) -> list[ProbeProgress]:
    results = [
        MemoryResult(
            "node01", gpu, f"GPU-node01-{gpu}", H100, versions=dict(VERSIONS), phases=[phase()], size_bytes=GIB,
            iterations=20, copy_bytes_per_s=2.9e12 - (8e11 if gpu == 5 else 1e9 * gpu), copy_best_bytes_per_s=2.93e12,
            intact=True,
        )
        for gpu in range(8)
    ]  # fmt: skip
    return _done(wanted, results, ProbeVerdict("GPU 5 on node01 copies 28 % slower than its peers"))


def copies_script(wanted: ProbeWanted) -> list[ProbeProgress]:
    results = [
        CopiesResult(
            "node01", gpu, f"GPU-node01-{gpu}", H100, versions=dict(VERSIONS),
            phases=[replace(phase(), pcie_gen=5, pcie_width=8 if gpu == 2 else 16)], size_bytes=256 * MIB,
            to_device_bytes_per_s=26e9 if gpu == 2 else 53.1e9, to_host_bytes_per_s=26.2e9 if gpu == 2 else 54e9,
            to_device_together_bytes_per_s=22e9, to_host_together_bytes_per_s=24e9,
            peers=[
                PeerCopy(to, 3.9e10 if {gpu, to} == {1, 4} else 3.7e11 + to * 1e9, {gpu, to} != {1, 4})
                for to in range(8) if to != gpu
            ],
            intact=True,
        )
        for gpu in range(8)
    ]  # fmt: skip
    return _done(wanted, results, ProbeVerdict("GPU 2 on node01 has 8 PCIe lanes instead of 16"))


def _done(wanted: ProbeWanted, results: Sequence[object], verdict: ProbeVerdict) -> list[ProbeProgress]:
    report = ProbeReport(wanted.kind, T0, 11.0, list(results), verdict=verdict)
    return [ProbeProgress(wanted, "done", elapsed_s=11.0, report=report)]


# Collectives: rank 5 comes 30 ms late.


def collective(size: int, busbw: float, ranks: int = 8, late_s: float = 0.03) -> CollectiveResult:
    time_s = size / busbw * 2 * (ranks - 1) / ranks + late_s
    return CollectiveResult(
        "all-reduce",
        "nccl",
        size,
        ranks,
        ["node01"],
        20,
        time_s,
        time_s * 0.97,
        time_s * 1.2,
        size / time_s,
        size / time_s * 2 * (ranks - 1) / ranks,
        arrivals=[
            RankArrival(rank, "node01", rank, time_s - late_s * (rank == 5), late_s * (rank == 5) + 1e-5 * rank, 1e-3)
            for rank in range(ranks)
        ],
        path="NCCL",
        expected_busbw_bytes_per_s=busbw if size >= 64 * MIB else None,
        expected_source="H100 SXM, stas00",
    )


COMMAND = (
    "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.1:29400 collective_bench.py"
    " --collective all-reduce --backend nccl --sizes 1048576,268435456,1073741824"
)


def all_reduce_script(wanted: ProbeWanted) -> list[ProbeProgress]:
    """Ranks start, then three sizes; of a sweep twelve."""
    steps = range(20, 31) if wanted.sweep else (20, 28, 30)
    rates = {20: 3e10, 21: 6e10, 22: 1e11, 23: 1.6e11, 24: 2.2e11, 25: 2.9e11, 26: 3.62e11, 27: 4e11}
    rates |= {28: 4.23e11, 29: 4.38e11, 30: 4.66e11}
    results = [collective(2**step, rates[step]) for step in steps]
    starting = [
        DeviceProgress("node01", gpu, f"GPU-node01-{gpu}", H100, gpu, "init" if gpu < 6 else "import torch", None)
        for gpu in range(8)
    ]
    verdict = ProbeVerdict(
        "rank 5 (node01 GPU 5) comes last in every collective, by 30 ms; 7 ranks wait for it",
        [Suspect("node01", "30 ms late at every size, while its own work takes as long as that of others", 5, 5)],
        ["NVLS was not used: ring numbers are to be expected"],
    )
    report = ProbeReport(
        "all-reduce", T0, 12.4, list(results), verdict=verdict, command=COMMAND,
        settings=["NVLink, ring over 24 channels", "NVLS off: 4 GPUs or fewer, or the fabric manager does not run"],
    )  # fmt: skip
    progress = ProbeProgress(wanted, "running", deadline_s=60.0)
    return [
        replace(progress, phase="connecting", text="asking 1 node", elapsed_s=0.3),
        replace(progress, text="6 of 8 ranks joined", elapsed_s=6.2, devices=tuple(starting)),
        replace(progress, phase="done", elapsed_s=12.4, devices=tuple(starting), report=report),
    ]


# Pairs: node007 is slow with everybody, node002 and node005 do not reach each other.


def pairs_script(wanted: ProbeWanted, nodes: int = 10) -> list[ProbeProgress]:
    names = [f"node{number + 1:03d}" for number in range(nodes)]
    results = []
    for turn in range(nodes - 1):  # the circle method
        circle = [names[0], *(names[1:][turn:] + names[1:][:turn])]
        for first, second in zip(circle[: nodes // 2], reversed(circle[nodes // 2 :]), strict=True):
            pair = sorted((first, second))
            busbw: float | None = 4.4e10 if "node007" not in pair else 1.9e10
            why = ""
            if pair == ["node002", "node005"]:
                busbw, why = None, "connect timed out: a firewall, or no route"
            results.append(PairResult(turn + 1, pair, 256 * MIB, busbw, why))
    verdict = ProbeVerdict(
        "node007 is slow with every other node; node002 and node005 do not reach each other",
        [Suspect("node007", "19 GB/s with each of 9 nodes, others 44 GB/s", action="look at its ports: 5")],
    )
    report = ProbeReport("pairs", T0, 41.0, list(results), verdict=verdict, command=COMMAND)
    return [ProbeProgress(wanted, "done", elapsed_s=41.0, report=report)]


def script_of(wanted: ProbeWanted) -> Sequence[ProbeProgress]:
    """Of any kind."""
    return {
        "matmul": matmul_script,
        "memory": memory_script,
        "copies": copies_script,
        "all-reduce": all_reduce_script,
        "pairs": pairs_script,
    }[wanted.kind](wanted)


def big_script(wanted: ProbeWanted, nodes: int = 512) -> list[ProbeProgress]:
    """matmul on ``nodes`` nodes of 8 GPUs; node300 GPU 4 is the slowest."""
    results = [
        matmul_result(f"node{node + 1:03d}", gpu, 498 if (node, gpu) == (299, 4) else 716 + (node * 7 + gpu) % 9)
        for node in range(nodes)
        for gpu in range(8)
    ]
    report = ProbeReport("matmul", T0, 14.2, list(results), verdict=ProbeVerdict("GPU 4 on node300 is 31 % slower"))
    found = [
        DeviceProgress(one.node, one.gpu, one.uuid, one.name, stage="done", fraction=1.0, result=one) for one in results
    ]
    return [ProbeProgress(wanted, "done", elapsed_s=14.2, devices=tuple(found), report=report)]
