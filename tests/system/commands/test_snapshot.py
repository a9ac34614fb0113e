"""`mltop snapshot --json` over our own libnvidia-ml.so.1: every value of the scenario, and what is wrong in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.ranks.access import user_name
from tests.documents import ROOT
from tests.fakes.machine import FakeMachine
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import shape
from tests.terminal import Terminal
from tests.waiting import wait_until

MLTOP = [sys.executable, "-m", "mltop"]


def snapshot(env: dict[str, str], *args: str) -> dict[str, Any]:
    done = subprocess.run(
        [*MLTOP, "snapshot", "--json", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["schema"] == 1
    assert [node["state"] for node in report["nodes"]] == ["live"]
    return report


def gaps_of(sample: dict[str, Any]) -> dict[str, str]:
    return {gap["what"]: gap["why"] for gap in sample["gaps"]}


def test_every_value_of_the_scenario_arrives(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=8)
    for key, value in {
        "name": "NVIDIA H100 80GB HBM3",
        "busy_percent": 87,
        "memory_used_bytes": 40 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "temperature_c": 61,
        "memory_temperature_c": 72,
        "power_mw": 512500,
        "power_limit_mw": 650000,
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 2619,
        "memory_clock_max_mhz": 2619,
        "throttle_mask": "0x44",
        "processes": f"{os.getpid()}:1073741824:compute",
    }.items():
        fake.set(f"gpu.3.{key}", value)
    fake.write()
    sample = snapshot(fake.env())["samples"][0]
    assert [gpu["index"] for gpu in sample["gpus"]] == list(range(8))
    gpu = sample["gpus"][3]
    assert gpu["state"] == "ok"
    assert gpu["uuid"].startswith("GPU-")
    assert gpu["pci_bus_id"]
    assert gpu["driver"]
    expected = {
        "name": "NVIDIA H100 80GB HBM3",
        "busy": 0.87,
        "memory_used_bytes": 40 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "temperature_c": 61,
        "memory_temperature_c": 72,
        "power_w": 512.5,
        "power_limit_w": 650.0,
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 2619,
        "memory_clock_max_mhz": 2619,
    }
    assert {key: gpu[key] for key in expected} == expected
    (process,) = gpu["processes"]
    held = {"pid": os.getpid(), "memory_bytes": 1073741824, "kind": "compute", "gpu_instance": None}
    known = {"user": user_name(os.getuid()), "ppid": os.getppid(), "absent": "", "probe": ""}
    assert {name: process[name] for name in (*held, *known)} == {**held, **known}
    assert sorted(gpu["throttle_reasons"]) == ["hw_thermal", "sw_power_cap"]
    assert sample["host"]["memory_total_bytes"] > 0
    assert sample["host"]["cpu_fraction"] is not None
    assert set(sample["cost_s"]) >= {"gpus", "ranks", "host"}


def test_a_value_the_library_does_not_support_is_null_with_a_gap(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=2)
    fake.set("gpu.1.power_mw", "unsupported")
    fake.set("gpu.1.power_average_mw", "unsupported")
    fake.set("gpu.1.throttle_mask", "unsupported")
    fake.write()
    sample = snapshot(fake.env())["samples"][0]
    assert sample["gpus"][0]["power_w"] is not None
    assert sample["gpus"][1]["power_w"] is None
    assert sample["gpus"][1]["throttle_reasons"] is None
    gaps = gaps_of(sample)
    assert "gpu.1.power_w" in gaps
    assert "gpu.1.throttle_reasons" in gaps


def test_a_lost_gpu_is_a_finding(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=4)
    fake.set("gpu.2.call.*", "error 15")
    fake.write()
    report = snapshot(fake.env())
    gpus = report["samples"][0]["gpus"]
    assert [gpu["state"] for gpu in gpus] == ["ok", "ok", "lost", "ok"]
    assert gpus[2]["power_w"] is None
    assert "gpu.lost" in {finding["id"] for finding in report["findings"]}


def test_without_a_driver_the_rest_is_there() -> None:
    done = subprocess.run([*MLTOP, "snapshot", "--json"], capture_output=True, text=True, timeout=60, check=True)
    sample = json.loads(done.stdout)["samples"][0]
    assert sample["gpus"] == []
    assert "nvml" in gaps_of(sample)
    assert sample["host"]["hostname"]


def test_the_text_form_fits_80_columns_and_names_the_lost_gpu(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=8)
    fake.set("gpu.5.call.*", "error 15")
    fake.write()
    done = subprocess.run(
        [*MLTOP, "snapshot"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **fake.env(), "COLUMNS": "80"},
        check=True,
    )
    assert "LOST" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_gpu_lost_while_watching_stays_on_the_screen_with_when_it_was_seen(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=8)
    fake.write()
    with Terminal(MLTOP, env=fake.env()) as terminal:
        terminal.wait_for("GHZ")
        fake.set("gpu.6.call.*", "error 15")
        fake.write()
        text = terminal.wait_for("LOST")
        assert "last seen" in text or "since" in text.lower() or "seen" in text
        terminal.send("q")
        assert terminal.wait(30) == 0


def test_a_call_that_blocks_for_ever_is_named_and_the_screen_lives(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=8)
    fake.write()
    with Terminal(MLTOP, env=fake.env()) as terminal:
        terminal.wait_for("GHZ")
        fake.set("gpu.3.call.nvmlDeviceGetUtilizationRates", "block forever")
        fake.write()
        terminal.wait_for("nvmlDeviceGetUtilizationRates", 30.0)
        terminal.send("?")
        terminal.wait_for("Panes")  # the help pane; line 1 goes on naming the call once a rule has found it
        terminal.send("q")
        assert terminal.wait(30) == 0


def test_a_snapshot_ends_although_nvml_never_answers(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=2)
    fake.set("call.nvmlInit", "block forever")
    fake.write()
    started = time.monotonic()
    done = subprocess.run(
        [*MLTOP, "snapshot", "--json", "--timeout", "3"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **fake.env()},
        check=False,
    )
    assert time.monotonic() - started < 20.0
    assert "nvmlInit" in gaps_of(json.loads(done.stdout)["samples"][0])["nvml.starting"]


def a100s(directory: Path) -> FakeMachine:
    """Without GPM and DCGM; one is in MIG mode, and a server shares GPUs 5 and 6 with their ranks."""
    machine = FakeMachine(directory, name="amp-3")
    shape("a100", machine.nvml, 8)
    for index in range(8):
        machine.nvml.set(f"gpu.{index}.busy_percent", 21 + 9 * index)
    machine.nvml.set("gpu.4.mig_enabled", 1)
    machine.nvml.set("gpu.4.mig.0", "3g.40gb gi=2 used=21474836480")
    machine.proc.add(4194101, argv=["/usr/bin/llm-server", "--port", "1"], uid=4294967001)
    for index in (5, 6):
        held = [(4000 + index, 70 * 2**30, "compute"), (4194101, index * 2**30, "compute")]
        machine.nvml.set(f"gpu.{index}.processes", held)
    machine.nvml.write()
    return machine


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60)])
def test_the_text_form_shows_what_the_screen_shows(columns: int, lines: int, tmp_path: Path) -> None:
    env = a100s(tmp_path).env()
    printed = subprocess.run(
        [*MLTOP, "snapshot"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**env, "COLUMNS": str(columns)},
        check=True,
    ).stdout
    rows = {tuple(line.split()[:1]): line for line in reversed(printed.split("\nranks\n")[0].splitlines())}
    for index in range(8):
        assert f" {21 + 9 * index}% " in rows[str(index),], "without GPM, GPU-Util is all that is known"
    assert "20/40G" in rows["└0",] and "3g.40gb" in rows["└0",]
    (server,) = [line.split() for line in printed.splitlines() if "4194101" in line and "llm-server" in line]
    assert {"5-6", "4294967001", "11.0G"} <= {*server}
    ranks = [line for line in printed.splitlines() if "70.0G" in line and "train.py" in line]
    assert len(ranks) == 8
    with Terminal(MLTOP, env=env, columns=columns, lines=lines) as terminal:

        def heads_of_both() -> list[list[str]]:
            found = [line.split() for line in terminal.text().splitlines() if line.split()[:1] in (["GPU"], ["RANK"])]
            return found if len(found) == 2 else []  # ranks are there a moment before GPUs

        heads = wait_until(heads_of_both, what="both tables")
        for head in heads:
            of_screen = {*head} - {"last", "busy,", "10", "min", "SWITCH/S", "SYSCALL/S"}  # one sample has no history
            assert of_screen <= {*printed.split()}
        terminal.send("q")
        assert terminal.wait(30) == 0


@pytest.mark.parametrize("name", ["ranks_in_a_container", "h100_in_a_container"])
def test_one_look_does_not_say_how_a_rank_gets_on(name: str) -> None:
    path = ROOT / "tests" / "fixtures" / "recordings" / f"{name}.jsonl.gz"
    argv = [*MLTOP, "snapshot", "--recording", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    rows = done.stdout.partition("\nranks\n")[2].splitlines()
    at = rows[0].index("STATE")
    ranks = [row for row in rows[1:] if "python3" in row]
    assert ranks and {row[at:].split()[0] for row in ranks} <= {"-", "\N{EN DASH}"}
