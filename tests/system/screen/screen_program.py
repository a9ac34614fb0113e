"""Run by tests in a terminal of its own: the app over a scripted session that moves every 0.2 s.

Arguments: ``node``, ``fleet``, ``still`` (the same view again and again), ``clock`` (only the
time goes on) or ``broken`` (its views fail after the first few), then how many seconds closing takes.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

from mltop.probes.reach.view import FleetView
from mltop.tui.app.app import MltopApp
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import fleet, one_node

STILL = one_node(0)


def clock(tick: int) -> FleetView:
    return replace(STILL, taken_at=STILL.taken_at + tick)


class Slow(FakeSession):
    close_s = 0.0
    breaks_after = sys.maxsize  # views
    _taken = 0

    def view(self) -> FleetView:
        secret = "the user's data"
        self._taken += 1
        if self._taken > self.breaks_after:
            raise RuntimeError(f"no view {len(secret)}")
        return super().view()

    def close(self) -> None:
        time.sleep(self.close_s)


def main() -> None:
    make = {"node": one_node, "fleet": fleet, "broken": one_node, "still": lambda _: STILL, "clock": clock}[sys.argv[1]]
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

    threading.Thread(target=move, daemon=True).start()
    app = MltopApp(session)
    app.run()
    sys.stdout.write("left the screen\n")
    sys.exit(app.return_code)


if __name__ == "__main__":
    main()
