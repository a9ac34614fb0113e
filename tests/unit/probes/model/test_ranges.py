"""Ranges as text and back."""

from __future__ import annotations

import pytest

from mltop.probes.model.ranks import Ranges


@pytest.mark.parametrize("text", ["", "0", "0-12", "0-12,14", "3,5-6,900000000000-900000000001"])
def test_what_was_written_is_read(text: str) -> None:
    assert str(Ranges.parsed(text)) == text


@pytest.mark.parametrize("text", ["-1", "1-", "2-1", "1,1", "1-5,3", "a", "1;2", " 1", "1_0", "+1", "1--2", ",", "²"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Ranges.parsed(text)
