"""Every Python on this machine runs the wheel, in an environment of its own, in a real terminal.

At the end a table says which part worked on which Python.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import pythons
from tests.once import once

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("screen", "demo", "fleet", "commands", "agent")
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
# What tests/system drives in full on the Python that it runs on, which here need not do it again.
DRIVEN = ("demo", "fleet", "commands")


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout}{run.stderr}"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def build(folder: Path) -> Path:
        _pip("wheel", "-q", "--no-deps", "-w", folder, ROOT)
        return next(folder.glob("mltop-*.whl"))

    return once(tmp_path_factory, "wheel", build)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Installs mltop for one version; its Python lies beside the program."""

    def of(version: str) -> Path:
        def install(folder: Path) -> Path:
            subprocess.run([pythons.found()[version], "-m", "venv", "--without-pip", folder / "venv"], check=True)
            _pip("--python", folder / "venv/bin/python", "install", "-q", "--no-compile", wheel)
            return folder / "venv/bin/mltop"

        return once(tmp_path_factory, f"python{version}", install)

    return of


@pytest.fixture(params=pythons.operators())
def mltop(request: pytest.FixtureRequest, installed: Callable[[str], Path]) -> Path:
    return installed(request.param)


def is_driven(item: pytest.Item) -> bool:
    part, call = item.get_closest_marker("part"), getattr(item, "callspec", None)
    return part is not None and part.args[0] in DRIVEN and call is not None and call.params.get("mltop") == OWN


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of one Python on one worker: it is installed once, while the next one is."""
    again = [item for item in items if is_driven(item)]
    config.hook.pytest_deselected(items=again)
    items[:] = [item for item in items if item not in again]
    for item in items:
        if (call := getattr(item, "callspec", None)) is not None and "mltop" in call.params:
            item.add_marker(pytest.mark.xdist_group(call.params["mltop"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """What the table is made of: it travels with the report, also from a worker."""
    report = yield
    part = item.get_closest_marker("part")
    call = getattr(item, "callspec", None)
    if part is not None and call is not None:
        version = call.params.get("mltop") or call.params["node_python"]
        report.user_properties.append(("cell", (version, part.args[0])))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    cells: dict[tuple[str, str], bool] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "cell" and (report.when == "call" or report.failed):
                    cell = (value[0], value[1])
                    cells[cell] = cells.get(cell, True) and report.passed
    if not cells:
        return
    terminalreporter.write_sep("=", "every Python")
    terminalreporter.write_line("Python    " + "".join(f"{part:<10}" for part in PARTS))
    for version in sorted(
        {version for version, _ in cells}, key=lambda version: int(version.split(".")[1].rstrip("t"))
    ):
        marks = [{True: "ok", False: "FAILED", None: "-"}[cells.get((version, part))] for part in PARTS]
        terminalreporter.write_line(f"{version:<10}" + "".join(f"{mark:<10}" for mark in marks))
