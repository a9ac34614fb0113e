"""What machines that we do not have say to `bash tests/gpu`: other drivers, MIG, Grace, containers, broken boards."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.collect.nvml import codes
from mltop.probes.model import Gap, GpuProcess, GpuSample, NvlinkLink
from mltop.probes.model.gpu import IN_USE_BYTES
from mltop.probes.system import paths
from tests.fakes.scripts import python_script, shell_script
from tests.hardware import machine
from tests.hardware.activity_checks import FROM_HOST, Activity, Under, from_host
from tests.hardware.asked import Asked, link_lines, moving, proc, sysfs, torch
from tests.hardware.checks import Told, between
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.loads import in_use
from tests.hardware.ours import Mltop
from tests.hardware.rows import ROWS
from tests.hardware.rows.links import counted_errors, lanes, link_errors, told_errors
from tests.hardware.slices import throttling, values
from tests.hardware.slices.throttling import Loaded, Look
from tests.hardware.sources import Query, SmiError, SmiXml, gpm_rows, last_words, last_words_in, run_for, smi, told

BUS = "00000000:1B:00.0"
DMON = """# gpu    pwr  gtemp  mtemp  smutil  mmaact
# Idx      W      C      C   GPM:%   GPM:%
    0     12     43      -       -       -
    0     12     43      -       -       -
    0     11     43      -       1       0
    0      9     43      -       8       2
"""


def asked(xml: str = "", **row: str) -> Asked:
    rows = {str(index): {"pci.bus_id": BUS, "uuid": "GPU-1", **row} for index in range(3)}
    return Asked(Query(list(rows["0"])), rows, SmiXml(f'<log><gpu id="{BUS}">{xml}</gpu></log>'))


def test_two_rows_of_gpm_are_of_no_time() -> None:
    assert gpm_rows(DMON, 0, (2, 5)) == {2: [1.0, 8.0], 5: [0.0, 2.0]}
    with pytest.raises(SmiError, match="no values"):
        gpm_rows("".join(DMON.splitlines(keepends=True)[:4]), 0, (2, 5))


@pytest.mark.parametrize("text", ["[Requested functionality has been deprecated]", "[N/A]"])
def test_csv_says_in_brackets_that_there_is_no_such_thing(text: str) -> None:
    assert told(text, "x").unsupported


@pytest.mark.parametrize("text", ["[GPU is lost]", "GPU is lost", "Not Found"])
def test_what_is_no_value(text: str) -> None:
    assert (told(text, "x").value, told(text, "x").unsupported) == (None, False)


def test_a_corrupt_inforom_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi answers, warns behind its answer, and ends with 14."""
    said = f'<nvidia_smi_log><gpu id="{BUS}"><serial>1</serial></gpu></nvidia_smi_log>\nWARNING: infoROM is corrupted\n'
    (tmp_path / "said").write_text(said)
    shell_script(tmp_path / "bin/nvidia-smi", "cat {said}; exit 14", said=tmp_path / "said")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    xml = SmiXml(smi("-q", "-x"))
    assert xml.told(BUS, "serial").value == "1"
    assert "WARNING" not in xml.text


def test_links_of_blackwell_count_other_errors() -> None:
    lines = [f"\t Link 0: {name}: 0" for name in ("Malformed packet Errors", "Rx Errors", "Rx remote Errors")]
    text = "GPU 0: NVIDIA B200 (UUID: GPU-1)\n" + "\n".join([*lines, "\t Link 0: Total link recovery events: 3"])
    found = asked()
    found.links = {"errorcounters": link_lines(text)}
    assert link_errors(link_lines(text)[0]) == {}
    assert told_errors(found, 0).value is None
    assert "no replay" in told_errors(found, 0).why
    assert counted_errors([NvlinkLink(0, True, errors={"symbol": 2})]) is None
    assert counted_errors([NvlinkLink(0, True, errors={"crc": 2}), NvlinkLink(1, False)]) == {
        "replay": 0,
        "recovery": 0,
        "crc": 2,
    }


def test_torch_sees_instances_where_mig_is_enabled() -> None:
    found = asked()
    found.torch = [{"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "total_memory": 1, "uuid": "1"}]
    assert torch("name")(found, 0).why.startswith("MIG is enabled")
    assert torch("total_memory")(found, 0).value is None
    found.torch[0]["name"] = "NVIDIA H100 80GB HBM3"
    assert torch("name")(found, 0).value == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("text", ["[N/A]", "[GPU is lost]", "[Unknown Error]", ""])
def test_a_gpu_without_an_address(text: str) -> None:
    found = asked(**{"pci.bus_id": text})
    for read in (sysfs("current_link_speed"), proc("Model")):
        assert read(found, 0).why == "nvidia-smi does not tell the PCI address"
    assert moving(found.bus_id(0)) == {}


def test_a_links_speed_is_that_of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A desktop's GPU has a slow link while it is idle."""
    monkeypatch.setattr(paths, "SYSROOT", str(tmp_path))
    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    found = asked()
    found.sysfs = {"0": moving(BUS)}
    (folder / "current_link_speed").write_text("16.0 GT/s PCIe\n")
    again = Asked.of(json.loads(json.dumps(found.to_json("<log/>"))))
    assert sysfs("current_link_speed")(found, 0).value == "2.5 GT/s PCIe"
    assert sysfs("current_link_speed")(again, 0).value == "2.5 GT/s PCIe"
    assert sysfs("current_link_width", lanes)(found, 0).why.endswith("No such file or directory")
    assert [lanes(text) for text in ("1", "16")] == [1, 16]
    for text in ("0", "63", "255"):  # virtual machines
        with pytest.raises(ValueError, match=text):
            lanes(text)


def test_whom_a_load_would_disturb() -> None:
    free = GpuSample(0, processes=[], busy=0.0, memory_used_bytes=IN_USE_BYTES)
    assert in_use(free) == ""
    seen_from_here = GpuSample(0, processes=[], busy=0.0, memory_used_bytes=3 << 30)
    assert in_use(seen_from_here).startswith("3.0 GiB of this GPU are in use by nobody who is seen from here")
    screen = GpuSample(0, processes=[GpuProcess(7, kind="graphics")], busy=0.01, memory_used_bytes=3 << 30)
    assert in_use(screen) == ""
    assert in_use(GpuSample(0, mig_enabled=True, processes=[])).startswith("MIG is enabled")


@pytest.mark.parametrize(
    ("name", "outcome"),
    [("NVIDIA GB200", "not tried"), ("NVIDIA GH200 480GB", "not tried"), ("NVIDIA B200", "differs")],
)
def test_copies_beside_a_grace_do_not_go_over_pcie(name: str, outcome: str) -> None:
    found = Activity(0, name)
    found.loads["host"] = Under(gpu_rate=400e9, is_long=True, series={"pcie.rx_bytes_per_s": [1e6]})
    check = from_host(found)
    assert (check.name, check.outcome) == (FROM_HOST, outcome)


def test_what_is_saved_has_no_uuid_and_no_serial(tmp_path: Path) -> None:
    uuid, domain = "5a4e0001-0000-4000-8000-00000000abcd", "8C3CBA3E-0F24-4f6a-b1a6-6b3b1b2e0c11"
    gpus = [{"index": 1, "uuid": f"GPU-{uuid}", "serial": None, "name": "H100"}]
    context = Context(tmp_path, 0.0, Pythons("", ""), Machine({}, gpus), False)
    of_gpu = "00000000-0000-0000-0000-000000000001"
    assert context.scrubbed(f"GPU-{uuid} {uuid}") == f"GPU-{of_gpu} {of_gpu}"  # nvidia-smi's and torch's
    one, other = context.scrubbed(f"{domain} MIG-{domain.lower()}").split(" MIG-")
    assert one == other != domain
    assert context.scrubbed(one) == one
    nothing = "00000000-0000-0000-0000-000000000000 <chassis_serial_number>N/A</chassis_serial_number>"
    assert context.scrubbed(nothing) == nothing
    text = "<chassis_serial_number>1820325191344</chassis_serial_number><gpu_fabric_guid>0x5f</gpu_fabric_guid>"
    assert context.scrubbed(text) == (
        "<chassis_serial_number>0</chassis_serial_number><gpu_fabric_guid>0</gpu_fabric_guid>"
    )


def counters(us: int) -> str:
    name = "clocks_event_reasons_counters"
    return f"<{name}><{name}_sw_power_cap>{us} us</{name}_sw_power_cap></{name}>"


def capped(watts: float, limit_w: float, told_w: str, us_a_second: int, share: float | None) -> Loaded:
    """Three looks, a second apart."""
    looks = []
    for at in range(3):
        gpu = GpuSample(0, power_w=watts, power_limit_w=limit_w)
        if share is not None:
            gpu.throttle_share["sw_power_cap"] = share
        then = asked(counters(at * us_a_second), **{"enforced.power.limit": told_w})
        looks.append(Look(then, gpu, [], copy.deepcopy(then), float(at)))
    return Loaded(0, looks)


def test_another_limit_than_the_gpus_own_may_hold_it() -> None:
    """As a module's, which a GPU shares with its CPU; nvidia-smi counts it, too."""
    check = throttling.at_limit(capped(800, 1200, "1200.00", 900_000, 0.9))
    assert (check.outcome, "another limit" in check.why) == ("not tried", True)
    assert throttling.at_limit(capped(800, 1200, "820.00", 900_000, 0.9)).outcome == "differs"
    assert throttling.at_limit(capped(800, 1200, "1200.00", 0, 0.9)).outcome == "differs"
    assert throttling.at_limit(capped(800, 1200, "1200.00", 0, 0.0)).outcome == "agrees"
    assert throttling.at_limit(capped(1190, 1200, "1200.00", 0, 0.0)).outcome == "differs"
    assert throttling.at_limit(capped(1190, 1200, "1200.00", 0, None)).outcome == "not tried"


def test_a_gpu_that_cannot_be_loaded_costs_no_other(tmp_path: Path) -> None:
    tried = []

    def take(_: Context, index: int, uuid: str, seconds: float) -> Loaded:
        tried.append((index, uuid, seconds))
        if index == 0:
            raise throttling.NotTriedError("the load bf16 did not start: out of memory")
        return replace(capped(1190, 1200, "1200.00", 900_000, 0.9), index=index)

    gpus = [{"index": index, "uuid": f"GPU-{index}", "serial": None, "name": "H100"} for index in range(3)]
    context = Context(tmp_path, time.monotonic() + 540, Pythons("", ""), Machine({}, gpus), False)
    checks = list(throttling.of_gpus(context, take))
    assert {check.outcome for check in checks if check.details["gpu"] == 0} == {"not tried"}
    assert next(check.why for check in checks if check.details["gpu"] == 0).endswith("out of memory")
    assert {check.name for check in checks if check.outcome == "agrees"} >= {"sw_power_cap at the limit"}
    assert [round(seconds) for _, _, seconds in tried] == [60, 60, 20]


def test_a_gpu_that_mltop_does_not_list() -> None:
    with Mltop() as mltop, pytest.raises(throttling.NotTriedError, match="does not list"):
        throttling.of_gpu(mltop, 0)


def test_what_nvml_cannot_tell_before_driver_570_is_no_difference() -> None:
    """nvidia-smi tells T.Limit all the same."""
    row = next(row for row in ROWS if row.path == "temperature_margin_c")
    one = values.Round(asked("<temperature><gpu_temp_tlimit>45 C</gpu_temp_tlimit></temperature>"), Mltop(), 0.0)
    one.gpus = [GpuSample(0)]
    assert values.checked(row, 0, one).outcome == "differs"
    one.gaps = [Gap("gpu.0.temperature_margin_c", *codes.T_LIMIT_ALONE)]
    check = values.checked(row, 0, one)
    assert (check.outcome, "driver 570" in check.why) == ("not tried", True)


@pytest.mark.parametrize(("ours", "outcome"), [(50, "agrees"), (45, "agrees"), (42, "differs"), (None, "differs")])
def test_t_limit_is_what_the_memory_has_left_at_least(ours: float | None, outcome: str) -> None:
    """An H100 at 42 °C whose memory has 45: 45 are left to the GPU's 87 °C, 50 to the memory's 95 °C."""
    row = next(row for row in ROWS if row.path == "memory_temperature_margin_c")
    said = {
        "gpu_temp": 42,
        "gpu_temp_tlimit": 45,
        "gpu_temp_max_gpu_tlimit_threshold": 0,
        "memory_temp": 45,
        "gpu_temp_max_mem_tlimit_threshold": 0,
    }
    lines = "".join(f"<{name}>{value} C</{name}>" for name, value in said.items())
    one = values.Round(asked(f"<temperature>{lines}</temperature>"), Mltop(), 0.0)
    one.gpus = [GpuSample(0, memory_temperature_margin_c=ours)]
    assert values.checked(row, 0, one).outcome == outcome


@pytest.mark.parametrize(
    ("ours", "outcome"),
    [({"7": 511, "8": None}, "agrees"), ({"7": 510, "8": None}, "differs"), ({"7": 512}, "differs")],
)
def test_mebibytes_may_be_rounded(ours: dict[str, int | None], outcome: str) -> None:
    told_of = Told({"7": 512, "8": None})
    assert between("processes (memory)", ours, told_of, told_of, 1, "MiB").outcome == outcome


def test_torchs_own_words_are_those_before_its_advice() -> None:
    said = """Traceback (most recent call last):
  File "load_child.py", line 112, in <module>
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
    assert last_words(said).startswith("torch.AcceleratorError: CUDA error: no kernel image")
    assert last_words("warning\nKilled\n") == "Killed"
    assert last_words("") == ""
    code = f"import sys; sys.stderr.write({said!r}); sys.exit(1)"
    assert machine.ask(sys.executable, code).startswith("torch.AcceleratorError")


def test_a_torch_that_finds_a_gpu_is_taken(tmp_path: Path) -> None:
    """Environments for CPUs are common beside one for GPUs."""
    pythons = []
    for number, said in enumerate(('{"available": false}', "no JSON", '{"available": true}')):
        (tmp_path / f"{number}.json").write_text(said)
        pythons.append(str(shell_script(tmp_path / f"{number}/python", "cat {said}", said=tmp_path / f"{number}.json")))
    assert machine.first_with_gpu(pythons) == pythons[2]
    assert machine.first_with_gpu(pythons[:2]) == pythons[0]
    assert machine.first_with_gpu([]) == ""


def test_the_python_of_a_script_is_the_one_that_it_names(tmp_path: Path) -> None:
    """As pip writes it, and where a path has spaces; a program of another kind is none of ours."""
    said = tmp_path / "said.json"
    said.write_text(json.dumps({"package": "/x/mltop", "version": "1", "python": "3.12", "missing": []}))
    for folder in ("bin", "a folder"):
        python = shell_script(tmp_path / folder / "python3", "cat {said}", said=said)
        script = python_script(tmp_path / folder / "mltop", "", python=python)
        if folder == "bin":
            script.write_text(f"#!{python}\nimport sys\n")
        assert machine.program_at(str(script)) == machine.Program(str(script), str(python), "/x/mltop")
    said.write_text(json.dumps({"package": "/x/mltop", "version": "1", "python": "3.12", "missing": ["rich"]}))
    assert str(machine.program_at(str(script))).endswith("python3 has no rich")
    assert machine.program_at("/bin/true") == "it is no script of a Python environment"
    assert machine.program_at(str(tmp_path / "none")) == "No such file or directory"


def test_who_is_asked_for_its_last_words_goes_on_where_it_was() -> None:
    with tempfile.TemporaryFile() as errors:
        errors.write(b"first\n")
        errors.flush()
        assert last_words_in(errors) == "first"
        assert errors.tell() == 6
        errors.write(b"x" * (2 << 20) + b"\nlast \xff\n")
        errors.flush()
        assert last_words_in(errors) == "last \ufffd"


def test_a_child_that_does_not_end_is_ended() -> None:
    began_s = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_for(0.1, ["sleep", "600"])
    assert time.monotonic() - began_s < 60
    assert run_for(60, ["printf", r"\377"]).stdout == "\ufffd"


def test_nvidia_smi_hides_processes_of_other_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SYSROOT", str(tmp_path))
    row = next(row for row in ROWS if row.name == "processes (pids)")
    one = values.Round(asked("<processes/>"), Mltop(), 0.0)
    one.gpus = [GpuSample(0, processes=[GpuProcess(4000, kind="compute")])]
    assert values.checked(row, 0, one).outcome == "differs"
    namespace = tmp_path / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("pid:[4026532999]")
    assert values.checked(row, 0, one).outcome == "not tried"
    (tmp_path / "proc/4000").mkdir()
    assert values.checked(row, 0, one).outcome == "differs"
    (tmp_path / "proc/4000").rmdir()
    namespace.unlink()
    namespace.symlink_to(values.HOSTS_PIDS)
    assert values.checked(row, 0, one).outcome == "differs"


@pytest.mark.parametrize(
    ("state", "status", "value"),
    [("Completed", "Success", 0), ("Completed", "Insufficient Resources", None), ("In Progress", "N/A", None)],
)
def test_a_fabric_that_a_gpu_is_not_registered_in(state: str, status: str, value: int | None) -> None:
    row = next(row for row in ROWS if row.path == "fabric.clique_id")
    said = f"<fabric><state>{state}</state><status>{status}</status><cliqueId>0</cliqueId></fabric>"
    told_then = row.read(asked(said), 0)
    assert told_then.value == value
    assert value is not None or "means nothing" in told_then.why
