"""All rules. One file per subject; a new subject is a new file with RULES and one entry here.

A module may also have COUNTERS, GAUGES and VALUES (what to remember of a node: trails.py), FACTS (what to compare
between nodes: peers.py) and JOB_RULES (what concerns a job as a whole: jobs.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mltop.probes.judge.health.gpu import clocks, ecc, inventory, nvml, processes, state, temperature, throttle, xids
from mltop.probes.judge.health.host import cpu, memory, storage, system
from mltop.probes.judge.health.job import facts, ranks
from mltop.probes.judge.health.link import ethernet, fabric, ib_errors, ib_state, nvlink, pcie
from mltop.probes.judge.health.peers import Facts
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.health.trails import Counters, Gauges, Values

MODULES: tuple[ModuleType, ...] = (
    state,
    nvml,
    xids,
    ecc,
    throttle,
    temperature,
    clocks,
    inventory,
    processes,
    nvlink,
    fabric,
    pcie,
    ib_state,
    ib_errors,
    ethernet,
    cpu,
    memory,
    storage,
    system,
    ranks,
    facts,
)


def _all(name: str) -> tuple[Any, ...]:
    return tuple(entry for module in MODULES for entry in _listed(getattr(module, name, ())))


def _listed(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


RULES: tuple[Rule, ...] = _all("RULES")
COUNTERS: tuple[Counters, ...] = _all("COUNTERS")
GAUGES: tuple[Gauges, ...] = _all("GAUGES")
VALUES: tuple[Values, ...] = _all("VALUES")
FACTS: tuple[Facts, ...] = _all("FACTS")
