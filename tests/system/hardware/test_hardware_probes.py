"""The slices `probes`, `dtypes`, `copies` and `bits` of `bash tests/gpu`: mltop's own probes over a torch without
numbers, and every check can differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.hardware.checks import Check, NotTriedError
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.plain import Plain
from tests.hardware.probing import Answer, Event
from tests.hardware.refusing import Refused
from tests.hardware.slices import bits, copies, dtypes, probes
from tests.probing import PROBE_MARK
from tests.system.hardware import hardware_probed as made
from tests.system.hardware.hardware_lies import differing
from tests.system.hardware.hardware_runs import ROOT, Done, run
from tests.waiting import wait_until

# What the GPU of the fake takes a second for lasts so long; plain torch hurries ten times more.
PACE = {"MLTOP_FAKE_TORCH_PACE": "0.1"}
# What two read within a third of a second, between which a busy machine may come: in the whole command they may say
# anything, on what is made up they may not.
NOT_LOOKED_FOR = {"burst (its shape)"}  # an H100 has a published shape
OF_THE_MOMENT = {"sustained (power)", "sustained (clock)"}


ALSO = ("corrupt_iterations", "burst (time)")  # known or it differs
SLICES: dict[str, Any] = {"probes": probes, "dtypes": dtypes, "copies": copies, "bits": bits}
MAKERS: dict[str, Callable[[], Any]] = {
    "probes": made.probes_measured,
    "dtypes": made.dtypes_measured,
    "copies": made.copies_measured,
    "bits": made.bits_measured,
}
FAULTS = {name: import_module(f"tests.system.hardware.faults.{name}").FAULTS for name in SLICES}


def checks_of(name: str, found: Any, refused: Refused | None = None) -> list[Check]:
    if name != "probes":
        return list(SLICES[name].checks_of(found))
    told = [] if refused is None else list(probes.checks_of_refusal(refused))
    return [*told, *probes.checks_of_probe(found), *probes.checks_of_scan(found)]


@pytest.mark.parametrize("name", SLICES)
def test_nothing_differs_by_itself(name: str) -> None:
    found = checks_of(name, MAKERS[name](), made.refused())
    assert differing(found) == set(), [one for one in found if one.outcome == "differs"]
    assert {one.name for one in found if one.outcome == "agrees"} == set(SLICES[name].CHECKS)


@pytest.mark.parametrize(("name", "check"), [(name, check) for name, faults in FAULTS.items() for check in faults])
def test_one_lie_makes_one_check_differ(name: str, check: str) -> None:
    fault, found, refused = FAULTS[name][check], MAKERS[name](), made.refused()
    for lie in fault.lies:
        made.put(refused if lie.source == "refused" else found, lie)
    assert differing(checks_of(name, found, refused)) == {check} | fault.also


@pytest.mark.parametrize(
    ("factor", "outcome"), [(0.97, "differs"), (0.985, "agrees"), (1.03, "agrees"), (1.05, "differs")]
)
def test_a_burst_that_is_too_good_is_as_wrong(factor: float, outcome: str) -> None:
    found = made.probes_measured()
    found.result["burst_tflops"] = factor * 793.0
    (burst,) = [one for one in probes.checks_of_scan(found) if one.name == "burst"]
    assert (burst.outcome, burst.details["ratio"]) == (outcome, pytest.approx(factor, abs=1e-4))


@pytest.mark.parametrize(
    ("factor", "outcome"), [(0.94, "differs"), (0.96, "agrees"), (1.0, "agrees"), (1.03, "differs")]
)
def test_with_the_published_shape_the_burst_is_compared_with_the_published_figure(factor: float, outcome: str) -> None:
    found = made.probes_measured()
    found.result.update(name="NVIDIA H100 80GB HBM3", pci_device="2330", burst_tflops=factor * 794.5)
    found.plain.said[:] = [one for one in found.plain.said if one["event"] != "scan"]
    told = {one.name: one for one in probes.checks_of_scan(found)}
    assert (told["burst"].outcome, told["burst (its shape)"].outcome) == (outcome, "not tried")


@pytest.mark.parametrize("name", ["probes", "dtypes", "copies"])
def test_what_plain_torch_does_not_tell_is_not_tried(name: str) -> None:
    """Never "agrees", never an exception."""
    found = MAKERS[name]()
    found.plain = Plain(error="RuntimeError: CUDA error: unspecified launch failure")
    told = list(probes.checks_of_scan(found)) if name == "probes" else checks_of(name, found)
    without = [one for one in told if "intact" not in one.name and not one.name.startswith("pcie_")]
    assert {one.outcome for one in without} == {"not tried"}, without
    assert all("launch failure" in one.why for one in without if one.name not in dtypes.OTHERS), without


@pytest.mark.parametrize("name", ["probes", "dtypes", "copies", "bits"])
def test_a_probe_that_fails_where_torch_does_not_differs(name: str) -> None:
    found = MAKERS[name]()
    for answer in made.answers(found):
        answer.events = [Event(5.0, "failed", device=made.UUID, why="CUDA error: it is broken")]
    told = [one for one in checks_of(name, found) if "shape)" not in one.name]  # there is no such shape
    rates = [one for one in told if one.unit in ("TFLOPS", "GB/s") or one.name in ALSO]
    assert rates and all(one.outcome == "differs" and "it is broken" in one.why for one in rates), rates


def test_a_type_that_the_gpu_has_not_is_agreed_on() -> None:
    found = made.dtypes_measured()
    why = "NVIDIA A100 has compute capability 8.0: FP8 tensor cores came with 8.9 (Ada and Hopper)"
    found.answers["fp8"] = Answer("matmul", 0.0, [Event(5.0, "failed", device=made.UUID, why=why)])
    found.plain.said[0] = {"event": "rates", "dtype": "fp8", "why": "RuntimeError: compute capability >= 8.9"}
    told = {one.name: one for one in dtypes.checks_of(found)}
    assert (told["fp8"].outcome, told["fp8"].ours) == ("agrees", "does not")
    assert why in told["fp8"].why and "compute capability >= 8.9" in told["fp8"].why
    assert {told[f"fp8 ({what})"].outcome for what in ("burst", "sustained")} == {"not tried"}


@pytest.mark.parametrize(
    ("dtype", "said"), [("tf32", {"event": "tf32", "differs": False}), ("bf16", {"event": "rates", "host": 5.0})]
)
def test_what_torch_only_emulates_is_no_tensor_core(dtype: str, said: dict[str, Any]) -> None:
    """A GPU before Ampere takes TF32 for float32, and multiplies bfloat16 slowly: then mltop must not measure it."""
    found = made.dtypes_measured()
    for one in found.plain.said:
        if one["event"] == said["event"] and one.get("dtype", "bf16") == "bf16":
            one.update(said)
    assert {one.name for one in dtypes.checks_of(found) if one.outcome == "differs"} == {dtype}


def test_a_type_that_there_was_no_time_for_is_not_tried() -> None:
    found = made.dtypes_measured()
    del found.answers["fp32"]
    found.plain.said.pop(4)
    told = {one.name: (one.outcome, one.why) for one in dtypes.checks_of(found)}
    assert {told[f"fp32{what}"] for what in ("", " (burst)", " (sustained)")} == {
        ("not tried", "there was no time for it: more --minutes")
    }
    assert {told[name][0] for name in dtypes.CHECKS if not name.startswith("fp32")} == {"agrees"}


def test_out_of_memory_says_nothing_about_a_gpu() -> None:
    found = made.dtypes_measured()
    found.plain.said[4] = {"event": "rates", "dtype": "fp32", "why": "OutOfMemoryError: CUDA out of memory"}
    told = {one.name: one.outcome for one in dtypes.checks_of(found)}
    assert {told["fp32"], told["fp32 (burst)"], told["fp32 (sustained)"]} == {"not tried"}


def test_one_gpu_has_no_peer() -> None:
    found = made.copies_measured()
    found.gpus.pop()
    found.alone = "gpu 1: somebody else uses this GPU (pid 7): no load is put on it"
    told = {one.name: one for one in copies.checks_of(found)}
    assert all(told[name].outcome == "not tried" for name in ("peer", "peer (direct)", "peer (intact)"))
    assert "pid 7" in told["peer"].why and "need two that are free" in told["peer"].why


def test_two_clocks_that_disagree_are_no_second_source() -> None:
    found = made.probes_measured()
    found.plain.said[-1]["host"] = 500.0
    told = {one.name: one for one in probes.checks_of_scan(found)}
    assert told["sustained"].outcome == "not tried" and "the host was busy" in told["sustained"].why


# The whole command.


def saved(done: Done) -> str:
    return "".join(path.read_text() for path in done.directory.glob("fixtures/*/*"))


def test_all_agree(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, gpus=2, ranks=False)
    before = machine.nvml.path.read_text()
    done = run(machine, "--only", "probes", "copies", "dtypes", "--minutes", "4", env=PACE)
    names = {*probes.CHECKS, *copies.CHECKS, *dtypes.CHECKS}
    assert done.names("differs") <= OF_THE_MOMENT, done.report
    assert done.names("agrees") | OF_THE_MOMENT == (names | OF_THE_MOMENT) - NOT_LOOKED_FOR, done.report
    assert done.names("not tried") == {*dtypes.OTHERS, *NOT_LOOKED_FOR}, done.report
    text = saved(done)
    assert "burst_tflops" in text and "means" in text and "to_device_bytes_per_s" in text
    for tells in ("GPU-5a4e0001", "load_child", os.environ.get("HOME", "/root") + "/", str(ROOT)):
        assert tells not in text, "it tells which machine it was"
    after = machine.nvml.path.read_text()
    assert [line for line in after.splitlines() if "processes" in line or "busy" in line] == [
        line for line in before.splitlines() if "processes" in line or "busy" in line
    ]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    gpus = [{"index": 0, "uuid": made.UUID, "name": "NVIDIA H100", "serial": None}]
    pythons = Pythons(sys.executable, sys.executable)
    return Context(tmp_path, time.monotonic() + 300, pythons, Machine(gpus=gpus), False)


def on(machine: GpuMachine, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """This process, too."""
    for name, text in {**machine.env(), **more}.items():
        monkeypatch.setenv(name, text)


def test_bits_agree(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the pace of real time: how many are checked in it, and when nvidia-smi answers, is the machine's business."""
    on(GpuMachine(context.directory, ranks=False), monkeypatch, MLTOP_FAKE_TORCH_PACE="1")
    told = {one.name: one for one in bits.checks_of(bits.measured(context, 1.5, twice=False))}
    elsewhere = {"checked_iterations", "busy (nvidia-smi)", "checksum (again)"}  # the last: in the whole command
    assert {name for name, one in told.items() if one.outcome == "agrees"} | elsewhere == set(bits.CHECKS)
    assert told["checked_iterations"].ours and " outputs compared, " in told["corrupt_iterations"].why


def test_without_time_no_bits_are_checked(context: Context) -> None:
    with pytest.raises(NotTriedError, match="--minutes 1"):
        list(bits.run(replace(context, deadline_s=time.monotonic() + 29)))


def test_with_little_time_no_second_process_checks_them() -> None:
    found = made.bits_measured()
    found.short = None
    (again,) = [one for one in bits.checks_of(found) if one.name == "checksum (again)"]
    assert (again.outcome, again.why) == ("not tried", "there was no time for a second process")


def test_as_many_differ_as_can(tmp_path: Path) -> None:
    """mltop's processes find the GPU slower than plain torch does, and its bits wrong; nvidia-smi lies, too."""
    machine = GpuMachine(tmp_path, gpus=2, ranks=False)
    lies = {"probe_slower": 1.3, "shallow": True, "wrong_from": 1, "torn": True}
    machine.torch_lies_path.write_text(json.dumps(lies))
    for name, text in {
        "clocks.sm": "1980",
        "power.draw.instant": "100.00",
        "enforced.power.limit": "500.00",
        "pcie.link.gen.gpucurrent": "1",
        "pcie.link.width.current": "4",
        "utilization.gpu": "3",
    }.items():
        machine.smi.lie("query", name, text)
    done = run(machine, "--only", "probes", "copies", "bits", "--minutes", "4", env={"MLTOP_FAKE_TORCH_PACE": "0.02"})
    assert done.code == 1
    same = {"refused (agent)", "refused (command line)", "burst (time)", "peer (direct)", "checksum (again)"}
    everything = {*probes.CHECKS, *copies.CHECKS, *bits.CHECKS} - NOT_LOOKED_FOR
    assert (everything - done.names("differs"), same - done.names("agrees")) == (same, set()), done.report


@pytest.mark.parametrize("name", SLICES)
def test_no_load_is_put_on_a_gpu_that_somebody_uses(
    name: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(GpuMachine(context.directory), monkeypatch)
    with pytest.raises(NotTriedError, match=r"GPU 0: somebody else uses this GPU \(pid 4000\)"):
        list(SLICES[name].run(context))


def of_run(mark: str, word: str = "") -> list[int]:
    """Processes with this in their environment, and the word in their command."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            if mark.encode() in environ and word.encode() in command:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("name", "word"), [("probes", "load_child.py"), ("bits", PROBE_MARK), ("copies", "plain_copies.py")]
)
def test_an_end_in_the_middle_leaves_no_process(name: str, word: str, tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, ranks=False)
    mark = str(machine.nvml.path)
    process = subprocess.Popen(
        ["bash", str(ROOT / "tests/gpu"), "--only", name, "-o", str(tmp_path / "out")],
        env={**machine.env(), "MLTOP_FAKE_TORCH_PACE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: of_run(mark, word), 60, word)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    wait_until(lambda: not of_run(mark), what="the end of all of it")
