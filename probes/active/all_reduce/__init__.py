"""The all-reduce probe's process on a node: ``main()`` of launcher.py, started with a Python that has torch.

launcher.py   one per node: its order, its first sockets (listening.py), its end; never imports torch
node.py       its life after that: ready, rounds (rounds.py), told by its caller (options.py)
meeting.py    all launchers come together at the leader's, over connections.py
causes.py     which rank or node is to blame for a failed round
importer.py   a child that imports torch once and forks the ranks, before any thread exists; ranks.py has them
rank.py       a rank, which measures collectives.py
"""

from mltop.probes.active.all_reduce.launcher import main

__all__ = ["main"]
