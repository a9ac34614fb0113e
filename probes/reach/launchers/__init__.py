"""Ways to reach nodes: a row for each in ``LAUNCHERS``, and a file with ``launch(nodes, options) -> list[Channel]``.

A launcher only describes processes (``reach/channel.py``): it starts nothing, and looks at nothing that takes long.

- Every node of ``nodes`` is in exactly one of the channels. A process for many nodes must say which node a frame is
  of: ``Message.node``, which the agent takes from its ``--node``.
- stdout carries frames and any amount of noise between them. A carrier that does not keep NUL bytes asks the agent for
  ``--text``; one that cuts or mixes long lines, for ``--frame-bytes N``.
- stdin takes requests, unless ``takes_requests`` is False; then ``one_shot`` makes a process for one request.
- No agent stays behind: where the end of our process is not seen on the node as the end of stdin or stdout, the agent
  gets ``--silence`` and ends without the hub's pings.
- ``ending`` turns the exit code and the last words into one sentence, and says whether trying again can help.
- What cannot work at all (a missing program, an option it has no use for) is a ``UsageProblem``, a word that cannot be
  passed on a ``ValueError``.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from mltop.probes.reach import UsageProblem

if TYPE_CHECKING:  # the command line reads the table before it knows whether it needs any of this
    from mltop.probes.model import Via
    from mltop.probes.reach.channel import Channel, LaunchOptions


class Launcher(NamedTuple):
    """A way to reach nodes. ``program``: what it needs on this machine, and the Debian ``package`` that has it; "" for
    nothing.

    ``logs_in``: a login name means something to it. ``tells_agents``: what runs on a node can be told more while it
    runs: probes over several nodes need that.
    """

    name: Via
    program: str = ""
    package: str = ""
    logs_in: bool = False
    tells_agents: bool = True

    def launch(self, nodes: tuple[str, ...], options: LaunchOptions) -> list[Channel]:
        """The processes for these nodes; only this launcher's file is imported.

        Raises UsageProblem, also when its program is missing and for words that not every login shell takes.
        """
        if self.program and shutil.which(self.program) is None:
            other_way = "" if self.name == "ssh" else ", or --via ssh"
            fix = f"apt install {self.package}{other_way}"
            raise UsageProblem(f"--via {self.name}", f"{self.program} is not installed here", fix)
        try:
            channels: list[Channel] = import_module(f"{__name__}.{self.name}").launch(nodes, options)
        except ValueError as error:
            raise UsageProblem(f"--via {self.name}", str(error)) from None
        return channels


# In the order in which the command line names them.
LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher
    for launcher in (
        Launcher("ssh", "ssh", "openssh-client", logs_in=True),
        Launcher("pdsh", "pdsh", "pdsh", logs_in=True, tells_agents=False),
        Launcher("srun", "srun", "slurm-client"),
        Launcher("local"),
    )
}
