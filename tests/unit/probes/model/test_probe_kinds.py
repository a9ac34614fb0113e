"""The rows of what can be measured: whole, and of one mind with the types, the child processes and the demo."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import get_args

import pytest

from mltop.probes.active.supervisor.request import modules
from mltop.probes.demo.probes.replay import EVENTS, ProbeMachine
from mltop.probes.model.probe_kinds import (
    CHILDREN,
    DTYPES,
    PROBE_OF,
    PROBES,
    UNKNOWN_STAGE_S,
    ProbeRow,
    stage_deadline_s,
    total_s,
)
from mltop.probes.model.vocabulary import ProbeKind


def test_each_kind_has_a_row_and_each_row_a_program() -> None:
    assert set(PROBE_OF) == set(get_args(ProbeKind)) and len(PROBES) == len(PROBE_OF)
    assert modules().keys() == CHILDREN.keys()
    for module in modules().values():
        assert find_spec(module) is not None, module


@pytest.mark.parametrize("row", PROBES, ids=lambda row: row.name)
def test_a_run_has_time_for_its_slowest_stage(row: ProbeRow) -> None:
    assert max(row.stages_s.values()) <= row.deadline_s
    assert row.about_s < row.deadline_s


def test_an_order_is_stronger_than_the_row() -> None:
    assert stage_deadline_s("memory", "copy", {}) == CHILDREN["memory"].stages_s["copy"]
    assert stage_deadline_s("memory", "copy", {"copy": 3.0}) == 3.0
    assert stage_deadline_s("memory", "dance", {}) == stage_deadline_s("dance", "dance", {}) == UNKNOWN_STAGE_S
    assert total_s("memory", {"copy": 3.0}) == total_s("memory", {}) - CHILDREN["memory"].stages_s["copy"] + 3.0


def test_the_demo_has_a_recording_of_every_condition_kind_and_data_type() -> None:
    lines = [json.loads(line) for line in EVENTS.read_text(encoding="utf-8").splitlines()]
    recorded = {
        (line["condition"], line["kind"], line.get("dtype")) for line in lines if line["event"]["event"] == "result"
    }
    machines = (ProbeMachine("n", 1, braked=True), ProbeMachine("n", 1, slow_gpu=0, hot_gpu=1))
    conditions = {machine.condition(gpu) for machine in machines for gpu in range(3)}
    kinds = [*(("matmul", dtype.name) for dtype in DTYPES), ("memory", None), ("copies", None)]
    assert recorded == {(condition, *kind) for condition in conditions for kind in kinds}
