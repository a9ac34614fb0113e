"""What the timelines show: the history that the app keeps, or where the screen is paused, what it was then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltop.probes.reach.view import NodeView
from mltop.tui.history import History, NodeHistory, Track

if TYPE_CHECKING:
    from mltop.tui.app import MltopApp


def history_of(app: MltopApp) -> History:
    """The app's; where it keeps none, one that begins when a pane first asks, fed with what the panes draw."""
    history: History = vars(app).setdefault("history", History())
    if app.newest is not None:
        history.feed(app.newest.view)
    return history


class ShownHistory:
    """Of one pane: tracks that stand still while the screen is paused, however long that is."""

    def __init__(self) -> None:
        self._held: dict[str, NodeHistory] = {}

    def track(self, app: MltopApp, node: NodeView, gpu: int) -> Track | None:
        """None of a GPU of which nothing has been kept yet."""
        sample = node.sample
        live = history_of(app)
        history = live.of(node.node)
        if app.paused and history is not None:
            history = self._held.setdefault(node.node, history.copy())
        elif not app.paused:
            self._held.clear()
        if sample is None or history is None:
            return None
        silent_s = 0.0 if node.state.state == "live" else node.state.age_s or 0.0
        return history.track(gpu, sample.sampled_at + silent_s)
