"""The health rules over all samples of any nodes at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.rule import NO_EXPECTATIONS, Expectations, Rule
from mltop.probes.model import Finding, Sample


def evaluate(
    samples: Iterable[Sample], rules: Sequence[Rule] = RULES, expectations: Expectations = NO_EXPECTATIONS
) -> list[Finding]:
    """Every finding that fired in ``samples`` (any nodes, any order), the gravest first.

    ``until`` None: still firing at the node's last sample. A single sample of a node does not tell how long a
    rule holds: it fires at once and its evidence says so. Pure.
    """
    return evaluated(samples, rules, expectations).findings()


def evaluated(
    samples: Iterable[Sample], rules: Sequence[Rule] = RULES, expectations: Expectations = NO_EXPECTATIONS
) -> Health:
    """The state behind ``evaluate``, for callers that also ask what is unknown."""
    ordered = sorted(samples, key=lambda sample: sample.sampled_at)
    counts = Counter(sample.node for sample in ordered)
    alone = frozenset(node for node, count in counts.items() if count == 1)
    health = Health(expectations, rules, eager=alone, keep_s=None)
    health.compare({sample.node: sample for sample in reversed(ordered)}.values())
    for sample in ordered:
        health.see(sample)
    health.settle()
    return health
