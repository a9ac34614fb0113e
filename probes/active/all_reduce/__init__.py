"""The all-reduce probe's process on a node: ``main()`` of launcher.py, started with a Python that has torch.

launcher.py   one per node: its order, its socket (listening.py), torch
node.py       its life after that: ready, rounds (rounds.py), told by its caller (options.py)
ranks.py      its ranks, forked before any thread exists; rank.py is one, which measures collectives.py
"""

from mltop.probes.active.all_reduce.launcher import main

__all__ = ["main"]
