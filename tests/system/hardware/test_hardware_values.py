"""The slice `values` of `bash tests/gpu` over fakes: all agree where all tell the truth, and every check can differ."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.model import GpuSample
from mltop.probes.system import paths
from tests.fakes.gpu_machine import POWER_MW, GpuMachine
from tests.fakes.nvml.machine import paths_of
from tests.hardware.asked import FIELDS
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.ours import Mltop
from tests.hardware.rows import NOT_HERE, ROWS
from tests.hardware.slices import values
from tests.hardware.sources import Query
from tests.system.hardware.faults.fault import Lie
from tests.system.hardware.faults.values import FAULTS
from tests.system.hardware.hardware_lies import differing, put
from tests.system.hardware.hardware_runs import run, tell

# With these lies, what nvidia-smi -q or torch says of this GPU is not found any more: they are told on their own.
HIDE = {"pci_bus_id", "uuid"}


def test_all_agree(tmp_path: Path) -> None:
    done = run(GpuMachine(tmp_path), "--only", "values")
    assert done.names("differs") == set(), done.report
    assert set(values.CHECKS) - done.names("agrees") == {"fabric.cluster_uuid"}, done.report
    assert done.code == 0
    saved = done.directory / "fixtures/H100-80GB-HBM3-580.95.05"
    text = (saved / "nvidia-smi-q.xml").read_text()
    assert "<nvidia_smi_log>" in text and "<process_name>program</process_name>" in text
    saved_text = text + "".join(path.read_text() for path in saved.iterdir())
    for tells in ("GPU-5a4e0001", "1650000000000", "secret"):
        assert tells not in saved_text, "it tells which machine it was"


@pytest.mark.parametrize(("kind", "driver"), [("a100", "535"), ("h100", "550"), ("h100", "575"), ("b200", "570")])
def test_other_gpus_and_drivers_agree(kind: str, driver: str, tmp_path: Path) -> None:
    """Fields moved and came with drivers; older boards tell other limits."""
    done = run(GpuMachine(tmp_path, kind=kind, driver=driver), "--only", "values")
    assert (done.code, done.names("differs")) == (0, set()), done.report
    told = {
        check["name"]
        for check in done.results["checks"]
        if check["outcome"] == "agrees" and check["ours"] != "not supported"
    }
    assert {"name", "memory_used_bytes", "power_w", "energy_j", "throttle_reasons", "processes (pids)"} <= told
    assert ("throttle_ns.sw_thermal" in told) == (driver == "575")


def test_all_differ_where_all_lie(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    for name, fault in FAULTS.items():
        for lie in fault.lies if name not in HIDE else ():
            tell(machine, lie)
    done = run(machine, "--only", "values")
    assert set(values.CHECKS) - done.names("differs") == HIDE, done.report
    assert done.code == 1
    assert (
        "differs    values      name [gpu 0]: mltop NVIDIA H100 80GB HBM3, nvidia-smi name NVIDIA H200" in done.report
    )


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[values.Round]]:
    """Two real ones of one machine; the time between them is made up, so that no busy machine decides."""
    machine = GpuMachine(tmp_path_factory.mktemp("machine"))
    with pytest.MonkeyPatch.context() as patch:
        for name, text in machine.env().items():
            patch.setenv(name, text)
        patch.setattr(paths, "SYSROOT", str(machine.root))
        context = Context(machine.directory, 0.0, Pythons(sys.executable, sys.executable), Machine(), False)
        query = Query(["uuid", "pci.bus_id", *values.POWER_FIELDS, *FIELDS])
        with Mltop() as mltop:
            found = [values.one_round(mltop, query, context) for _ in range(2)]
        found[-1].after.with_rest(context)
        for number, one in enumerate(found):
            one.began_s = one.ended_s = 10.0 * number
            one.gpus = copy.deepcopy(one.gpus)
            one.gpus[0].energy_j = 10.0 * number * POWER_MW / 1000
        yield found


def with_lies(rounds: list[values.Round], lies: tuple[Lie, ...]) -> list[values.Round]:
    """The same answers but for these."""
    found = copy.deepcopy(rounds)
    for lie in lies:
        for one in found:
            for asked in (one.before, one.after):
                put(asked, lie)
    return found


def test_nothing_differs_by_itself(rounds: list[values.Round]) -> None:
    assert differing(values.checks_of(rounds)) == set()


def test_one_lie_makes_one_check_differ(rounds: list[values.Round], tmp_path: Path) -> None:
    others = {}
    for number, (name, fault) in enumerate(FAULTS.items()):
        files = [lie for lie in fault.lies if lie.source == "proc"]
        with pytest.MonkeyPatch.context() as patch:
            if files:  # they are read when they are compared
                machine = GpuMachine(tmp_path / str(number))
                for lie in files:
                    tell(machine, lie)
                patch.setattr(paths, "SYSROOT", str(machine.root))
            found = differing(values.checks_of(with_lies(rounds, fault.lies)))
        if found != {name} | fault.also:
            others[name] = found
    assert others == {}


def test_every_field_of_a_sample_is_compared_or_said_why_not() -> None:
    compared = {row.path for row in ROWS} | {values.ENERGY} | set(NOT_HERE)
    fields = set(paths_of(GpuSample(0)))
    assert {
        field for field in fields if field not in compared and not any(one.startswith(f"{field}.") for one in compared)
    } == set()
    assert {one for one in compared if one not in fields and one.partition(".")[0] not in fields} == set()
