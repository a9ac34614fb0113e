"""Python stacks of the ranks on this node, dumped with py-spy and digested next to the process.

Public: StackOptions, dump_ranks, find_py_spy, may_trace, why_no_py_spy.
"""

from __future__ import annotations

from mltop.probes.collect.stacks.dump import StackOptions, dump_ranks
from mltop.probes.collect.stacks.pyspy import find_py_spy, may_trace, why_no_py_spy

__all__ = ["StackOptions", "dump_ranks", "find_py_spy", "may_trace", "why_no_py_spy"]
