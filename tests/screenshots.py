"""`python -m tests.screenshots [DIR]`: the README's pictures, made from simulated nodes.

SVG always, PNG too where ``rsvg-convert`` is installed. Two runs give the same pictures.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mltop.probes.active.supervisor.devices import refused
from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.model import GpuSample, JobReport, NodeState
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.output import say
from mltop.tui.app.session import Cancellable

NOW = 1_763_640_000.0  # 2025-11-20 12:00 UTC
RAN_S = 7_195.0
HOT_SEED = 2
HISTORY_S = 600
TRENDS_S = 30
GPUS = 8


class Done:
    """A dump that is over before it can be cancelled."""

    def cancel(self) -> None:
        """Nothing is left to stop."""


class StillSession:
    """Simulated nodes at one moment; rank 5 of their job has hung for ``hung_s`` (negative: not yet)."""

    def __init__(self, nodes: int, hung_s: float) -> None:
        from mltop.probes.demo.simulated import SimulatedJob, SimulatedNode

        self.title = "demo"
        names = tuple(f"node{number:02d}" for number in range(1, nodes + 1))
        started = NOW - RAN_S
        self._hung_s = hung_s
        of_job = names[:-1] or names
        self._job = SimulatedJob(of_job, GPUS, 5, started, NOW - hung_s)
        self._nodes = [
            SimulatedNode(
                name=name,
                number=position + 1,
                gpus=GPUS,
                interval_s=1.0,
                job=self._job,
                ranks=range(position * GPUS, (position + 1) * GPUS) if name in of_job else range(0),
                began_at=started,
                lost_gpu=position == nodes - 1 > 0,
                braked=position == nodes // 3 > 0,
            )
            for position, name in enumerate(names)
        ]

    def view(self) -> FleetView:
        return self.view_at(NOW)

    def view_at(self, now: float) -> FleetView:
        import msgspec

        from mltop.probes.model import Sample

        decoder = msgspec.json.Decoder(Sample)
        samples = [decoder.decode(node.sample_json(now)) for node in self._nodes]
        if len(samples) == 1:
            samples[0].gpus = self._gpus_with_a_hot_one(now)
        live = [NodeView(NodeState(sample.node, "live", "", 0.4), sample) for sample in samples]
        return FleetView(now + 0.4, tuple(live), int(now))

    def _gpus_with_a_hot_one(self, now: float) -> list[GpuSample]:
        from mltop.probes.demo.gpus import simulate
        from mltop.probes.demo.simulated import FIRST_PID

        ranks = [(FIRST_PID + gpu, gpu) for gpu in range(GPUS)]
        zero = self._job.started_at
        return simulate(now - zero, GPUS, HOT_SEED, ranks, self._job.hung_at - zero, culprit_gpu=5)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Nothing ever changes here."""

    def dump_stacks(
        self,
        nodes: Sequence[str] | None,
        on_progress: Callable[[StackProgress], None],
    ) -> Cancellable:
        world = self._job.world_size
        on_progress(StackProgress("done", 3, 3, world, world, 2.4, (self._report(),)))
        return Done()

    def _report(self) -> JobReport:
        """Three rounds of stacks, a second apart, through the real judge."""
        from mltop.probes.demo.simulated import JOB, rank_sample, rank_stacks
        from mltop.probes.judge.hang.evidence import JobEvidence, RankSeen
        from mltop.probes.judge.hang.verdict import report

        ranks = range(self._job.world_size)
        roster = [
            RankSeen(self._job.nodes[rank // GPUS], rank_sample(self._job, rank, NOW), quiet_s=self._hung_s)
            for rank in ranks
        ]
        dumps = [rank_stacks(self._job, rank, NOW - ago) for ago in (2.0, 1.0, 0.0) for rank in ranks]
        return report(JobEvidence(JOB, roster, dumps))

    def capture(self, on_done: Callable[[CaptureResult], None]) -> Cancellable:
        on_done(CaptureResult(Path(), error="not in a picture"))
        return Done()

    def run_probe(self, wanted: ProbeWanted, on_progress: Callable[[ProbeProgress], None]) -> Cancellable:
        """Over at once: simulated figures of all nodes, through the real judge."""
        from mltop.probes.demo.probes.replay import ProbeMachine, device_result
        from mltop.probes.demo.simulated import LOST_GPU
        from mltop.probes.investigate.probing.board import Board
        from mltop.probes.investigate.probing.report import Measured, judged
        from mltop.probes.model.probe import ProbeEvent

        board = Board()
        for node in self._nodes:
            hot, lost = 5 if node is self._nodes[1] else None, (LOST_GPU,) if node.lost_gpu else ()
            machine = ProbeMachine(node.name, node.number, GPUS, lost=lost, hot_gpu=hot)
            measured = machine.usable((), force=False)
            board.take(node.name, ProbeEvent("devices", data=machine.devices_data(measured)))
            for gpu in lost:
                refusal = machine.refusal(gpu, force=False)
                if refusal is not None:
                    board.take(node.name, refused(machine.device(gpu), refusal))
            for gpu in measured:
                data = device_result(machine, gpu, "matmul", "picture", dtype=wanted.dtype)
                board.take(node.name, ProbeEvent("result", device=machine.uuid(gpu), data=data))
        names = [node.name for node in self._nodes]
        report = judged(wanted, Measured(board, None, (), (), names))
        report.started_at, report.took_s = NOW - 12.0, 10.4
        on_progress(ProbeProgress(wanted, "done", "", 10.4, 120.0, board.devices(), tuple(board.failures), report))
        return Done()

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Picture:
    """What to press before the picture is taken."""

    name: str
    nodes: int
    keys: tuple[str, ...]
    hung_s: float
    size: tuple[int, int] = (120, 36)


PICTURES = (
    Picture("overview", 1, (), hung_s=-60.0, size=(120, 30)),
    Picture("ranks", 1, ("3",), hung_s=95.0, size=(120, 16)),
    Picture("stacks", 1, ("t",), hung_s=95.0, size=(120, 30)),
    Picture("gpu", 1, ("2", "j", "enter"), hung_s=-60.0, size=(120, 40)),
    Picture("links", 8, ("2", "n", "n", "n", "n", "n", "5"), hung_s=-60.0, size=(120, 32)),
    Picture("help", 1, ("question_mark",), hung_s=95.0, size=(120, 30)),
    Picture("fleet", 24, (), hung_s=-60.0),
    Picture("probes", 3, ("M", "enter"), hung_s=-60.0),
)


async def take(picture: Picture) -> str:
    """The SVG text of one picture."""
    from mltop.tui.app.app import MltopApp

    session = StillSession(picture.nodes, picture.hung_s)
    app = MltopApp(session)
    app.theme = "textual-dark"
    for ago in range(HISTORY_S, 0, -1):
        view = session.view_at(NOW - ago)
        app.history.feed(view)
        if ago <= TRENDS_S:
            app.trends.feed(view)
    async with app.run_test(size=picture.size) as pilot:
        while app.picture is None:
            await pilot.pause(0.01)
        for key in picture.keys:
            await pilot.press(key)
        await pilot.pause()
        app.redraw()
        await pilot.pause()
        svg = app.export_screenshot(title="mltop")
    # Without this, converters drop the blanks that columns are aligned with.
    return svg.replace("<svg ", '<svg xml:space="preserve" ', 1)


def write_png(svg: Path) -> bool:
    """PNG beside the SVG; False when no converter is installed. Raises CalledProcessError when it fails."""
    converter = shutil.which("rsvg-convert")
    if converter is None:
        return False
    subprocess.run([converter, "--zoom", "1", "-o", str(svg.with_suffix(".png")), str(svg)], check=True)
    return True


def main(arguments: Sequence[str]) -> None:
    # The pictures must not depend on where or in which terminal they are made.
    os.environ.update(TZ="UTC", TERM="xterm-256color", COLORTERM="truecolor")
    os.environ.pop("NO_COLOR", None)
    time.tzset()
    directory = Path(arguments[0] if arguments else "screenshots")
    directory.mkdir(parents=True, exist_ok=True)
    converted = True
    for picture in PICTURES:
        svg = directory / f"{picture.name}.svg"
        svg.write_text(asyncio.run(take(picture)), encoding="utf-8")
        converted = write_png(svg) and converted
    if not converted:
        say("screenshots: no PNG files: rsvg-convert is not installed (librsvg2-bin)")


if __name__ == "__main__":
    main(sys.argv[1:])
