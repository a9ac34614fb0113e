"""All rules. One file per subject; a new subject is a new file with RULES and one entry here.

A module may also have COUNTERS, GAUGES and VALUES (what to remember of a node: trails.py), FACTS (what to compare
between nodes: peers.py) and JOB_RULES (what concerns a job as a whole: jobs.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mltop.probes.judge.health import (
    ethernet,
    fabric,
    gpu_clocks,
    gpu_ecc,
    gpu_inventory,
    gpu_processes,
    gpu_state,
    gpu_temperature,
    gpu_throttle,
    gpu_xid,
    host_cpu,
    host_memory,
    host_storage,
    host_system,
    ib_errors,
    ib_state,
    job_facts,
    job_ranks,
    nvlink,
    nvml,
    pcie,
)
from mltop.probes.judge.health.peers import Facts
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.health.trails import Counters, Gauges, Values

MODULES: tuple[ModuleType, ...] = (
    gpu_state,
    nvml,
    gpu_xid,
    gpu_ecc,
    gpu_throttle,
    gpu_temperature,
    gpu_clocks,
    gpu_inventory,
    gpu_processes,
    nvlink,
    fabric,
    pcie,
    ib_state,
    ib_errors,
    ethernet,
    host_cpu,
    host_memory,
    host_storage,
    host_system,
    job_ranks,
    job_facts,
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
