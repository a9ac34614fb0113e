"""The all-reduce probe's process on a node: ``main()`` of launcher.py, started with a Python that has torch.

launcher.py   one per node: its order, what it is told, its end; never imports torch
listening.py  the sockets, this node's addresses, the interface of a route
leader.py     the meeting of all launchers at the leader's; member.py is each launcher's side, preflight.py finds
              who cannot be reached, causes.py who is to blame for a failed round
importer.py   a child that imports torch once and forks the ranks, before any thread exists
ranks.py      the launcher's side of its ranks; rounds.py one round of them with its deadlines
rank.py       a rank: measure.py, collectives.py, work.py, with the settings of environment.py
"""

from mltop.probes.active.all_reduce.launcher import main

__all__ = ["main"]
