"""How long each slice of `bash tests/gpu` may take of the time that is left."""

from __future__ import annotations

import pytest

from tests.hardware.slices import LIMIT_S, SLICES, share

NAMES = list(SLICES)


def taken(left_s: float) -> dict[str, float]:
    """A run in which each slice takes what it usually takes, or all that it may."""
    found = {}
    for place, name in enumerate(NAMES):
        if SLICES[name].least <= left_s:
            found[name] = min(SLICES[name].seconds, share(name, NAMES[place + 1 :], left_s))
            left_s -= found[name]
    return found


def test_eight_minutes_are_for_what_was_never_proven() -> None:
    found = taken(445.0)  # without the time for a slice's end, and for finding what there is
    usual = {"stacks", "screen", "dtypes"}
    assert list(found)[:5] == ["stacks", "screen", "dtypes", "bits", "cost"]
    assert {name for name in found if found[name] == SLICES[name].seconds} >= usual
    assert all(found[name] >= SLICES[name].least for name in found)


def test_with_time_enough_every_slice_has_its_own() -> None:
    assert taken(2685.0) == {name: one.seconds for name, one in SLICES.items()}


@pytest.mark.parametrize("left_s", [60.0, 120.0, 300.0, 445.0, 1200.0, 2685.0])
def test_no_slice_takes_what_it_may_not(left_s: float) -> None:
    """A slow one may take half as long again, where nobody else goes short for it."""
    for place, name in enumerate(NAMES):
        if SLICES[name].least <= left_s:
            found = share(name, NAMES[place + 1 :], left_s)
            assert SLICES[name].least <= found <= min(left_s, LIMIT_S)
            assert found >= min(left_s, SLICES[name].seconds) or left_s < SLICES[name].seconds
    assert share("stacks", [], left_s) == min(left_s, LIMIT_S)
