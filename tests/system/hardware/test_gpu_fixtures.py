"""What contributed runs of `bash tests/gpu` saved is compared again, and such a comparison can fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.nvml.recorded import load
from tests.fakes.nvml.scenario import FakeNvml
from tests.hardware import answers, machine
from tests.hardware.asked import FIELDS
from tests.hardware.context import Context, Pythons
from tests.hardware.ours import Mltop
from tests.hardware.slices import dtypes, throttling, values
from tests.hardware.sources import Query
from tests.once import once
from tests.replays import EXPLAINED, FOLDERS, on_machine, replay, wrong
from tests.system.hardware.hardware_probed import bits_measured, copies_measured, dtypes_measured, probes_measured

FAKE_LIBRARY = "libnvidia-ml.so.1"  # a real one has its driver's version in its name
MOVES = {"last_seen_at", "energy_j"}


def test_every_contributed_run_still_agrees() -> None:
    folders = [path for path in FOLDERS.glob("*") if path.is_dir()]
    assert {folder.name: found for folder in folders if (found := wrong(folder))} == {}


def test_no_contributed_run_is_one_of_the_fakes() -> None:
    for path in FOLDERS.glob("*/answers.json"):
        assert FAKE_LIBRARY not in json.loads(path.read_text())["library"], path


@pytest.mark.parametrize("recording", sorted(FOLDERS.glob("*/train-*.jsonl.gz")), ids=lambda path: path.parent.name)
def test_check_finds_nothing_wrong_with_a_job_that_trained(recording: Path) -> None:
    command = [sys.executable, "-m", "mltop", "check", "--json", "--recording", str(recording)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert json.loads(done.stdout)["findings"] == [], done.stderr
    assert done.returncode not in (1, 2), done.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What slices save, on one fake H100: two have run, the others' figures are made up."""
    return once(tmp_path_factory, "saved", run_two_slices)


def run_two_slices(folder: Path) -> Path:
    fake = GpuMachine(folder, ranks=False)
    with on_machine(fake.root, fake.env()):
        pythons = Pythons(sys.executable, sys.executable)
        context = Context(fake.directory, 1e18, pythons, machine.describe(pythons), False)
        query = Query(["uuid", "pci.bus_id", *values.POWER_FIELDS, *FIELDS])
        with Mltop() as mltop:
            found = values.one_round(mltop, query, context, raw=True)
        found.after.with_rest(context)
        values.record(found, context)
        throttling.loaded(context, 0, context.machine.gpus[0]["uuid"], 1.0)
        for name, made in {"probes": probes_measured, "dtypes": dtypes_measured, "copies": copies_measured}.items():
            context.record_json(f"{name}.json", asdict(made()))
        context.record_json("bits.json", asdict(bits_measured()))
        return fake.directory / "fixtures" / context.machine.label


def test_a_run_agrees_again(saved: Path) -> None:
    assert json.loads((saved / "answers.json").read_text())["library"] == [FAKE_LIBRARY]
    checks = replay(saved)
    assert wrong(saved) == []
    agreed = {check.name for check in checks if check.outcome == "agrees"}
    assert {
        "name",
        "uuid",
        "power_limit_w",
        "busy",
        "nvlink.links (speeds)",
        "pcie.gen (sysfs)",
        "processes (pids)",
    } <= agreed
    assert {"throttle_reasons", "throttle_share.sw_power_cap", "sw_power_cap at the limit"} <= agreed
    not_tried = {check.name for check in checks if check.outcome == "not tried"}
    told_by_files = {"name (proc)", "uuid (proc)", "minor (proc)", "driver (proc)", "gsp_firmware (proc)"}
    assert not_tried == {*told_by_files, "fabric.cluster_uuid", *dtypes.OTHERS}


@pytest.mark.parametrize(
    ("file", "path", "value", "name"),
    [
        ("answers.json", "gpus.0.calls.power_limit_default_mw", {"value": 650_000}, "power_limit_default_w"),
        ("answers.json", "gpus.0.calls.persistence", {"error": 999}, "persistence"),
        ("answers.json", "gpus.0.fields.3", {"value": 5}, "ecc.corrected_volatile"),
        ("answers.json", "gpus.0.fields.82", {"value": 90}, "memory_temperature_c"),
        ("answers.json", "gpus.0.links.nvlink_crc.3", {"value": 1}, "nvlink.links (errors)"),
        ("answers.json", "gpus.0.processes.compute", {"value": [[77, 1 << 30]]}, "processes (pids)"),
        ("asked.json", "after.rows.0.clocks.max.sm", "1981", "sm_clock_max_mhz"),
        ("asked.json", "after.torch.0.name", "NVIDIA H200", "name (torch)"),
        ("probes.json", "plain.said.1.best.tflops", 9000, "burst"),
        ("probes.json", "watch.rows.0.clocks.sm", "9000", "sustained (clock)"),
        ("dtypes.json", "plain.said.1.means.0", 9000, "fp16 (burst)"),
        ("copies.json", "memory.events.6.data.copy_bytes_per_s", 1, "memory"),
        ("bits.json", "long.events.6.data.corrupt_iterations", 1, "corrupt_iterations"),
        ("throttling-0.json", "looks.-1.gpu.throttle_ns.sw_power_cap", 0, "throttle_ns.sw_power_cap (gain)"),
    ],
)
def test_an_edited_record_differs(file: str, path: str, value: Any, name: str, saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "edited")
    data = json.loads((folder / file).read_text())
    put(data, path.split("."), value)
    (folder / file).write_text(json.dumps(data))
    assert name in {check.name for check in replay(folder) if check.outcome == "differs"}
    (told, *_) = found = [text for text in wrong(folder) if text.startswith(f"{name}: ")]
    assert len(found) == 1 and "differs" in told


def put(at: Any, path: list[str], value: Any) -> None:
    """Names may have dots: "clocks.max.sm"."""
    for place in range(len(path) - 1):
        rest = ".".join(path[place:])
        if isinstance(at, dict) and rest in at:
            at[rest] = value
            return
        at = at[int(path[place])] if isinstance(at, list) else at[path[place]]
    if isinstance(at, list):
        at[int(path[-1])] = value
    else:
        assert path[-1] in at, path
        at[path[-1]] = value


def test_what_is_known_to_differ_is_explained_and_stays_so(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "explained")
    asked = json.loads((folder / "asked.json").read_text())
    asked["after"]["rows"]["0"]["serial"] = "1"
    (folder / "asked.json").write_text(json.dumps(asked))
    (folder / EXPLAINED).write_text(json.dumps({"serial": "this nvidia-smi tells the tray's"}))
    assert wrong(folder) == []
    (folder / EXPLAINED).write_text(json.dumps({"serial": ""}))
    assert len(wrong(folder)) == 1
    (folder / EXPLAINED).write_text(json.dumps({"serial": "as above", "name": "long ago"}))
    assert wrong(folder) == ["name: explained, but it does not differ"]


def test_an_empty_folder_is_no_run(tmp_path: Path) -> None:
    assert wrong(tmp_path) == ["nothing in it can be compared"]


@pytest.mark.parametrize(("kind", "driver"), [("a100", "535"), ("h100", "535"), ("b200", "575"), ("gb200", "580")])
def test_the_fake_answers_as_it_was_recorded(kind: str, driver: str, tmp_path: Path) -> None:
    """Recorded from a fake: mltop sees no difference between it and one that learned from the record."""
    fake = GpuMachine(tmp_path, gpus=2, kind=kind, driver=driver)
    with on_machine(fake.root, fake.env()):
        told = answers.ask(sys.executable)
        assert isinstance(told, dict), told
        first = polled()
    again = FakeNvml(tmp_path / "again")
    load(json.loads(json.dumps(told)), again)
    again.write()
    with on_machine(fake.root, again.env()):
        assert polled() == first


def polled() -> list[dict[str, Any]]:
    """The GPUs of the first poll in which no value comes only with one of the next."""
    with Mltop() as mltop:
        mltop.poll()
        while any(gap.kind == "starting" for gap in mltop.gaps):
            mltop.poll()
        return [{key: value for key, value in asdict(gpu).items() if key not in MOVES} for gpu in mltop.gpus]
