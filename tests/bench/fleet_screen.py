"""Run by bench_fleet.py in a terminal of its own: the screen over N simulated nodes whose job goes on training."""

from __future__ import annotations

import sys

from mltop.probes.investigate.session import LiveSession
from mltop.probes.reach.channel import Channel
from mltop.probes.system.spawn import python_command

NEVER_S = "1000000"


def main(nodes: int) -> int:
    names = tuple(f"sim{number:03d}" for number in range(1, nodes + 1))
    command = python_command("mltop.probes.demo.fleet", "--nodes", str(nodes), "--hang-after", NEVER_S)
    session = LiveSession("benchmark", [Channel(tuple(command), names)], 1.0, lambda reports: "")
    from mltop.tui.app.app import MltopApp

    app = MltopApp(session)
    app.run()
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
