"""Run by bench_fleet.py in a terminal of its own: the screen over N simulated nodes whose job hangs after so many s."""

from __future__ import annotations

import sys

from mltop.probes.investigate.session import LiveSession
from mltop.probes.reach.channel import Channel
from mltop.probes.system.spawn import python_command
from mltop.tui import starting


def main(nodes: int, hangs_after_s: str) -> int:
    names = tuple(f"sim{number:03d}" for number in range(1, nodes + 1))
    command = python_command("mltop.probes.demo.fleet", "--nodes", str(nodes), "--hang-after", hangs_after_s)
    session = LiveSession("benchmark", [Channel(tuple(command), names)], 1.0, lambda *_: "")
    from mltop.tui.app.app import MltopApp

    app = MltopApp(session)
    app.run()
    return app.return_code or 0


if __name__ == "__main__":
    starting.leave(main(int(sys.argv[1]), sys.argv[2]))
