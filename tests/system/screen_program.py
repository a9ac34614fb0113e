"""Run by tests in a terminal of its own: the app over a scripted session that moves every 0.2 s.

Arguments: ``node`` or ``fleet``, then how many seconds closing the session takes.
"""

from __future__ import annotations

import sys
import threading
import time

from mltop.tui.app import MltopApp
from tests.tui.fake_session import FakeSession
from tests.tui.fake_views import fleet, one_node


class Slow(FakeSession):
    close_s = 0.0

    def close(self) -> None:
        time.sleep(self.close_s)


def main() -> None:
    make = {"node": one_node, "fleet": fleet}[sys.argv[1]]
    session = Slow([make(tick) for tick in range(5)])
    session.close_s = float(sys.argv[2])

    def move() -> None:
        while True:
            time.sleep(0.2)
            session.step()
            for dump in session.dumps:
                dump.finish()

    threading.Thread(target=move, daemon=True).start()
    MltopApp(session).run()
    sys.stdout.write("left the screen\n")


if __name__ == "__main__":
    main()
