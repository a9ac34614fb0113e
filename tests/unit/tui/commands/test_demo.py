"""The demo: what its graphs show when the screen opens, and that one job hangs, not two."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app import app
from mltop.tui.app.past.past import Past
from mltop.tui.app.shapes import Remember, Shapes
from mltop.tui.commands import demo, screen
from mltop.tui.commands.demo import HERE, TRAINED_S, demo_channels, training_before
from mltop.tui.config.settings import Config

NOW = 1_763_640_000.0
COLUMNS = 60


@pytest.mark.parametrize("nodes", [1, 64])
def test_graphs_are_full_when_the_screen_opens(nodes: int) -> None:
    past = Past()
    for view in training_before(NOW, nodes):
        past.feed(view)
    jobs = {key.name for node in past._nodes.values() for key in node.shares}
    assert len(jobs) == (2 if nodes > 1 else 1)
    for key in {key for node in past._nodes.values() for key in node.shares}:
        sums = past.sums(key, COLUMNS, NOW - 2.0, TRAINED_S)
        assert sums is not None and all(value is not None and value > 0.5 for value in sums.sm_active[1:])
    track = past.track(HERE, 0, NOW - 2.0)
    assert track is not None and None not in track.power_w[5:-5]


@pytest.mark.parametrize("nodes", [2, 8, 64])
def test_in_a_fleet_one_job_hangs(nodes: int) -> None:
    real, fleet = demo_channels(nodes, 1.0)
    healthy = float(real.argv[real.argv.index("--healthy") + 1])
    hangs_after = float(fleet.argv[fleet.argv.index("--hang-after") + 1])
    assert hangs_after < 60.0 and healthy >= 24 * 3600


class ChoosingApp:
    """An app whose user changes the order of a table and leaves."""

    return_code = 0

    def __init__(self, _session: object, config: Config, *, remember: Remember, **_: object) -> None:
        self.shapes = Shapes(config, remember)
        self.history = Past()

    def run(self) -> None:
        self.shapes.sort("gpus", None)


class NoSession:
    captured_at_close = None

    def __init__(self, *_: object) -> None:
        """Nothing is started."""

    def close(self) -> None:
        """Nothing is open."""


def test_nothing_that_is_set_in_a_demo_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[object] = []
    monkeypatch.setattr(screen, "CHOICES", SimpleNamespace(change=changes.append))
    monkeypatch.setattr(app, "MltopApp", ChoosingApp)
    monkeypatch.setattr(demo, "LiveSession", NoSession)
    monkeypatch.setattr(demo, "require_terminal", lambda: None)
    demo.run(TargetOptions(), 1, Config())
    assert changes == []
    screen.show(NoSession(), Config())  # type: ignore[arg-type]
    assert len(changes) == 1, "elsewhere it is"
