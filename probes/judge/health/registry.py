"""All rules, and what they remember. One file per subject; a new subject is a new file and one entry here.

Beside its rules a module may have functions ``counters``, ``gauges`` and ``values`` (what to remember of a node:
trails.py) and ``facts`` (what to compare between nodes: peers.py); of several one has its name before it
(``wait_counters``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

from mltop.probes.judge.health.gpu import clocks, driver, ecc, inventory, processes, temperature, xids
from mltop.probes.judge.health.host import cpu, memory, storage, system
from mltop.probes.judge.health.job import ranks, unlike, whole_job
from mltop.probes.judge.health.link import ethernet, fabric, ib_errors, infiniband, nvlink, pcie, rails
from mltop.probes.judge.health.peers import Facts
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.health.trails import Counters, Gauges, Seen, Values

MODULES: tuple[ModuleType, ...] = (
    *(driver, inventory, xids, ecc, clocks, temperature, processes),
    *(nvlink, fabric, pcie, infiniband, ib_errors, rails, ethernet),
    *(cpu, memory, storage, system, ranks),
)


def rules_of(*modules: ModuleType) -> tuple[Rule, ...]:
    """The rules of the modules, in the order in which they stand in their files."""
    every = (entry for module in modules for entry in vars(module).values() if isinstance(entry, Rule))
    return tuple(dict.fromkeys(every))


class Readers(NamedTuple):
    """The functions of these names of some modules."""

    counters: tuple[Counters, ...] = ()
    gauges: tuple[Gauges, ...] = ()
    values: tuple[Values, ...] = ()
    seen: tuple[Seen, ...] = ()
    facts: tuple[Facts, ...] = ()


def readers_of(*modules: ModuleType) -> Readers:
    named = [(f"_{name}", entry) for module in modules for name, entry in vars(module).items() if name[0] != "_"]
    return Readers(*(tuple(entry for name, entry in named if name.endswith(f"_{kind}")) for kind in Readers._fields))


RULES: tuple[Rule, ...] = rules_of(*MODULES)
JOB_RULES: tuple[Rule, ...] = rules_of(whole_job, unlike)
ALL_RULES = (*RULES, *JOB_RULES)
RULE_OF: Mapping[str, Rule] = {rule.id: rule for rule in ALL_RULES}
READERS = readers_of(*MODULES)
_COMPARING = (module for module in MODULES if any(rule.compare for rule in rules_of(module)))
# Facts come from the nodes, and what counters did their own rules say.
READERS_TO_COMPARE = readers_of(*_COMPARING)._replace(counters=(), values=(), facts=())
