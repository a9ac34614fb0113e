"""From what dcgm-exporter and dcgmi print to rows, and which GPU a row is of."""

from __future__ import annotations

import pytest

from mltop.probes.collect.dcgm.readers import Row, is_of_dcgm, parse, parse_discovery, parse_row
from mltop.probes.collect.sysfile import sysfs_bus_id
from mltop.probes.model import GpuSample
from tests.fakes.dcgm_exporter import ALWAYS, PROFILING, RENAMED, gpu_lines, line

VALUES = {name: (index + 1) / 10 for index, name in enumerate(PROFILING)}


@pytest.mark.parametrize("names", [PROFILING, RENAMED], ids=["old names", "names since 4.6"])
def test_every_field_by_its_old_and_its_new_name(names: dict[str, str]) -> None:
    text = ALWAYS + gpu_lines(VALUES, names, gpu="3", UUID="GPU-3", pci_bus_id="00000000:3B:00.0", device="nvidia3")
    (row,) = parse(text, 1000.0, 50.0)
    assert row == Row("GPU-3", "00000000:3B:00.0", 3, None, 50.0, VALUES)


def test_gpus_and_instances_have_rows_of_their_own() -> None:
    text = (
        gpu_lines({"sm_active": 0.5}, gpu="0", UUID="GPU-0", GPU_I_PROFILE="1g.5gb", GPU_I_ID="7")
        + gpu_lines({"sm_active": 0.25}, gpu="0", UUID="GPU-0", GPU_I_PROFILE="1g.5gb", GPU_I_ID="9")
        + gpu_lines({"sm_active": 0.75}, gpu="1", UUID="GPU-1")
    )
    rows = parse(text, 0.0, 0.0)
    assert [(row.uuid, row.gpu_instance, row.values["sm_active"]) for row in rows] == [
        ("GPU-0", 7, 0.5),
        ("GPU-0", 9, 0.25),
        ("GPU-1", None, 0.75),
    ]


SM = PROFILING["sm_active"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (line(SM, 0, gpu="0"), 0.0),
        (line(SM, "1.004000", gpu="0"), 1.0),
        (line(SM, "9.87e-01", gpu="0"), 0.987),
        (line(SM, 140737488355328.0, gpu="0"), None),
        (line(SM, 140737488355330.0, gpu="0"), None),
        (line(SM, 9223372036854775792, gpu="0"), None),
        (line(SM, "NaN", gpu="0"), None),
        (line(SM, "+Inf", gpu="0"), None),
        (line(SM, 57.5, gpu="0"), None),
        (line(SM, -0.1, gpu="0"), None),
        (line(SM, 0.5, pod='he said \\"}\\" \\\\', gpu="0"), 0.5),
        (line(SM, 0.5, gpu="0") + "   ", 0.5),
    ],
)
def test_values(text: str, expected: float | None) -> None:
    (row,) = parse(text, 0.0, 0.0)
    assert row.values == {"sm_active": expected}
    assert row.index == 0
    assert bool(row.garbage) == ("57.5" in text or "-0.1" in text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html><body>It works</body></html>",
        SM,
        f"{SM} 0.5",
        f'{SM}{{gpu="0"}}',
        f'{SM}{{gpu="0"}} five',
        f'{SM}{{gpu="0 0.5',
        f'# {SM}{{gpu="0"}} 0.5',
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0.5',
        'node_cpu{gpu="0"} 0.5',
    ],
)
def test_what_is_no_profiling_metric_makes_no_row(text: str) -> None:
    assert parse(text, 0.0, 0.0) == []


def test_a_line_that_carries_a_time_is_as_old_as_it_says() -> None:
    (row,) = parse(line(SM, 0.5, at_ms=980_000, gpu="0"), 1000.0, 50.0)
    assert row.taken_s == 30.0
    (row,) = parse(line(SM, 0.5, at_ms=1_020_000, gpu="0"), 1000.0, 50.0)
    assert row.taken_s == 50.0, "a clock that is ahead makes nothing younger than now"


def test_who_speaks() -> None:
    assert is_of_dcgm(ALWAYS)
    assert is_of_dcgm('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 41')
    assert not is_of_dcgm("# HELP node_cpu_seconds_total Seconds.\n")
    assert not is_of_dcgm("")


GPU = GpuSample(2, uuid="GPU-5A4E0001", pci_bus_id="00000000:3B:00.0")


@pytest.mark.parametrize(
    ("row", "is_it"),
    [
        (Row(uuid="GPU-5a4e0001"), True),
        (Row(uuid="GPU-5a4e0002"), False),
        (Row(uuid="GPU-5a4e0002", bus_id="0000:3b:00.0", index=2), False),
        (Row(bus_id="0000:3b:00.0"), True),
        (Row(bus_id="0000:3c:00.0", index=2), False),
        (Row(index=2), True),
        (Row(index=3), False),
        (Row(), False),
    ],
)
def test_rows_belong_to_gpus_by_uuid_then_address_then_index(row: Row, is_it: bool) -> None:
    assert row.is_of(GPU) is is_it


def test_a_gpu_whose_uuid_is_unknown_is_found_by_its_address() -> None:
    assert Row(uuid="GPU-7", bus_id="0000:3b:00.0").is_of(GpuSample(0, pci_bus_id="00000000:3B:00.0"))


@pytest.mark.parametrize("text", ["0000:3b:00.0", "00000000:3B:00.0", " 00000000:3b:00.0 "])
def test_addresses_are_written_in_two_ways(text: str) -> None:
    assert sysfs_bus_id(text) == "0000:3b:00.0"


DISCOVERED = """2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: 00000000:07:00.0                                         |
|        | Device UUID: GPU-1d7f3f0e-5b3a-4ba4-9b1a-3a6b44a0a5a0                |
+--------+----------------------------------------------------------------------+
| 4      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: 00000000:0F:00.0                                         |
|        | Device UUID: GPU-2                                                   |
+--------+----------------------------------------------------------------------+
2 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
| 11        |
| 10        |
+-----------+
"""


def test_discovery_names_gpus_by_dcgms_id() -> None:
    gpus = parse_discovery(DISCOVERED)
    assert gpus == {
        0: Row("GPU-1d7f3f0e-5b3a-4ba4-9b1a-3a6b44a0a5a0", "00000000:07:00.0", 0),
        4: Row("GPU-2", "00000000:0F:00.0", 4),
    }


@pytest.mark.parametrize("text", ["", "Error: unable to establish a connection to the specified host: localhost\n"])
def test_discovery_without_a_hostengine_finds_nothing(text: str) -> None:
    assert parse_discovery(text) == {}


GPUS = parse_discovery(DISCOVERED)
NAMES = tuple(PROFILING)


@pytest.mark.parametrize(
    ("text", "uuid", "values"),
    [
        ("GPU 4           0.123        0.100        0.500        0.250        0.000        0.010        0.020",
         "GPU-2", (0.123, 0.1, 0.5, 0.25, 0.0, 0.01, 0.02)),
        ("GPU 4           N/A          N/A          0.500        N/A          N/A          N/A          N/A",
         "GPU-2", (None, None, 0.5, None, None, None, None)),
    ],
)  # fmt: skip
def test_lines_of_dmon(text: str, uuid: str, values: tuple[float | None, ...]) -> None:
    row = parse_row(text, GPUS)
    assert row is not None
    assert (row.uuid, row.values) == (uuid, dict(zip(NAMES, values, strict=True)))


@pytest.mark.parametrize(
    "text",
    [
        "#Entity         SMACT        SMOCC        TENSO        DRAMA        FP64A        FP32A        FP16A",
        "ID",
        "",
        "GPU 7           0.1          0.1          0.1          0.1          0.1          0.1          0.1",
        "GPU-I 4         0.1          0.1          0.1          0.1          0.1          0.1          0.1",
        "GPU 4           0.1          0.1",
        "Error setting watches. Result: -37: The third-party Profiling module returned an unrecoverable error",
    ],
)
def test_other_lines_of_dmon_are_no_rows(text: str) -> None:
    assert parse_row(text, GPUS) is None
