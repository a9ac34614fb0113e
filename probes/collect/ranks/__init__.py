"""Training ranks of this machine, found from /proc: who they are, what state they are in, what they cost.

``identity`` says what an environment means, ``roles`` what kind of program a command line is, ``layout`` what titles
and arguments say of parallelism. ``table`` keeps what is known of every process, ``looks`` looks into those that may be
ranks (``live_environ``: what they have set since their start), ``roster`` picks the ranks among them, with ``families``
those that no variable numbers. ``counters`` reads one process and ``source`` ties these together once a second.
"""

from mltop.probes.collect.ranks.counters import read_counters
from mltop.probes.collect.ranks.source import RankSource

__all__ = ["RankSource", "read_counters"]
