"""Numbers in sentences: one way for each unit."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mltop.probes.model import units


@pytest.mark.parametrize(
    ("words", "value", "text"),
    [
        (units.size_words, 17, "17 B"),
        (units.size_words, 1536, "1.5 KiB"),
        (units.size_words, 256 << 20, "256 MiB"),
        (units.size_words, 71.23 * 2**30, "71.2 GiB"),
        (units.size_words, 1023.9 * 2**20, "1 GiB"),
        (units.size_words, -(1 << 30), "-1 GiB"),
        (units.size_words, 2.0**70, "1048576 PiB"),
        (units.rate_words, 476e9, "476 GB/s"),
        (units.rate_words, 12.5e6, "12.5 MB/s"),
        (units.percent_words, 0.97, "97 %"),
        (units.percent_words, 0.004, "0.4 %"),
        (units.percent_words, 0.0, "0 %"),
        (units.celsius_words, 61.2, "61 °C"),
        (units.watts_words, 651.6, "652 W"),
        (units.watts_words, 41_230, "41.2 kW"),
        (units.clock_words, 1980, "1.98 GHz"),
        (units.duration_words, 0.4, "0.4 s"),
        (units.duration_words, 5, "5 s"),
        (units.duration_words, 59.6, "1 min"),
        (units.duration_words, 200, "3 min 20 s"),
        (units.duration_words, 7500, "2 h 5 min"),
        (units.duration_words, 7200, "2 h"),
        (units.duration_words, 86_400, "1 day"),
        (units.duration_words, 4 * 86_400 + 3 * 3600, "4 days 3 h"),
        (units.duration_words, -200, "-3 min 20 s"),
        (units.time_words, 140e-6, "140 µs"),
        (units.time_words, 31.6e-3, "31.6 ms"),
        (units.time_words, 2.41, "2.41 s"),
        (units.time_words, 0.9999, "1.00 s"),
        (units.time_words, 22.4, "22 s"),
        (units.tflops_words, 712, "712 TFLOPS"),
        (units.tflops_words, 0.215, "215 GFLOPS"),
    ],
)
def test_in_sentences(words: Callable[[float], str], value: float, text: str) -> None:
    assert words(value) == text


def test_ranges_and_counts() -> None:
    assert units.span_words([61.2, 65.8], "°C") == "61–66 °C"
    assert units.span_words([61.2, 60.9], "°C") == "61 °C"
    assert units.span_words([], "°C") == ""
    assert units.percent_span_words([0.15, 0.21]) == "15–21 %"
    assert units.span([698, 720], units.tflops_words) == "698–720 TFLOPS"
    assert [units.counted(count, "GPU") for count in (0, 1, 8)] == ["0 GPUs", "1 GPU", "8 GPUs"]


def test_a_time_of_another_day_has_its_date() -> None:
    now = 1_763_640_000.0
    assert units.day_time(now - 60.0, now) == units.clock_time(now - 60.0)
    assert (
        units.day_time(now - 3 * 86_400.0, now)
        == f"{time.strftime('%Y-%m-17', time.localtime(now))} {units.clock_time(now)}"
    )
