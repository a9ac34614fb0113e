"""Fixtures of the tests that need hosts: import them into the module that uses them.

from tests.hosts.fixtures import hosts, nothing_left  # noqa: F401
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.cluster import Hosts


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """A login node and h01 to h16, kept for the whole module."""
    with Hosts(16) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left(hosts: Hosts) -> Iterator[None]:
    """After every test the hosts are whole again, and no process of ours is left on any of them."""
    yield
    for host in hosts:
        host.heal()
    hosts.know_keys()
    try:
        hosts.wait_clean()
    finally:
        for host in (hosts.login, *hosts):
            host.kill_strangers()  # so that one test's failure stays its own
