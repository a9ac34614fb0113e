"""What is made once for all tests stays as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from mltop.probes.model import to_json
from tests.builders.health_samples import LOADS, node_h100

# No test depends on how fast a machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def shared() -> list[str]:
    return [to_json(node_h100(0.0, load=load)) for load in LOADS]


@pytest.fixture(scope="session")
def _shared_at_first() -> list[str]:
    return shared()


@pytest.fixture(autouse=True, scope="module")
def _no_test_changes_the_parts_that_samples_share(_shared_at_first: list[str]) -> Iterator[None]:
    before = list(_shared_at_first)
    yield
    _shared_at_first[:] = shared()
    assert _shared_at_first == before, "a test of this module has changed them: deepcopy(node_h100(...))"
