"""Every health rule fires where it should: fake machines, real agents, the real hub, light frames, the real rules."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mltop.probes.judge.health.registry import JOB_RULES, RULES
from mltop.probes.judge.health.rule import Expectations
from mltop.probes.reach.hub import Hub
from mltop.tui.state.lists import Lemon, change_lemons
from tests.driven import scenes_gpu, scenes_host, scenes_jobs, scenes_links
from tests.driven.node import Node
from tests.driven.scene import Scene
from tests.driven.scenes_gpu import LEMON
from tests.driven.watch import Fired, Watcher, judged_slowly
from tests.fakes.libc import compiled
from tests.hubs import opened, patient

SCENES: tuple[Scene, ...] = (*scenes_gpu.SCENES, *scenes_links.SCENES, *scenes_host.SCENES, *scenes_jobs.SCENES)
LIVE = tuple(scene for scene in SCENES if scene.apart_s == 1)
RESTARTED = (*scenes_gpu.RESTARTED, *scenes_host.RESTARTED)
TABLE = Path(__file__).with_name("RULES_DRIVEN.md")
FIRST_SAMPLES = 3
HEALTHY_SAMPLES = 11  # all counters have been read twice
BROKEN_SAMPLES = 22
MORE_SAMPLES = BROKEN_SAMPLES  # in a row: nothing moves while it is judged
MOST_S = 300.0
MOVE_S = 0.2
HEAD = """# Which rules have fired

Each was driven the whole way by `tests/system/commands/test_rules_driven.py`: a fake machine, an agent with its
collectors, the hub, light frames, the rules. The test makes sure that this is the list of all rules, and that it is
true.

| Rule | What happens | Fired |
|---|---|---|"""


@dataclass
class Driven:
    """What was seen: while all was well, after it was broken, and with samples farther apart: by how many seconds, and
    whether as after a job.
    """

    healthy: dict[tuple[str, str], str] = field(default_factory=dict)
    live: Fired = field(default_factory=Fired)
    slowly: dict[tuple[int, bool], Fired] = field(default_factory=dict)

    def fired(self, scene: Scene) -> bool:
        found = self.live if scene.apart_s == 1 else self.slowly.get((scene.apart_s, scene.vacated), Fired())
        return found.has(nodes_of(scene), scene.rule)


def nodes_of(scene: Scene) -> tuple[str, ...]:
    return scenes_jobs.PARTNERS.get(scene.on, (scene.on,))


class Stage:
    """All nodes and what happens to them: each turn of a node lasts for one sample or more."""

    def __init__(self, directory: Path) -> None:
        names = dict.fromkeys(name for scene in SCENES for name in nodes_of(scene))
        libc = compiled(directory)
        self.nodes = {name: Node(directory, libc, name, **scenes_jobs.PLACES.get(name, {})) for name in names}
        scenes_links.with_roce_and_efa(self.nodes["cloud"])
        self._acted_s: float | None = None
        self._moved_s = 0.0
        self._turns: Counter[str] = Counter()
        self._samples: dict[str, int] = {}

    def act(self) -> None:
        for scene in SCENES:
            scene.act(self.nodes[scene.on])
        scenes_jobs.all_spin(self.nodes["odd-2"])
        for node in self.nodes.values():
            node.nvml.write()
        self._acted_s = time.monotonic()

    def move(self, samples: Callable[[str], int]) -> None:
        now = time.monotonic()
        if now - self._moved_s < MOVE_S:
            return
        self._moved_s = now
        for name in self.nodes:
            # Not the samples themselves: of a busy machine every third may be the only one that a move meets.
            if self._samples.get(name) != samples(name):
                self._samples[name] = samples(name)
                self._turns[name] += 1
        for scene in SCENES:
            if scene.moves is not None:
                seconds = -1.0 if self._acted_s is None else now - self._acted_s
                scene.moves(self.nodes[scene.on], seconds, self._turns[scene.on])


@contextmanager
def watched(stage: Stage) -> Iterator[tuple[Hub, Watcher]]:
    channels = [node.channel() for node in stage.nodes.values()]
    with opened(*channels, limits=patient(retry_first_s=0.1), interval_s=1.0) as hub:
        hub.watch(None)
        yield hub, Watcher(hub)


def drive(directory: Path) -> Driven:
    stage, driven = Stage(directory), Driven()
    stage.move(lambda _: 0)
    with watched(stage) as (hub, watcher):
        driven.live = watcher.fired

        def seen(samples: int) -> bool:
            return all(watcher.samples(name) >= samples for name in stage.nodes)

        def move() -> None:
            stage.move(watcher.samples)

        assert watcher.until(lambda: seen(FIRST_SAMPLES), MOST_S, move), "no samples"
        begin_anew(hub, stage.nodes)
        assert watcher.until(lambda: seen(HEALTHY_SAMPLES), MOST_S, move), "no samples"
        driven.healthy = dict(watcher.fired.said)
        acted_at = time.time()
        stage.act()
        begin_anew(hub, RESTARTED)
        wanted = HEALTHY_SAMPLES + BROKEN_SAMPLES
        deadline = time.monotonic() + MOST_S
        watcher.until(lambda: seen(wanted) and all(driven.fired(scene) for scene in LIVE), MOST_S, move)
        judge_again(driven, watcher, acted_at)
        # What takes minutes needs many samples of the right kind, and a busy machine does not move in every one.
        while time.monotonic() < deadline and not all(map(driven.fired, SCENES)):
            wanted = min(map(watcher.samples, stage.nodes)) + MORE_SAMPLES
            watcher.until(lambda wanted=wanted: seen(wanted), deadline - time.monotonic(), move)
            judge_again(driven, watcher, acted_at)
    return driven


def judge_again(driven: Driven, watcher: Watcher, acted_at: float) -> None:
    """All frames so far, as if they had come as far apart as their scenes want it."""
    for way in sorted({(scene.apart_s, scene.vacated) for scene in SCENES if scene.apart_s != 1}):
        names = {name for scene in SCENES if (scene.apart_s, scene.vacated) == way for name in nodes_of(scene)}
        frames = [frame for name in names for frame in watcher.frames[name]]
        asked = Expectations(lemons={LEMON: "broken"}, vacated=way[1])
        before, after = judged_slowly(frames, way[0], asked, acted_at)
        driven.healthy |= before.said
        driven.slowly.setdefault(way, Fired()).join(after)


def begin_anew(hub: Hub, names: Iterable[str]) -> None:
    """The agents die, and the hub starts others: their first samples are whole ones, of everything."""
    for name in names:
        hello = hub.node(name).connection.hello
        assert hello is not None
        os.kill(hello.pid, signal.SIGKILL)


def table(driven: Driven) -> str:
    lines = [HEAD]
    for scene in sorted(SCENES, key=lambda one: one.rule):
        how = (
            "no"
            if not driven.fired(scene)
            else "yes"
            if scene.apart_s == 1
            else f"yes, with samples {scene.apart_s} s apart"
        )
        lines.append(f"| `{scene.rule}` | {scene.words} | {how} |")
    return "\n".join(lines) + "\n"


def test_every_rule_fires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_STATE_DIR", str(tmp_path / "state"))
    change_lemons(lambda known: known.update({LEMON: Lemon(LEMON, "broken")}))
    driven = drive(tmp_path)
    assert driven.healthy == {}
    assert [scene.rule for scene in SCENES if not driven.fired(scene)] == []
    made = tmp_path / TABLE.name
    made.write_text(table(driven))
    assert TABLE.read_text() == made.read_text(), f"cp {made} {TABLE}"


def test_no_rule_is_left_out() -> None:
    rules = [rule.id for rule in (*RULES, *JOB_RULES)]
    assert sorted(scene.rule for scene in SCENES) == sorted(rules)
