"""What several files of tests would make anew for every test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bootstrapping import start_once


@pytest.fixture(scope="session")
def _home_with_an_agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("installed") / "home"
    home.mkdir()
    start_once(home)
    return home


@pytest.fixture
def warm_home(_home_with_an_agent: Path, tmp_path: Path) -> Path:
    """A home in which an agent was installed and has run: installing compiles for more than a second of CPU."""
    return shutil.copytree(_home_with_an_agent, tmp_path / "home", symlinks=True)
