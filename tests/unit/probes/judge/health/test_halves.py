"""What a node judges itself and what is joined and compared elsewhere come to the same as both in one place."""

from __future__ import annotations

import ast
import inspect
import typing
from pathlib import Path

import pytest

from mltop.probes.judge import health as rules_folder
from mltop.probes.judge.health.moment import FleetMoment, Moment
from mltop.probes.judge.health.registry import ALL_RULES, RULES
from mltop.probes.judge.health.rule import FAILED, Rule
from tests.builders.faults import FAULTS, WHOLE_FAULTS
from tests.builders.judged_apart import UNLIKE, Nodes, in_halves, in_one_place, samples_of


@pytest.mark.parametrize("name", [*UNLIKE, *FAULTS, *WHOLE_FAULTS])
def test_both_halves_come_to_the_same_as_the_whole(name: str) -> None:
    samples = samples_of(name)
    whole = list(in_one_place(samples))
    assert list(in_halves(samples, Nodes().judged)) == whole
    assert FAILED not in whole[-1]
    if name in UNLIKE:
        assert f'"id":"{UNLIKE[name][1]}"' in whole[-1]


# Which rules compare nodes.


def test_who_reads_other_nodes_facts_says_so() -> None:
    """Only a FleetMoment has them, and mypy lets nobody hand on another one: what is left is who reads them untyped."""
    reading = 0
    for path in sorted(Path(rules_folder.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(function, ast.FunctionDef):
                continue
            reads = [
                node.value.id
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute) and node.attr == "peers" and isinstance(node.value, ast.Name)
            ]
            kinds = {one.arg: one.annotation for one in function.args.args}
            for name in reads:
                kind = kinds.get(name)
                assert isinstance(kind, ast.Name) and kind.id == "FleetMoment", f"{path.name}: {function.name}"
            reading += bool(reads)
    assert reading > 10
    assert not hasattr(Moment(samples_of("driver")[0]), "peers")


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)
def test_what_a_rule_is_given_is_what_it_takes(rule: Rule) -> None:
    check = rule.check if inspect.isfunction(rule.check) else type(rule.check).__call__
    assert typing.get_type_hints(check).get("moment") is not FleetMoment
    if rule.compare is not None:
        assert typing.get_type_hints(rule.compare)["moment"] is FleetMoment


def test_every_kind_of_comparison_is_judged_here() -> None:
    said = {rule_id for _, rule_id in UNLIKE.values()}
    assert said <= {rule.id for rule in RULES if rule.compare is not None}
