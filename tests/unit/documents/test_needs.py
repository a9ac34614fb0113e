"""What tests/run installs for the tests that are selected."""

from __future__ import annotations

import pytest

from tests import needs
from tests.documents import ROOT


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["tests/unit"], set()),
        (["tests/unit/documents/test_needs.py::test_all_of_them"], set()),
        (["tests/system/reach/test_slurm.py"], {"slurmctld", "slurmd", "srun", "munged", *needs.ALWAYS}),
        (["tests/system/reach/test_fleet_hosts.py", "-k", "x"], {"ip", "sshd", "ssh", "pdsh", *needs.ALWAYS}),
    ],
)
def test_a_selection(arguments: list[str], needed: set[str]) -> None:
    found = needs.needs(needs.selected(arguments))
    assert found >= needed
    assert bool(found) == bool(needed)


def test_all_of_them() -> None:
    """Without a path everything is selected; what no test needs is not in the list."""
    everything = needs.needs(needs.selected(["-k", "anything"]))
    assert everything == {*needs.PACKAGES, needs.TORCH}
    assert needs.needs(needs.selected([str(ROOT / "tests/system"), "tests/tui"])) == everything
