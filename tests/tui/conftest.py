"""Every test starts an app; what all of them would compute alike is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from textual.css.stylesheet import Stylesheet

_PARSED: dict[tuple[Any, ...], list[Any]] = {}


@pytest.fixture(scope="session", autouse=True)
def _style_sheets_are_parsed_once() -> Iterator[None]:
    """Textual parses the same text again for every app and at the first visit of every pane: a sixth of the CPU."""
    parse = Stylesheet._parse_rules

    def parse_once(self: Stylesheet, *args: Any, **named: Any) -> list[Any]:
        key = (*args, *sorted(named.items()), *self._variables.items())
        if key not in _PARSED:
            _PARSED[key] = parse(self, *args, **named)
        return _PARSED[key]

    Stylesheet._parse_rules = parse_once  # type: ignore[method-assign]
    yield
    Stylesheet._parse_rules = parse  # type: ignore[method-assign]
