"""Numbers as short text: normal, unknown, huge and negative."""

import math
import time

import pytest

from mltop.probes.model import units

NOT_NUMBERS = (None, math.nan, math.inf, -math.inf)


@pytest.mark.parametrize(
    "text",
    [
        units.bytes_text,
        units.count,
        units.rate,
        units.number,
        units.watts,
        units.mhz,
        units.percent,
        units.celsius,
        units.seconds,
        units.clock_time,
    ],
)
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_unknown_is_a_dash_and_never_zero(text, value):
    assert text(value) == units.UNKNOWN == "–"


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0B"),
        (999, "999B"),
        (1000, "1.0K"),
        (1024, "1.0K"),
        (80 * 2**30, "80.0G"),
        (int(74.24 * 2**30), "74.2G"),
        (99.97 * 2**30, "100G"),
        (999.4 * 2**30, "999G"),
        (1000 * 2**30, "1.0T"),
        (-(2**20), "-1.0M"),
        (2**70, "1024E"),
    ],
)
def test_bytes(n, text):
    assert units.bytes_text(n) == text


@pytest.mark.parametrize(
    ("s", "text"),
    [
        (0, "0.0s"),
        (0.44, "0.4s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (3599.6, "1h00m"),
        (7500, "2h05m"),
        (4 * 86400 + 3 * 3600, "4d03h"),
        (-3, "-3.0s"),
        (-200, "-3m20s"),
    ],
)
def test_seconds(s, text):
    assert units.seconds(s) == text


@pytest.mark.parametrize(
    ("w", "text"),
    [
        (0, "0W"),
        (651.6, "652W"),
        (1200, "1200W"),
        (9999.4, "9999W"),
        (9999.6, "10.0kW"),
        (41_230, "41.2kW"),
        (2_867_200, "2.87MW"),
        (-5, "-5W"),
    ],
)
def test_watts(w, text):
    assert units.watts(w) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0%"), (0.974, "97%"), (1, "100%"), (8.4, "840%"), (-0.5, "-50%")])
def test_percent(value, text):
    assert units.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.34, "0.3"), (9.94, "9.9"), (9.96, "10"), (12_345, "12.3k"), (3e7, "30.0M")],
)
def test_rate(value, text):
    assert units.rate(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        ("652W", "700W", "652/700W"),
        ("70.0G", "80.0G", "70.0/80.0G"),
        ("980M", "80.0G", "980M/80.0G"),
        ("1755", "1980", "1755/1980"),
        ("–", "700W", "–/700W"),
        ("652W", "–", "652W/–"),
        ("–", "–", "–"),
    ],
)
def test_part_of_a_whole(part, whole, text):
    assert units.of(part, whole) == text


def test_clock_time_is_local_and_survives_any_number():
    at = time.mktime((2026, 11, 20, 12, 41, 7, 0, 0, -1))
    assert units.clock_time(at) == "12:41:07"
    assert units.clock_time(1e300) == "–"


def test_whole_numbers():
    assert units.mhz(1755) == "1755MHz"
    assert units.celsius(63.7) == "64C"
    assert units.number(-3) == "-3"
