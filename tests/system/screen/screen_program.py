"""Run by tests in a terminal of its own: the app over a scripted session that moves every 0.2 s.

Arguments: ``node``, ``fleet``, ``still`` (the same view again and again), ``clock`` (only the
time goes on), ``broken`` (its views fail after the first few) or ``here`` (this machine; where ``STALL`` is a file of
the working directory, its job is stuck, and ``CAPTURED`` is written by what is started then), then how many
seconds closing takes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mltop.probes.agent.protocol import Hello
from mltop.probes.investigate.progress import CaptureResult
from mltop.probes.model import NodeState
from mltop.probes.model.incident import JobMotion
from mltop.probes.reach.view import Connection, FleetView, NodeView
from mltop.tui.app.app import MltopApp
from mltop.tui.app.stalls import CaptureOnHang, Stalls
from tests.tui.fake_session import FakeCapture, FakeSession
from tests.tui.fake_views import fleet, one_node

STILL = one_node(0)


def clock(tick: int) -> FleetView:
    return replace(STILL, taken_at=STILL.taken_at + tick)


def here(tick: int) -> FleetView:
    name = os.uname().nodename
    view = one_node(tick)
    reached = Connection("local", hello=Hello("1", 1, 7, "3.11", name, "x86_64"))
    samples = [replace(node.sample, node=name) for node in view.nodes if node.sample is not None]
    nodes = [NodeView(NodeState(name, "live"), sample, reached) for sample in samples]
    return replace(view, nodes=tuple(nodes))


MOVER = "mover"


class Slow(FakeSession):
    close_s = 0.0
    breaks_after = sys.maxsize  # views that the screen has taken
    _taken = 0

    def view(self) -> FleetView:
        secret = "the user's data"
        if threading.current_thread().name == MOVER:  # the bug is the screen's to meet
            return super().view()
        self._taken += 1
        if self._taken > self.breaks_after:
            raise RuntimeError(f"no view {len(secret)}")
        return super().view()

    def capture(
        self, on_done: Callable[[CaptureResult], None], *, parent: Path | None = None, least_free_bytes: int = 0
    ) -> FakeCapture:
        Path("CAPTURED").touch()
        return super().capture(on_done, parent=parent, least_free_bytes=least_free_bytes)

    def close(self) -> None:
        time.sleep(self.close_s)


def main() -> None:
    kinds: dict[str, Callable[[int], FleetView]] = {"node": one_node, "fleet": fleet, "broken": one_node, "here": here}
    make = {**kinds, "still": lambda _: STILL, "clock": clock}[sys.argv[1]]
    session = Slow([make(tick) for tick in range(500 if make is clock else 5)])
    session.close_s = float(sys.argv[2])
    if sys.argv[1] == "broken":
        session.breaks_after = 8

    def move() -> None:
        while True:
            time.sleep(0.2)
            session.step()
            for dump in session.dumps:
                dump.finish()
            if Path("STALL").exists():
                app.call_from_thread(app.see_motions, [JobMotion("train-70b", 7, phase="stalled")])

    app = MltopApp(session, stalls=Stalls("never", CaptureOnHang(Path.cwd())))
    threading.Thread(target=move, name=MOVER, daemon=True).start()
    app.run()
    sys.stdout.write("left the screen\n")
    sys.exit(app.return_code)


if __name__ == "__main__":
    main()
