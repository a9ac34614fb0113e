"""The all-reduce probe's process on a node: ``main()`` of node.py, started with a Python that has torch.

node.py       one per node: its order, its socket (listening.py), torch; ready, rounds, told by its caller
              (options.py)
ranks.py      its ranks, forked before any thread exists; rank.py is one, which measures collectives.py
"""

from mltop.probes.active.all_reduce.node import main

__all__ = ["main"]
