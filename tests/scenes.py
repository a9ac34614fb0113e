"""Simulated nodes in every state that the first screen is judged in, and the app that shows one of them."""

from __future__ import annotations

import functools
import html
import itertools
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mltop.probes.active.supervisor.gate import refused
from mltop.probes.demo.gpus import simulate
from mltop.probes.demo.probes.replay import ProbeMachine, device_result
from mltop.probes.demo.simulated import FIRST_PID, JOB, LOST_GPU, SimulatedJob, SimulatedNode, rank_sample, rank_stacks
from mltop.probes.investigate.acting import Facts, RankProcess, Results
from mltop.probes.investigate.capture import load
from mltop.probes.investigate.probing.board import Board
from mltop.probes.investigate.probing.report import Measured, judged
from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.judge.hang.evidence import JobEvidence, RankSeen
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import Gap, JobReport, NodeState, RankStacks, Sample, to_json
from mltop.probes.model.acts import DiagResult, LogTail, SignalName, SignalResult
from mltop.probes.model.probe import PastResult, ProbeEvent
from mltop.probes.reach.view import Connection, FleetView, NodeView
from mltop.probes.record.decoding import decode_head
from mltop.probes.record.recordings import recording
from mltop.tui.app.past.replay import ReplaySession
from mltop.tui.app.stalls import Stalls

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from mltop.tui.app.app import MltopApp

NOW = 1_763_640_000.0  # 2025-11-20 12:00 UTC
RAN_S = 7_195.0
HOT_SEED = 2
GPUS = 8
JUDGING_S = 60.0  # that pass for the feed between two views: in these it may judge all nodes of a fleet


@dataclass(frozen=True)
class Scene:
    """``nodes`` of 8 GPUs, whose job's rank 5 (or its last) has hung for ``hung_s`` (negative: not yet). ``ranks``: on
    a single node. ``others``: so many of the nodes run a job that is well. ``watched_s``: how long mltop has looked.
    ``kept``: the dump that it was told by is there to be shown.
    ``replayed``: it is a recording of that time, open at its end. ``at``: when it is looked at, unix s.
    """

    nodes: int = 1
    hung_s: float = -60.0
    ranks: int = GPUS
    others: int = 0
    hot: bool = False
    lost: bool = False
    braked: bool = False
    no_driver: bool = False
    connecting: bool = False
    watched_s: float = 800.0
    step_s: float = 2.0
    dumped: bool = True
    kept: bool = False
    replayed: bool = False
    at: float = NOW


SCENES = {
    "fine": Scene(),
    "hung": Scene(hung_s=95.0, ranks=4, kept=True),
    "hung-64": Scene(nodes=64, hung_s=95.0, others=5, lost=True, braked=True, step_s=5.0, kept=True),
    "hung-512": Scene(nodes=512, hung_s=95.0, lost=True, step_s=40.0, watched_s=320.0, kept=True),
    "throttled": Scene(hot=True),
    "lost": Scene(nodes=8, lost=True),
    "two-jobs": Scene(nodes=8, hung_s=95.0, others=3, kept=True),
    "no-driver": Scene(ranks=0, no_driver=True, watched_s=60.0),
    "starting": Scene(nodes=4, connecting=True, watched_s=0.0),
    "after-5-s": Scene(watched_s=5.0, step_s=1.0),
    "replay": Scene(hung_s=95.0, ranks=4, watched_s=300.0, step_s=1.0, replayed=True),
}


class Done:
    """A dump that is over before it can be cancelled."""

    def cancel(self) -> None:
        """Nothing is left to stop."""


class StillSession:
    """The nodes of a scene at one moment."""

    def __init__(self, scene: Scene) -> None:
        self.title = "demo"
        self.scene = scene
        started = NOW - RAN_S
        names = tuple(f"node{number:02d}" for number in range(1, scene.nodes + 1))
        idle = int(scene.nodes > 1)
        mine = names[: scene.nodes - scene.others - idle] or names
        culprit = min(5, scene.ranks - 1)
        self.job = SimulatedJob(mine, min(GPUS, scene.ranks) or GPUS, culprit, started, scene.at - scene.hung_s)
        other = SimulatedJob(
            names[len(mine) : len(mine) + scene.others] or names, GPUS, 5, started, NOW + 1e6, "eval-8b"
        )
        self._others = set(other.nodes) if scene.others else set()
        self._nodes = [self._node(name, at, other) for at, name in enumerate(names)]
        self._decoder = msgspec.json.Decoder(Sample)

    def _node(self, name: str, at: int, other: SimulatedJob) -> SimulatedNode:
        scene, job = self.scene, other if name in self._others else self.job
        count = job.ranks_per_node if name in job.nodes and scene.ranks else 0
        first = job.nodes.index(name) * job.ranks_per_node if count else 0
        return SimulatedNode(
            name=name,
            number=at + 1,
            gpus=GPUS,
            interval_s=max(1.0, scene.step_s) if scene.nodes > 1 else 1.0,
            job=job,
            ranks=range(first, first + count),
            began_at=NOW - RAN_S,
            lost_gpu=scene.lost and at == scene.nodes - 1,
            braked=scene.braked and at == scene.nodes // 3,
        )

    def view(self) -> FleetView:
        return self.view_at(self.scene.at)

    def view_at(self, now: float) -> FleetView:
        if self.scene.connecting:
            asked = Connection(trying="ssh", tried_at=now - 12.0)
            states = [NodeState(node.name, "connecting", "starting ssh") for node in self._nodes]
            return FleetView(now, tuple([NodeView(state, connection=asked) for state in states]), int(now))
        samples = [self._altered(self._decoder.decode(to_json(node.sample(now))), now) for node in self._nodes]
        live = [NodeView(NodeState(sample.node, "live", "", 0.4), sample) for sample in samples]
        return FleetView(now + 0.4, tuple(live), int(now))

    def _altered(self, sample: Sample, now: float) -> Sample:
        scene = self.scene
        if scene.hot:
            zero = self.job.started_at
            ranks = [(FIRST_PID + gpu, gpu) for gpu in range(scene.ranks)]
            sample.gpus = simulate(now - zero, GPUS, HOT_SEED, ranks, self.job.hung_at - zero, culprit_gpu=5)
        if scene.no_driver:
            sample.gpus, sample.pci = [], []
            why = "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)"
            fix = "install the NVIDIA driver; in a container: start it with --gpus all"
            sample.gaps = [Gap("nvml", why, fix, kind="unsupported", code="no_driver")]
        return sample

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Nothing ever changes here."""

    def dump_stacks(
        self,
        nodes: Sequence[str] | None,
        on_progress: Callable[[StackProgress], None],
    ) -> Done:
        world = self.job.world_size
        on_progress(StackProgress("done", 3, 3, world, world, 2.4, (self.report(),)))
        return Done()

    @functools.cache  # noqa: B019 - a session lives for a picture
    def report(self) -> JobReport:
        """Three rounds of stacks, a second apart, through the real judge."""
        job, ranks, now = self.job, range(self.job.world_size), self.scene.at
        roster = [
            RankSeen(job.nodes[rank // job.ranks_per_node], rank_sample(job, rank, now), quiet_s=self.scene.hung_s)
            for rank in ranks
        ]
        dumps = [rank_stacks(job, rank, now - ago) for ago in (2.0, 1.0, 0.0) for rank in ranks]
        return report(JobEvidence(JOB, roster, dumps))

    def capture(self, on_done: Callable[[CaptureResult], None], **_: Any) -> Done:
        on_done(CaptureResult(Path(), error="not in a picture"))
        return Done()

    def log_tail(self, process: RankProcess, lines: int, on_done: Callable[[list[LogTail], str], None]) -> Done:
        """What a rank of the demo's job would have written until it fell still."""
        stood = self.scene.hung_s if self.scene.hung_s > 0 else 0.0
        at = [self.scene.at - stood - 0.6 * step for step in range(min(lines, 60))]
        said = [f"step {10_000 - step} loss 2.{(37 * step) % 89 + 10} lr 3.0e-05" for step in range(len(at))]
        told = [f"{time.strftime('%H:%M:%S', time.gmtime(when))} {text}" for when, text in zip(at, said, strict=True)]
        file = f"/home/ada/run-17/logs/rank{process.rank}.log"
        on_done([LogTail(file, 91_482, self.scene.at - stood, told[::-1])], "")
        return Done()

    def signal_facts(self, processes: Sequence[RankProcess], on_done: Callable[[Facts], None]) -> Done:
        on_done({})
        return Done()

    def send_signal(
        self, signal: SignalName, processes: Sequence[RankProcess], on_done: Callable[[Results], None]
    ) -> Done:
        on_done({each.key: SignalResult(each.pid, "unknown", why="not in a picture") for each in processes})
        return Done()

    def dump_native(self, process: RankProcess, on_done: Callable[[RankStacks | None, str], None]) -> Done:
        on_done(None, "not in a picture")
        return Done()

    def diagnose(self, node: str, on_done: Callable[[list[DiagResult], str], None]) -> Done:
        on_done([], "not in a picture")
        return Done()

    def run_probe(self, wanted: ProbeWanted, on_progress: Callable[[ProbeProgress], None]) -> Done:
        """Over at once: simulated figures of all nodes, through the real judge."""
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
        told = judged(wanted, Measured(board, None, (), (), names))
        told.started_at, told.took_s = self.scene.at - 12.0, 10.4
        on_progress(ProbeProgress(wanted, "done", "", 10.4, 120.0, board.devices(), tuple(board.failures), told))
        return Done()

    def watch(self, nodes: Sequence[str]) -> None:
        """All samples are whole."""

    def past(self) -> Sequence[PastResult]:
        return ()

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Clock:
    """Seconds that go on only when somebody says so."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def watched(scene: Scene) -> MltopApp:
    """The app after it has watched a scene for a while; it runs from here on by itself."""
    from mltop.tui.app.app import MltopApp

    if scene.replayed:
        return _replayed(scene)
    session, clock = StillSession(scene), Clock()
    app = MltopApp(session, clock=clock)
    times = [scene.at - scene.watched_s + step * scene.step_s for step in range(round(scene.watched_s / scene.step_s))]
    for now in [*times, scene.at] if not scene.connecting else []:
        view = session.view_at(now)
        clock.now_s += JUDGING_S
        app.earlier.feed(view)
        app.history.see(app.feed.see(view))
    if scene.hung_s > 0 and scene.dumped:
        report = session.report()
        app.feed.take_stacks([report])
        if scene.kept:
            app.investigation.start_dump()
            world = session.job.world_size
            done = StackProgress("done", 3, 3, world, world, 2.4, (report,))
            app.investigation.take_progress(done, scene.at)
        clock.now_s += JUDGING_S
        app.feed.see(session.view())
    return app


def _replayed(scene: Scene) -> MltopApp:
    from mltop.tui.app.app import MltopApp

    session = StillSession(scene)
    times = [scene.at - step * scene.step_s for step in range(round(scene.watched_s / scene.step_s), -1, -1)]
    samples = [view.sample for now in times for view in session.view_at(now).nodes if view.sample is not None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hang.jsonl"
        path.write_bytes(recording(samples))
        content = load(path, decode_head)
    return MltopApp(ReplaySession(path, content), stalls=Stalls(dump="never"))


async def shown(app: MltopApp, pilot: Pilot[None], keys: Sequence[str] = ()) -> None:
    """Once the app shows a picture, and after these keys. A recording stands at its end, and the rules have seen it."""
    while app.picture is None:
        await pilot.pause(0.01)
    if app.player is not None:
        await pilot.press("p", "end")
        while app.history.judged_share < 1.0:
            await pilot.pause(0.01)
    for key in keys:
        await pilot.press(key)
    await pilot.pause()
    app.redraw()
    await pilot.pause()


CELL_WIDTH, LINE_HEIGHT, FIRST_TOP, BASELINE = 12.2, 24.4, 1.5, 20.0  # of Rich's SVG, in its units
BLOCKS = "▁▂▃▄▅▆▇█"
_TEXT = re.compile(r'<text class="([^"]+)" x="([\d.]+)" y="([\d.]+)"([^>]*)>([^<]*[▁-█][^<]*)</text>')


def svg_of(app: MltopApp) -> str:
    """Bars are rectangles, as terminals draw them: glyphs of a font leave stripes between the lines."""
    svg = app.export_screenshot(title="mltop")
    # Without the attribute converters drop the blanks that columns are aligned with.
    return _TEXT.sub(_bars, svg.replace("<svg ", '<svg xml:space="preserve" ', 1))


def _bars(text: re.Match[str]) -> str:
    style, left, baseline, attributes, chars = text.groups()
    bottom = float(baseline) - BASELINE + FIRST_TOP + LINE_HEIGHT
    drawn, column = [], 0
    for char, run in itertools.groupby(html.unescape(chars)):
        count = len([*run])
        if char in BLOCKS:
            height = LINE_HEIGHT * (BLOCKS.index(char) + 1) / len(BLOCKS)
            x, y = float(left) + column * CELL_WIDTH, bottom - height
            # A little more than the cell, as the backgrounds are: without it, edges are seen.
            size = f'width="{count * CELL_WIDTH + 0.25:.2f}" height="{height + 0.25:.2f}"'
            drawn.append(f'<rect class="{style}" x="{x:.2f}" y="{y:.2f}" {size} shape-rendering="crispEdges"/>')
        column += count
    rest = re.sub(f"[{BLOCKS}]", "&#160;", chars)
    return f'<text class="{style}" x="{left}" y="{baseline}"{attributes}>{rest}</text>' + "".join(drawn)


def text_of(app: MltopApp) -> str:
    """The screen as lines of text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)
