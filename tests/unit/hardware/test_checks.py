"""What a check against a second source says: unknown never agrees with anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.model import Gap
from tests.hardware.asked import link_lines
from tests.hardware.checks import Check, Told, among, between, compare, ratio, within
from tests.hardware.context import CHECKOUT, Context, Machine, Pythons
from tests.hardware.report import line
from tests.hardware.rows.board import bus_id
from tests.hardware.rows.links import generation, link_errors, link_speeds
from tests.hardware.rows.row import number
from tests.hardware.sources import SmiError, SmiXml, gpm_rows, told

UNSUPPORTED = Gap("gpu.0.x", "not supported", kind="unsupported")
UNKNOWN = Gap("gpu.0.x", "no permission")
NA = Told(why="it says N/A", unsupported=True)
SILENT = Told(why="it does not tell")


@pytest.mark.parametrize(
    ("ours", "theirs", "tolerance", "gap", "outcome"),
    [
        (1, Told(1), 0, None, "agrees"),
        (1, Told(1.0), 0, None, "agrees"),
        (1, Told(2), 0, None, "differs"),
        (1, Told(2), 1, None, "agrees"),
        (True, Told(False), 1, None, "differs"),  # a flag is no number
        ("a", Told("a"), 0, None, "agrees"),
        ("a", Told("b"), 0, None, "differs"),
        (0, Told(None, "no"), 0, None, "not tried"),
        (0, NA, 0, None, "not tried"),
        (None, Told(0), 0, None, "differs"),
        (None, Told(0), 0, UNSUPPORTED, "differs"),
        (None, Told(0), 0, UNKNOWN, "differs"),
        (None, NA, 0, UNSUPPORTED, "agrees"),
        (None, NA, 0, UNKNOWN, "not tried"),
        (None, NA, 0, None, "not tried"),
        (None, SILENT, 0, UNSUPPORTED, "not tried"),
    ],
)
def test_compare(ours: Any, theirs: Told, tolerance: float, gap: Gap | None, outcome: str) -> None:
    check = compare("x", ours, theirs, tolerance, gap=gap)
    assert check.outcome == outcome
    assert check.why or check.outcome != "not tried"
    # Asked twice with the same answer, it is the same.
    assert between("x", ours, theirs, theirs, tolerance, gap=gap).outcome == outcome


@pytest.mark.parametrize(
    ("ours", "before", "after", "slack", "outcome"),
    [
        (5, 1, 9, 0, "agrees"),
        (5, 9, 1, 0, "agrees"),
        (10, 1, 9, 0, "differs"),
        (10, 1, 9, 1, "agrees"),
        (0, 1, 9, 0.5, "differs"),
        (5, None, 5, 0, "agrees"),
        (5, 4, None, 0, "differs"),
        ({"a": 1}, {"a": 1}, {"a": 2}, 0, "agrees"),
        ({"a": 3}, {"a": 1}, {"a": 2}, 0, "differs"),
    ],
)
def test_between(ours: Any, before: Any, after: Any, slack: float, outcome: str) -> None:
    assert between("x", ours, Told(before), Told(after), slack).outcome == outcome


@pytest.mark.parametrize(
    ("ours", "before", "after", "outcome"),
    [
        ([1, 2], [1, 2], [1, 2], "agrees"),
        ([1], [1, 2], [1], "agrees"),
        ([1, 2], [1], [1, 2], "agrees"),
        ([], [1], [1], "differs"),
        ([1, 3], [1], [1, 2], "differs"),
        ([], [], [], "agrees"),
    ],
)
def test_among(ours: list[int], before: list[int], after: list[int], outcome: str) -> None:
    assert among("x", ours, Told(before), Told(after)).outcome == outcome


def test_within() -> None:
    assert within("x", 5, 1, 9, "a load").outcome == "agrees"
    assert within("x", 5, None, 4, "a load").outcome == "differs"
    assert within("x", None, 1, 9, "a load").outcome == "differs"


POWER = {"gpu": 3, "source": "nvidia-smi"}


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (
            Check("power_w", "differs", 71.25, {"low": 90.0, "high": 91.5}, "", "W", POWER),
            "differs                power_w [gpu 3]: mltop 71.25 W, nvidia-smi 90 to 91.5 W",
        ),
        (
            Check("x", "differs", None, 3, "mltop: why"),
            "differs                x: mltop unknown, expected 3; mltop: why",
        ),
        (Check("x", "not tried", why="no GPU", slice="values"), "not tried  values      x: no GPU"),
        (
            Check("x", "agrees", 0.5, {"low": None, "high": 1}),
            "agrees                 x: mltop 0.5, expected at most 1",
        ),
        (Check("x", "agrees", [1, 2], [1, 2]), "agrees                 x: mltop [1, 2], expected [1, 2]"),
        (Check("x", "not tried", why="a\x1b[31m\nb", slice="values"), "not tried  values      x: a b"),
    ],
)
def test_lines(check: Check, said: str) -> None:
    assert line(check) == said


@pytest.mark.parametrize(
    ("text", "value", "unsupported"),
    [
        ("71.50", "71.50", False),
        ("[N/A]", None, True),
        ("N/A", None, True),
        ("[Not Supported]", None, True),
        ("[Unknown Error]", None, False),
        ("ERR!", None, False),
        ("[Insufficient Permissions]", None, False),
        ("", None, False),
    ],
)
def test_what_nvidia_smi_prints(text: str, value: str | None, unsupported: bool) -> None:
    found = told(text, "nvidia-smi x")
    assert (found.value, found.unsupported) == (value, unsupported)
    assert found.value is not None or found.why


def test_xml_where_a_whole_section_is_not_there() -> None:
    text = '<nvidia_smi_log><gpu id="00000000:1B:00.0"><remapped_rows>N/A</remapped_rows></gpu></nvidia_smi_log>'
    xml = SmiXml(text)
    assert xml.told("00000000:1b:00.0", "remapped_rows/remapped_row_corr").unsupported
    assert xml.told("00000000:1B:00.0", "remapped_rows/row_remapper_histogram/row_remapper_histogram_max").unsupported
    assert not xml.told("00000000:1B:00.0", "temperature/gpu_temp").unsupported
    assert xml.told("00000000:1C:00.0", "remapped_rows/remapped_row_corr").why.startswith("nvidia-smi -q does not list")


def test_links() -> None:
    status = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    errors = (
        "GPU 0: A (UUID: GPU-1)\n\t Link 0: Replay Errors: 2\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: 1\n"
        "\n\t Link 1: Replay Errors: 3\nGPU 1: B (UUID: GPU-2)\n\t Link 0: CRC FLIT Errors: 4\n"
    )
    assert link_speeds(link_lines(status)[0]) == [26.562]
    assert link_errors(link_lines(errors)[0]) == {"replay": 5, "recovery": 0, "crc": 1}
    assert link_errors(link_lines(errors)[1]) == {"replay": 0, "recovery": 0, "crc": 4}


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        (99.0, Told(100.0), "agrees"),
        (94.9, Told(100.0), "differs"),
        (103.1, Told(100.0), "differs"),
        (None, Told(100.0), "differs"),
        (99.0, SILENT, "not tried"),
        (None, SILENT, "not tried"),
    ],
)
def test_ratio(ours: float | None, theirs: Told, outcome: str) -> None:
    check = ratio("x", ours, theirs, 0.95, 1.03, "the same shape", "TFLOPS", "it failed")
    assert check.outcome == outcome
    assert ("it failed" in check.why) == (ours is None)
    assert check.details.get("ratio") == (None if ours is None or theirs.value is None else round(ours / 100, 4))
    assert ratio("x", 300.0, Told(100.0), 0.95, None, "the same shape").outcome == "agrees"


def test_numbers() -> None:
    assert [number(text) for text in ("45 C", "-2 C", "2623863050 us", "2560 bank(s)", "16x")] == [
        45,
        -2,
        2623863050,
        2560,
        16,
    ]
    assert [generation(text) for text in ("2.5 GT/s PCIe", "32.0 GT/s PCIe")] == [1, 5]
    assert bus_id("0000:1b:00.0") == bus_id("00000000:1B:00.0") == "00000000:1B:00.0"
    with pytest.raises(ValueError, match="N/A"):
        number("N/A")


DMON = """# gpu    pwr  gtemp  mtemp  smutil  mmaact
# Idx      W      C      C   GPM:%   GPM:%
    0     91     41     47       0       0
    0    253     42     48      42      17
    1     80     40     46       1       2
# gpu    pwr  gtemp  mtemp  smutil  mmaact
# Idx      W      C      C   GPM:%   GPM:%
    0    300     44      -      96      61
"""


def test_gpm_of_nvidia_smi() -> None:
    """The first rows of a GPU are of no time; the head comes again."""
    assert gpm_rows(DMON, 0, (2, 5)) == {2: [42.0, 96.0], 5: [17.0, 61.0]}
    for text, says in (
        (re.sub(r"\d+      +\d+\n", "-       -\n", DMON), "no values"),  # an A100
        (DMON.replace("  mmaact", "").replace("   GPM:%\n", "\n"), "1 columns of GPM, not 2"),
        ("GPM is not supported\n", "0 columns of GPM"),
    ):
        with pytest.raises(SmiError, match=says):
            gpm_rows(text, 0, (2, 5))


def test_what_is_saved_tells_of_no_home(tmp_path: Path) -> None:
    context = Context(tmp_path, 0.0, Pythons("", ""), Machine(), False)
    said = context.scrubbed(f"cannot run /home/alice/env/bin/python, /root/x, {Path.home()}/y; rooted in /rooted/home")
    assert said == "cannot run ~/env/bin/python, ~/x, ~/y; rooted in /rooted/home"


def test_what_is_saved_does_not_tell_where_programs_are() -> None:
    context = Context(Path("/"), 0.0, Pythons("/opt/a/bin/python3", "/scratch/t/bin/python"), Machine(), False)
    text = f'"/opt/a/bin/python3", "/scratch/t/bin/python" {CHECKOUT}/tests/hardware/loads.py'
    assert context.scrubbed(text) == '"python", "python" ./tests/hardware/loads.py'


def test_what_is_saved_does_not_tell_whose_machine_it_was() -> None:
    gpus = [{"index": 1, "uuid": "GPU-5a4e0001-aaaa", "serial": "1650000000001", "name": "H100"}]
    machine = Machine({"host": "gpu017.cluster.example"}, gpus)
    context = Context(Path("/"), 0.0, Pythons("", ""), machine, False)
    text = "gpu017:12 on gpu017.cluster.example, /home/ada/train.py, GPU-5a4e0001-aaaa of 1650000000001, gpu0170"
    assert context.scrubbed(text) == (
        "host:12 on host, ~/train.py, GPU-00000000-0000-0000-0000-000000000001 of 0000000000002, gpu0170"
    )
