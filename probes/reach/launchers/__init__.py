"""Ways to reach nodes, one file each, all with ``launch(nodes, options) -> list[Channel]``.

A launcher only describes processes (``reach/channel.py``): it starts nothing, and looks at nothing that takes long.

- Every node of ``nodes`` is in exactly one of the channels. A process for many nodes must say which node a frame is
  of: ``Message.node``, which the agent takes from its ``--node``.
- stdout carries frames and any amount of noise between them. A carrier that does not keep NUL bytes asks the agent for
  ``--text``; one that cuts or mixes long lines, for ``--frame-bytes N``.
- stdin takes requests, unless ``takes_requests`` is False; then ``one_shot`` makes a process for one request.
- No agent stays behind: where the end of our process is not seen on the node as the end of stdin or stdout, the agent
  gets ``--silence`` and ends without the hub's pings.
- ``ending`` turns the exit code and the last words into one sentence, and says whether trying again can help.
- What cannot work at all (a missing program, an option it has no use for) is a ``UsageProblem``.
"""
