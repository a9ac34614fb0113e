"""All rules, and what they remember. One file per subject; a new subject is a new file and one entry here.

Beside its rules a module may have functions ``counters``, ``gauges`` and ``values`` (what to remember of a node:
trails.py) and ``facts`` (what to compare between nodes: peers.py); of several one has its name before it
(``wait_counters``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from mltop.probes.judge.health.gpu import clocks, driver, ecc, inventory, processes, temperature, xids
from mltop.probes.judge.health.host import cpu, memory, storage, system
from mltop.probes.judge.health.job import logs, ranks, unlike, whole_job
from mltop.probes.judge.health.link import ethernet, fabric, ib_errors, infiniband, nvlink, pcie, rails
from mltop.probes.judge.health.peers import Facts
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.health.trails import Counters, Gauges, Values

_OF_GPUS = (driver, inventory, xids, ecc, clocks, temperature, processes)
_OF_LINKS = (nvlink, fabric, pcie, infiniband, ib_errors, rails, ethernet)
_OF_HOSTS = (cpu, memory, storage, system)
MODULES: tuple[ModuleType, ...] = (*_OF_GPUS, *_OF_LINKS, *_OF_HOSTS, ranks, logs)
_OF_JOBS = (whole_job, unlike)


def rules_of(*modules: ModuleType) -> tuple[Rule, ...]:
    """The rules of the modules, in the order in which they stand in their files."""
    every = (entry for module in modules for entry in vars(module).values() if isinstance(entry, Rule))
    return tuple(dict.fromkeys(every))


def readers_of(kind: str, *modules: ModuleType) -> tuple[Any, ...]:
    """The functions ``kind`` (counters, gauges, values, facts) of the modules."""
    return tuple(
        entry
        for module in modules
        for name, entry in vars(module).items()
        if name == kind or (name.endswith(f"_{kind}") and not name.startswith("_"))
    )


RULES: tuple[Rule, ...] = rules_of(*MODULES)
JOB_RULES: tuple[Rule, ...] = rules_of(*_OF_JOBS)
ALL_RULES = (*RULES, *JOB_RULES)
RULE_OF: Mapping[str, Rule] = {rule.id: rule for rule in ALL_RULES}
COUNTERS: tuple[Counters, ...] = readers_of("counters", *MODULES, *_OF_JOBS)
GAUGES: tuple[Gauges, ...] = readers_of("gauges", *MODULES, *_OF_JOBS)
VALUES: tuple[Values, ...] = readers_of("values", *MODULES, *_OF_JOBS)
FACTS: tuple[Facts, ...] = readers_of("facts", *MODULES, *_OF_JOBS)
