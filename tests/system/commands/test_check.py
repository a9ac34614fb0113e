"""`mltop check` on a whole fake machine: exit codes, words, JSON, recordings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.model import Culprit, Incident, NodeState, Sample, to_json
from mltop.probes.record import CaptureWriter, recording
from mltop.probes.record.captures import INCIDENTS
from tests.builders.health_samples import node_h100
from tests.documents import ROOT
from tests.fakes.machine import FakeMachine
from tests.terminal import Terminal
from tests.waiting import wait_until

MLTOP = [sys.executable, "-m", "mltop"]


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def run(machine: FakeMachine, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MLTOP, *args], capture_output=True, text=True, timeout=90, env=machine.env(), check=False)


def report(machine: FakeMachine, *args: str) -> dict[str, Any]:
    done = run(machine, "check", "--json", *args)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit"] == done.returncode, done.stderr
    return found


def ids(found: dict[str, Any]) -> set[str]:
    return {one["id"] for one in found["findings"] if one["severity"] != "info"}


def test_a_healthy_node_is_quiet(machine: FakeMachine) -> None:
    done = run(machine, "check", "--expect-gpus", "8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_json_of_a_healthy_node(machine: FakeMachine) -> None:
    found = report(machine)
    assert set(found) == {"schema", "nodes", "incidents", "findings", "unknown", "exit"}
    assert (found["schema"], found["exit"]) == (1, 0)
    assert [found[what] for what in ("incidents", "unknown", "findings")] == [[], [], []]
    assert [node["state"] for node in found["nodes"]] == ["live"]


def test_a_warning_is_1_and_something_critical_is_2(machine: FakeMachine) -> None:
    machine.nvml.set("gpu.3.remap_pending", 1)
    machine.nvml.write()
    found = report(machine)
    assert (found["exit"], ids(found)) == (1, {"gpu.remap.pending"})
    machine.nvml.set("gpu.5.call.*", "error 15")
    machine.nvml.write()
    found = report(machine)
    assert found["exit"] == 2 and ids(found) == {"gpu.remap.pending", "gpu.lost"}


def test_the_words_name_the_figure_and_what_to_do(machine: FakeMachine) -> None:
    machine.nvml.set("gpu.3.ecc_uncorrected_volatile", 2)
    machine.nvml.write()
    done = run(machine, "check")
    assert done.returncode == 2
    assert done.stdout.startswith("CRIT ") and "GPU 3" in done.stdout and "2 uncorrect" in done.stdout
    assert "do: " in done.stdout


def test_fewer_gpus_than_expected(machine: FakeMachine) -> None:
    found = report(machine, "--expect-gpus", "9")
    assert found["exit"] == 2 and ids(found) == {"gpu.missing"}


def test_expected_gpus_without_a_driver(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MLTOP, "check", "--json", "--expect-gpus", "8"], capture_output=True, text=True, timeout=90, check=False
    )
    found = json.loads(done.stdout)
    assert found["exit"] == done.returncode == 2
    assert "gpu.missing" in ids(found)


def test_an_xid_in_the_log(machine: FakeMachine) -> None:
    bus = (machine.sys.gpu_at(3)).removesuffix(".0")
    machine.say(f"NVRM: Xid (PCI:{bus}): 79, pid=4003, name=python, GPU has fallen off the bus.", ago_s=600)
    machine.say("NVRM: Xid (PCI:0000:1b:00): 31, pid=4000, name=python, MMU Fault", ago_s=30_000)
    found = report(machine)
    assert found["exit"] == 2
    (xid,) = [one for one in found["findings"] if one["id"] == "gpu.xid.hw"]
    assert xid["subject"] == "GPU 3" and "79" in xid["message"]


@contextmanager
def growing(machine: FakeMachine) -> Iterator[None]:
    """Errors come all the while: on an NVLink of GPU 3, on the port mlx5_2, on the PCIe link of GPU 5."""
    over = threading.Event()

    def grow() -> None:
        count = 0
        while not over.wait(0.2):
            count += 1
            machine.nvml.set("gpu.3.nvlink_crc", f"0, {100 * count}, 0")
            machine.nvml.write()
            machine.sys.count("mlx5_2", symbol_error=40)
            machine.sys.pci_errors(machine.sys.gpu_at(5), fatal=count)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_what_grows_is_seen(machine: FakeMachine) -> None:
    with growing(machine):
        found = report(machine)
    assert (found["exit"], found["unknown"]) == (2, [])
    assert {"nvlink.crc", "ib.ber", "pcie.replay"} <= ids(found)
    assert {"GPU 3", "mlx5_2", "GPU 5"} <= {one["subject"] for one in found["findings"]}


def test_errors_of_before_are_no_growth(machine: FakeMachine) -> None:
    machine.nvml.set("gpu.3.nvlink_crc", "0, 100000, 0")
    machine.nvml.write()
    machine.sys.set_counters("mlx5_2", symbol_error=4000)
    found = report(machine)
    assert (found["exit"], found["unknown"], found["findings"]) == (0, [], [])


def test_a_check_that_is_too_short_to_see_growth_says_so(machine: FakeMachine) -> None:
    found = report(machine, "--timeout", "5")
    assert found["exit"] == 3
    growth = next(one for one in found["unknown"] if one["what"] == "growth.gpus")
    assert set(growth["rules"]) == {"gpu.ecc.sbe_rate", "nvlink.replay", "nvlink.crc", "pcie.replay"}
    assert "read once only" in growth["why"]
    assert growth["fix"]
    found = report(machine, "--timeout", "5", "--allow-unknown", "growth.*")
    others = [one["what"] for one in found["unknown"]]  # on a busy machine 5 s may be too short for more than that
    assert not any(what.startswith("growth") for what in others) and found["exit"] == (3 if others else 0), others


def test_what_nobody_misses_is_told_on_demand(machine: FakeMachine) -> None:
    for key in ("temperature_memory_max_c", "tlimit_memory_max_c"):
        machine.nvml.set(f"gpu.*.{key}", "unsupported")
    for index in range(8):
        machine.nvml.unset(f"gpu.{index}.temperature_memory_max_c")
        machine.nvml.set(f"gpu.{index}.tlimit_memory_max_c", "unsupported")
    machine.nvml.write()
    found = report(machine)
    assert found["exit"] == 0
    assert [(one["rules"], one["severity"]) for one in found["unknown"]] == [(["gpu.temp.hbm"], "info")]
    assert run(machine, "check").stdout == ""
    assert "gpu.temp.hbm" in run(machine, "check", "-v").stdout


def test_a_gpu_above_its_slowdown_temperature_is_reported_at_once(machine: FakeMachine) -> None:
    machine.nvml.set("gpu.3.temperature_c", 91)
    machine.nvml.set("gpu.3.temperature_margin_c", -4)
    machine.nvml.write()
    found = report(machine)
    assert (found["exit"], ids(found)) == (1, {"gpu.temp.margin"})
    assert "4 °C above its slowdown temperature" in found["findings"][0]["message"]


def test_an_unreadable_log_is_unknown_and_can_be_allowed(machine: FakeMachine) -> None:
    machine.kmsg.path.unlink()
    found = report(machine)
    assert found["exit"] == 3
    (unknown,) = found["unknown"]
    assert unknown["what"] == "kernel_log" and "gpu.xid.hw" in unknown["rules"] and unknown["why"]
    assert report(machine, "--allow-unknown", "kernel_log")["exit"] == 0
    done = run(machine, "check")
    assert done.returncode == 3 and "kernel_log" in done.stdout


def test_what_a_virtual_machine_never_shows_is_not_unknown(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, gpus=2, ranks=False)
    machine.become_virtual(gpus=2)
    found = report(machine)
    assert (found["exit"], [one for one in found["unknown"] if one["severity"] != "info"]) == (0, [])
    doctor = run(machine, "doctor", "--json")
    said = [check for check in json.loads(doctor.stdout)["checks"] if check["name"] == "never known"]
    assert doctor.returncode == 0 and {check["state"] for check in said} == {"info"}
    assert any("aer" in check["why"] and "hypervisor" in check["why"] for check in said)
    machine.kmsg.path.unlink()  # what somebody may be allowed to read is unknown there, too
    assert report(machine)["exit"] == 3


def test_what_is_waited_for_is_said_on_a_terminal(machine: FakeMachine) -> None:
    with Terminal([*MLTOP, "check"], columns=160, env=machine.env()) as terminal:
        wait_until(lambda: b"error counters are read twice: 6 s" in terminal.raw, 60, "what is waited for")
        assert terminal.wait(60) == 0


def test_the_doctor_needs_one_sample(machine: FakeMachine) -> None:
    began = time.monotonic()
    done = run(machine, "doctor", "--interval", "60")
    assert (done.returncode, "answers for 8 GPUs" in done.stdout) == (0, True)
    assert time.monotonic() - began < 50


def test_what_a_container_never_shows_is_not_unknown(machine: FakeMachine) -> None:
    machine.become_container()
    found = report(machine)
    assert (found["exit"], [one for one in found["unknown"] if one["severity"] != "info"]) == (0, [])


@pytest.mark.parametrize("name", ["h100_in_a_container", "ranks_in_a_container"])
def test_a_recording_of_a_healthy_container_has_nothing_unknown(machine: FakeMachine, name: str) -> None:
    """By a version that called unknown what nobody can know there."""
    found = report(machine, "--recording", str(ROOT / "tests/fixtures/recordings" / f"{name}.jsonl.gz"))
    assert (found["exit"], found["unknown"], found["findings"]) == (0, [], [])


def test_a_node_that_cannot_be_reached_is_3(machine: FakeMachine) -> None:
    found = report(machine, "-w", "nosuchhost.invalid", "--timeout", "4")
    assert found["exit"] == 3 and found["nodes"][0]["state"] != "live"


def test_a_lemon_is_known_when_it_comes_back(machine: FakeMachine) -> None:
    uuid = "GPU-5a4e0001-0000-4000-8000-000000000002"
    assert run(machine, "lemon", "add", uuid, "Xid", "79").returncode == 0
    assert uuid in run(machine, "lemon").stdout
    found = report(machine)
    assert found["exit"] == 1 and ids(found) == {"gpu.lemon"}
    assert "Xid 79" in found["findings"][0]["message"]
    assert run(machine, "lemon", "remove", uuid).returncode == 0
    assert report(machine)["exit"] == 0


def test_a_lemon_list_that_is_none_is_one_line(machine: FakeMachine) -> None:
    state = machine.directory / "state"
    state.mkdir()
    (state / "lemons.json").write_text("{")
    found = report(machine)
    assert ([one["what"] for one in found["unknown"]], found["exit"]) == (["lemon_list"], 3)
    assert report(machine, "--allow-unknown", "lemon*")["exit"] == 0
    for args in (["lemon"], ["lemon", "add", "GPU-1"]):
        done = run(machine, *args)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "lemons.json" in done.stderr


def write(path: Path, samples: list[Sample]) -> Path:
    path.write_bytes(recording(samples))
    return path


def test_a_recording_is_checked_from_end_to_end(machine: FakeMachine, tmp_path: Path) -> None:
    hot = {3: {"throttle_reasons": ["hw_thermal"], "temperature_c": 91.0}}
    samples = [node_h100(1000.0 + at, hot if 20 <= at < 60 else None) for at in range(0, 200, 2)]
    found = report(machine, "--recording", str(write(tmp_path / "run.jsonl", samples)))
    assert found["exit"] == 2
    (throttled,) = [one for one in found["findings"] if one["id"] == "gpu.throttle.hw_thermal"]
    assert (throttled["since"], throttled["until"], throttled["node"]) == (1020.0, 1058.0, "n1")
    still = [replace(sample) for sample in samples[:20]]
    found = report(machine, "--recording", str(write(tmp_path / "cut.jsonl", still)))
    assert [one["until"] for one in found["findings"]] == [None]


def test_a_capture_of_a_hang_is_critical(machine: FakeMachine, tmp_path: Path) -> None:
    told = Incident(
        "job/train/7",
        "hang",
        "critical",
        "rank 2 is stuck",
        "train",
        7,
        1000.0,
        culprits=[Culprit(2, "n1", 7, "is stuck", "")],
    )
    writer = CaptureWriter(tmp_path / "hang")
    writer.nodes([NodeState("n1", "live")])
    writer.add_samples("n1", [node_h100(1000.0 + at) for at in range(10)])
    writer.add(INCIDENTS, to_json([told]).encode())
    writer.finish()
    found = report(machine, "--recording", str(tmp_path / "hang"))
    assert found["exit"] == 2
    assert [(one["kind"], one["headline"]) for one in found["incidents"]] == [("hang", "rank 2 is stuck")]
    assert "CRIT rank 2 is stuck" in run(machine, "check", "--recording", str(tmp_path / "hang")).stdout


def test_nodes_of_a_recording_come_in_any_order(machine: FakeMachine, tmp_path: Path) -> None:
    lost = {5: {"state": "lost", "error": "GPU is lost"}}
    one = [node_h100(1000.0 + at, node="a") for at in range(10)]
    other = [node_h100(1000.0 + at, lost, node="b") for at in reversed(range(10))]
    found = report(machine, "--recording", str(write(tmp_path / "two.jsonl", [*other, *one])))
    assert [(one["id"], one["node"], one["since"]) for one in found["findings"] if one["severity"] == "critical"] == [
        ("gpu.lost", "b", 1000.0)
    ]


def test_a_healthy_recording_is_quiet(machine: FakeMachine, tmp_path: Path) -> None:
    samples = [node_h100(1000.0 + at) for at in range(0, 300, 5)]
    done = run(machine, "check", "--recording", str(write(tmp_path / "well.jsonl", samples)))
    assert (done.returncode, done.stdout) == (0, "")


def test_a_recording_without_samples_is_not_well(machine: FakeMachine, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text('{"mltop_recording": 1, "version": "0.1.0", "started_at": 1}\n')
    done = run(machine, "check", "--recording", str(path))
    assert done.returncode == 3
    assert "no samples in it" in done.stdout + done.stderr


@pytest.mark.parametrize("content", ["", "no recording\n", '{"mltop_recording": 1}\n{"node": 7}\n'])
def test_what_is_no_recording_is_one_line(machine: FakeMachine, tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    done = run(machine, "check", "--recording", str(path))
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (18, "reboot, or end all that uses the GPUs, unload the nvidia modules and run: sudo modprobe nvidia"),
        (16, "end the jobs on the node, then: sudo nvidia-smi -r"),
    ],
)
def test_a_driver_that_is_gone_is_one_line_with_its_command(machine: FakeMachine, code: int, command: str) -> None:
    """And what it leaves unknown is not told a second time; nor does anybody wait for what counters would do."""
    machine.nvml.set("call.nvmlInit", f"error {code}")
    machine.nvml.write()
    done = run(machine, "check")
    lines = done.stdout.splitlines()
    assert done.returncode == 2 and lines[0].startswith("CRIT "), done.stdout
    assert [line.strip() for line in lines if line.startswith(("CRIT", "WARN", "?"))] == [lines[0].strip()]
    assert lines[-1].strip() == f"do: {command}"


@pytest.mark.parametrize("command", ["check", "snapshot"])
def test_a_limit_of_open_files_is_named_once(command: str) -> None:
    argv = ["sh", "-c", f"ulimit -n 32; exec '{sys.executable}' -m mltop {command}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
    (line,) = done.stderr.splitlines()
    assert line.endswith(": this process may open no more files (ulimit -n 32): raise it")
    assert (done.returncode, done.stdout) == (71, "")


@pytest.mark.parametrize("command", ["stacks", "snapshot"])
def test_ranks_that_cannot_be_read_are_not_none(command: str, tmp_path: Path) -> None:
    env = {**os.environ, "MLTOP_SYSROOT": str(tmp_path)}
    done = subprocess.run([*MLTOP, command], capture_output=True, text=True, timeout=90, env=env, check=False)
    assert done.returncode == 3
    assert "ranks unknown: the collector failed: FileNotFoundError" in done.stdout
    assert "no training ranks" not in done.stdout
