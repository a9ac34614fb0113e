"""No advice contradicts another one on the same subject, whichever finding becomes the headline."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mltop.probes.judge.health import folding
from mltop.probes.judge.health.folding import fold_findings
from mltop.probes.judge.health.registry import RULES
from mltop.probes.judge.health.rule import Rule
from mltop.probes.model import REMEDIES, Finding, Remedy, Sample
from tests.builders.health_samples import changed, judged, node_h100, xid

NOW = 100_000.0
# What may not stand beside the word before it, in the words of the actions.
RESET = re.compile(r"\breset\b|nvidia-smi -r\b", re.IGNORECASE)
RESTART = re.compile(r"\brestart the (job|program)|\breboot|\brestart the OS", re.IGNORECASE)
OF_GPUS = tuple(rule for rule in RULES if rule.id.startswith(("gpu.", "nvlink.", "pcie.", "fabric.state")))
GRAVE: tuple[Remedy, ...] = ("reset", "reboot", "service", "replace")


def finding(rule: Rule, remedy: Remedy, severity: str = "critical", subject: str = "GPU 3") -> Finding:
    return Finding(
        rule.id, severity, "n1", subject, f"{rule.id} of {subject}", f"{remedy} it", since=NOW, remedy=remedy
    )


def shown(*findings: Finding) -> list[Finding]:
    return fold_findings(findings, working_gpus=8, listed_gpus=8)


def remedies_of(rule: Rule) -> tuple[Remedy, ...]:
    """Its own and, as its hits may have others, the far-reaching ones."""
    return tuple(dict.fromkeys((rule.remedy, *GRAVE)))


@pytest.mark.parametrize("one", OF_GPUS, ids=lambda rule: rule.id)
def test_of_two_findings_about_a_gpu_none_advises_what_the_other_one_makes_pointless(one: Rule) -> None:
    """Every rule with every one behind it, folded or side by side, in both orders: sending it back beats all, the
    vendor beats what he would do himself, a reboot beats a reset, and that restarting the program.
    """
    order = ("restart", "reset", "reboot", "service", "replace")
    for other in OF_GPUS[OF_GPUS.index(one) + 1 :]:
        for pair in itertools.product(remedies_of(one), remedies_of(other)):
            told = (finding(one, pair[0]), finding(other, pair[1]))
            best = max(pair, key=lambda remedy: order.index(remedy) if remedy in order else -1)
            for found in (shown(*told), shown(*reversed(told))):
                advised = {item.remedy for item in found} & set(order)
                assert advised <= {best}, (pair, [(item.id, item.remedy, item.action) for item in found])
                assert {item.action for item in found if item.remedy in order} <= {f"{best} it"}


def test_a_warning_changes_no_advice_of_something_critical_unless_the_gpu_goes() -> None:
    dbe, cap = (next(rule for rule in RULES if rule.id == name) for name in ("gpu.ecc.dbe_volatile", "pcie.width"))
    kept = shown(finding(dbe, "reset"), finding(cap, "reboot", "warning"))
    assert {one.id: one.remedy for one in kept} == {"gpu.ecc.dbe_volatile": "reset", "pcie.width": "reboot"}
    kept = shown(finding(dbe, "reset"), finding(cap, "replace", "warning"))
    assert {one.remedy for one in kept} == {"replace"}


def test_another_gpu_and_another_time_are_another_matter() -> None:
    failed, dbe = (
        next(rule for rule in RULES if rule.id == name) for name in ("gpu.remap.failed", "gpu.ecc.dbe_volatile")
    )
    kept = shown(finding(failed, "replace"), finding(dbe, "reset", subject="GPU 4"))
    assert [one.remedy for one in kept] == ["replace", "reset"]
    before = replace(finding(failed, "replace"), since=NOW - 9000, until=NOW - 8000)
    assert [one.remedy for one in shown(before, finding(dbe, "reset"))] == ["replace", "reset"]


BROKEN = {
    "remap": {"failed": True, "pending": True},
    "ecc": {"uncorrected_volatile": 3, "sram_uncorrected_aggregate": 9, "enabled": True, "enabled_pending": False},
    "retired_pages": 70,
    "retired_pages_pending": True,
    "mig_pending": True,
    "throttle_reasons": ["hw_slowdown"],
    "processes": [],
}


@cache
def broken(action: str, state: str) -> list[Sample]:
    """A minute and more of a node with one GPU whose remapping failed; the cases below add what its kernel logs."""
    unreadable = {"state": "error", "error": "Unknown Error"} if state == "error" else {}
    bad = {**BROKEN, **unreadable, "recovery_action": action}
    return [node_h100(NOW + at, {3: bad}) for at in range(0, 80, 10)]


@pytest.mark.parametrize(
    "action", ["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "bus_reset", "system_reboot"]
)
@pytest.mark.parametrize(
    "code", [None, 31, 48, 63, 64, 74, 79, 94, 95, 109, 119, 140, 143, 149, 154, 155, 156, 160, 171]
)
def test_whose_remapping_failed_is_never_told_to_be_reset(code: int | None, action: str) -> None:
    """Whatever else happens to the GPU, and whichever of it becomes the headline."""
    events = [] if code is None else [xid(NOW - 100 * number, code) for number in range(6, 0, -1)]
    for state in ("ok", "error"):
        logging = [changed(sample, {"kernel_events": events}) for sample in broken(action, state)]
        found = judged(logging, "gpu.", "nvlink.")
        about = [one for one in found if one.subject == "GPU 3" and one.until is None]
        assert "gpu.remap.failed" in str([(one.id, one.folded) for one in about])
        assert [one.action for one in about if RESET.search(one.action) or RESTART.search(one.action)] == []
        assert any("RMA" in one.action for one in about)


def test_a_gpu_among_several_is_left_out_of_what_they_are_told() -> None:
    """A finding about several GPUs, of which one goes back: the others are reset, that one is not."""
    events = [xid(NOW - 5, 74, index, "NVLink: fatal") for index in (2, 3)]
    bad = {3: {"remap": {"failed": True}}}
    found = judged([node_h100(NOW + at, bad, kernel_events=events) for at in range(0, 20, 5)], "gpu.")
    for one in found:
        if RESET.search(one.action) and ("GPU 3" in one.subject or "GPU 3" in one.message):
            assert "not GPU 3" in one.action


def _strings(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(Path(folding.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield f"{path.name}:{node.lineno}", node


WORDS: tuple[tuple[re.Pattern[str], tuple[Remedy, ...]], ...] = (
    (re.compile(r"return the (GPU|node)"), ("replace",)),
    (re.compile(r"\breset (the|all|it)\b(?! NIC)|nvidia-smi -r\b"), ("reset", "reboot", "service", "replace")),
    (re.compile(r"\breboot the node|^reboot|restart the OS"), ("reboot", "service", "replace", "reset")),
)


@pytest.mark.parametrize("rule", OF_GPUS, ids=lambda rule: rule.id)
def test_what_an_action_says_is_the_remedy_that_it_states(rule: Rule) -> None:
    """The order above is one of remedies: an action that says more than its remedy would slip through it."""
    assert rule.remedy in REMEDIES
    for pattern, fitting in WORDS:
        if pattern.search(rule.action) and not re.search(
            r"\bif\b|look for", rule.action[: pattern.search(rule.action).start()]
        ):  # type: ignore[union-attr]
            assert rule.remedy in fitting, (rule.action, rule.remedy)


def test_a_hit_with_an_action_of_its_own_states_its_remedy_too() -> None:
    """Unless it says the same as its rule's."""
    for place, call in _calls("Hit"):
        words = {one.arg: one.value for one in call.keywords}
        if "action" not in words or not place.startswith(("gpu", "xid", "nvlink", "fabric", "pcie")):
            continue
        said: Sequence[str] = list(_strings(words["action"]))
        if any(pattern.search(text) for text in said for pattern, _ in WORDS):
            rules = [rule for rule in RULES if rule.check.__module__.endswith("." + place.split(".py")[0])]
            alike = {rule.remedy for rule in rules}
            assert "remedy" in words or alike & {"reset", "reboot", "replace"}, (place, said)


def test_commands_name_the_one_gpu_or_process_that_they_are_about() -> None:
    """What is pasted from one GPU's line touches no other GPU, and needs nothing filled in."""
    bad = {
        0: {"ecc": {"enabled": False, "enabled_pending": False}},
        1: {"ecc": {"enabled_pending": False}},
        2: {"ecc": {"enabled": False, "enabled_pending": True}},
        3: {"compute_mode": "prohibited"},
        4: {"persistence": False},
        5: {"throttle_reasons": ["applications_clocks"], "sm_clock_mhz": 1410, "busy": 0.99},
        6: {"power_limit_w": 500.0},
        7: {"mig_pending": True},
    }
    found = judged([node_h100(NOW + at, bad) for at in range(0, 80, 5)], "gpu.")
    assert {one.subject for one in found if one.id != "gpu.clock.low_busy"} == {f"GPU {index}" for index in range(8)}
    for one in found:
        index = one.subject.removeprefix("GPU ")
        for command in re.findall(r"sudo nvidia-smi [^;,]*", one.action):
            assert f"-i {index}" in command, (one.id, one.action)
    (off,) = [one for one in found if one.subject == "GPU 1"]
    assert off.action == "to keep it: sudo nvidia-smi -i 1 -e 1", "a reset would switch it off"
