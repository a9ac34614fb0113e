"""The table of GPUs: every vendor figure is calculated again, wrong figures that are in the wild are not in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mltop.probes.judge.probes.hardware import links
from mltop.probes.judge.probes.hardware.peaks import PEAKS, Peak, peak_of, peak_tflops
from tests import peaks

BY_NAME = {peak.name: peak for peak in PEAKS}
VENDOR_FIGURES = [(peak, dtype) for peak in PEAKS for dtype in peak.tflops]
# Of rows without a clock, and fp32 of Blackwell, nothing can be calculated; the table says so.
NOT_CALCULATED = {("B200", "fp32"), ("GB200", "fp32")}


@pytest.mark.parametrize(("peak", "dtype"), VENDOR_FIGURES, ids=lambda value: getattr(value, "name", value))
def test_multiprocessors_times_flop_times_clock_is_the_vendors_figure(peak: Peak, dtype: str) -> None:
    calculated = peak_tflops(peak, dtype, None, None)
    if peak.boost_mhz is None or peak.sms is None:
        assert calculated is None and not peak.certain
        return
    assert calculated is not None
    if (peak.name, dtype) in NOT_CALCULATED:
        assert f"tflops.{dtype}" in peak.doubts
        return
    rounded = "rounds" in peak.doubts.get(f"tflops.{dtype}", "")
    allowed = 0.01 if rounded else 0.003 if dtype in ("bf16", "fp16") else 0.005
    assert calculated == pytest.approx(peak.tflops[dtype], rel=allowed)


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_every_row_is_whole(peak: Peak) -> None:
    assert peak.source
    assert peak.memory_bytes_per_s and 0.2e12 < peak.memory_bytes_per_s < 10e12
    assert peak.power_w and 50 <= peak.power_w <= 1500
    assert set(peak.tflops) <= set(peak.flop_per_clock)
    assert set(peak.best_shapes) <= set(peak.mamf_tflops)
    assert set(peak.clocks_mhz) <= set(peak.tflops)
    re.compile(peak.pattern)
    for dtype, rate in peak.mamf_tflops.items():
        # A burst may exceed the vendor's clock; on the rows that are certain it does not reach the figure.
        assert rate < peak.tflops[dtype] or not peak.certain
    if peak.copy_bytes_per_s is not None:
        low, high = peak.copy_bytes_per_s
        assert 0.7 * peak.memory_bytes_per_s < low < high < peak.memory_bytes_per_s
        assert peak.copy_floor_bytes_per_s is None or peak.copy_floor_bytes_per_s < low


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_doubts_name_fields_and_say_why(peak: Peak) -> None:
    of_dtypes = {f"tflops.{dtype}" for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")}
    of_mamf = {f"mamf.{dtype}" for dtype in peak.mamf_tflops}
    fields = {"sms", "ids", "boost_mhz", "memory_bytes", "memory_bytes_per_s", "power_w", "l2_bytes", "host_link"}
    assert set(peak.doubts) <= of_dtypes | of_mamf | fields | {"tflops"}
    assert all(peak.doubts.values())


@pytest.mark.parametrize(
    "name",
    ["V100 SXM2", "V100 PCIe", "A40", "RTX A6000", "L4", "RTX 4090", "RTX 5090", "H100 NVL", "B300", "GB300", "GB200"],
)
def test_general_knowledge_and_disputed_rows_are_not_certain(name: str) -> None:
    peak = BY_NAME[name]
    assert not peak.certain
    assert not peak.is_sure("memory_bytes_per_s")


def test_a_doubtful_value_of_a_certain_row_is_not_sure() -> None:
    b200 = BY_NAME["B200"]
    assert b200.is_sure("tflops.bf16")
    assert not b200.is_sure("memory_bytes_per_s")
    assert BY_NAME["H100 SXM"].is_sure("memory_bytes_per_s")


@pytest.mark.parametrize(
    ("product", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb", "H100 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Max-Q"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI325X OAM", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("AMD Instinct MI250X", "MI250X (one of two dies)"),
        ("H100 SXM", "H100 SXM"),
    ],
)
def test_product_names(product: str, row: str) -> None:
    found = peak_of(product)
    assert found is not None
    assert found.name == row


@pytest.mark.parametrize(
    "product",
    [
        "NVIDIA H800",
        "NVIDIA H20",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA L40",
        "NVIDIA A4000",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10",
        "Intel(R) Xeon(R) Processor",
        "",
    ],
)
def test_what_is_not_in_the_table_is_unknown_and_not_its_neighbour(product: str) -> None:
    assert peak_of(product) is None


def test_the_device_id_is_stronger_than_the_name() -> None:
    for given in ("2335", "0x2335", "233510DE", "0x233510de"):
        found = peak_of("NVIDIA H100 80GB HBM3", given)
        assert found is not None and found.name == "H200 SXM", given


def test_a_name_with_an_id_that_is_not_its_own_is_uncertain() -> None:
    found = peak_of("NVIDIA H100 80GB HBM3", "2339")
    assert found is not None
    assert found.name == "H100 SXM" and not found.certain and "2339" in found.doubts["ids"]
    known = peak_of("NVIDIA H100 80GB HBM3", "2330")
    assert known is not None and known.certain


def test_an_id_belongs_to_one_row() -> None:
    ids = [number for peak in PEAKS for number in peak.ids]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch("[0-9a-f]{4}", number) for number in ids)


def test_the_devices_own_multiprocessors_and_clock_count() -> None:
    h100, b300 = BY_NAME["H100 SXM"], BY_NAME["B300"]
    slice_tflops = peak_tflops(h100, "bf16", 16, 1830)  # a MIG slice
    whole = peak_tflops(h100, "bf16", 132, 1830)
    assert slice_tflops is not None and whole is not None
    assert slice_tflops == pytest.approx(whole * 16 / 132)
    assert peak_tflops(h100, "bf16", None, 915) == pytest.approx(whole / 2)
    assert peak_tflops(b300, "bf16", None, 1900) is None
    assert peak_tflops(b300, "bf16", 160, 1900) == pytest.approx(160 * 8192 * 1.9e9 / 1e12)
    assert peak_tflops(BY_NAME["V100 SXM2"], "bf16", 80, 1530) is None


# (row, dtype, TFLOPS that some table has): twice the dense figure, or the shader rate instead of the tensor cores'.
WRONG_TFLOPS = [
    ("L4", "bf16", 242),
    ("L40S", "bf16", 733),
    ("H200 SXM", "bf16", 1979),
    ("H200 SXM", "bf16", 2000),
    ("H100 SXM", "bf16", 1979),
    ("H100 SXM", "fp8", 3958),
    ("H100 NVL", "bf16", 1671),
    ("H100 NVL", "bf16", 1979),
    ("RTX 4090", "bf16", 82.6),
    ("A40", "bf16", 37.4),
    ("RTX A6000", "bf16", 38.7),
    ("A100 SXM 80GB", "bf16", 624),
    ("B200", "bf16", 4500),
    ("MI355X", "bf16", 2300),
    ("MI250X (one of two dies)", "bf16", 383),
]


@pytest.mark.parametrize(("row", "dtype", "wrong"), WRONG_TFLOPS)
def test_wrong_figures_of_other_tables_are_not_here(row: str, dtype: str, wrong: float) -> None:
    assert BY_NAME[row].tflops[dtype] != pytest.approx(wrong, rel=0.02)


@pytest.mark.parametrize(
    ("row", "wrong_bytes_per_s"),
    [("L4", 3350e9), ("H200 SXM", 2.333e9), ("A100 SXM 40GB", 137.5e9), ("A100 SXM 40GB", 2.0e12)],
)
def test_wrong_memory_rates_of_other_tables_are_not_here(row: str, wrong_bytes_per_s: float) -> None:
    peak = BY_NAME[row]
    for value in (peak.memory_bytes_per_s, peak.copy_floor_bytes_per_s):
        assert value != pytest.approx(wrong_bytes_per_s, rel=0.02)


@pytest.mark.parametrize(
    ("gen", "width", "wire", "copy"),
    [(3, 16, 15.8e9, None), (4, 16, 31e9, 26e9), (5, 16, 63e9, 51e9), (5, 8, 31.5e9, 25.5e9), (1, 16, 4e9, None)],
)
def test_pcie_links(gen: int, width: int, wire: float, copy: float | None) -> None:
    assert gen not in links.PCIE or links.PCIE[gen].wire * width / 16 == pytest.approx(wire)
    found = links.pcie_copy(gen, width)
    assert (found.bytes_per_s if found else None) == (None if copy is None else pytest.approx(copy))
    if found is not None:
        assert found.bytes_per_s < wire
        assert found.certain is (width == 16)


def test_unknown_pcie_links() -> None:
    assert links.pcie_copy(9, 16) is None
    assert links.pcie_copy(5, 0) is None


def test_copies_of_grace_do_not_depend_on_pcie() -> None:
    assert not links.uses_pcie("NVIDIA GB200")
    assert links.host_copy("NVIDIA GB200", "", "to_device", 5, 1) is None
    gb300 = links.host_copy("NVIDIA GB300", "", "to_host", 5, 1)
    assert gb300 is not None and gb300.bytes_per_s == 377e9 and not gb300.certain
    h100 = links.host_copy("NVIDIA H100 80GB HBM3", "2330", "to_device", 5, 16)
    assert links.uses_pcie("NVIDIA H100 80GB HBM3") and h100 is not None and h100.bytes_per_s == 51e9


def test_copies_between_gpus() -> None:
    h200, a100, b300 = (links.peer_copy(name) for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA B300"))
    assert h200 is not None and h200.bytes_per_s == 363e9 and h200.certain
    assert a100 is not None and a100.bytes_per_s == 272e9
    assert b300 is not None and not b300.certain
    for without in ("NVIDIA L40S", "NVIDIA H100 PCIe", "AMD Instinct MI300X", "Tesla V100-SXM2-16GB", "unknown"):
        assert links.peer_copy(without) is None


def test_the_document_is_that_of_these_tables() -> None:
    document = Path(links.__file__).with_name("PEAKS.md").read_text(encoding="utf-8")
    assert document == peaks.document(), "python -m tests.peaks > probes/judge/probes/hardware/PEAKS.md"
    for peak in PEAKS:
        assert f"| {peak.name}" in document
