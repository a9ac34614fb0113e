"""What a run of `bash tests/gpu` on a real GPU saved (tests/fixtures/gpu/<model>-<driver>/), compared again.

The fake NVML answers as the real one did, mltop reads it, and nvidia-smi's words of then are the second source. What
was measured under load is compared again as it was saved. A check that is known to differ stands in explained.json of
its folder, by its name, with the reason.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from mltop.probes.system import paths
from tests.fakes.nvml.recorded import load
from tests.fakes.nvml.scenario import FakeNvml
from tests.hardware import activity_checks, cost_checks
from tests.hardware.asked import Asked
from tests.hardware.checks import Check
from tests.hardware.ours import Mltop
from tests.hardware.report import line
from tests.hardware.rows import ROWS
from tests.hardware.rows.row import Row
from tests.hardware.slices import bits, copies, dtypes, probes, records, screen, stacks, throttling, values

FOLDERS = Path(__file__).parent / "fixtures/gpu"
EXPLAINED = "explained.json"
MOVED = 0.5  # of a value that moves: it was asked at three times, and mltop's units are what is looked at here


def values_again(folder: Path) -> Iterator[Check]:
    """mltop of today over NVML's answers of then, against what nvidia-smi said then."""
    answers = json.loads((folder / "answers.json").read_text())
    asked = json.loads((folder / "asked.json").read_text())
    xml = (folder / "nvidia-smi-q.xml").read_text()
    with tempfile.TemporaryDirectory() as scratch:
        fake = FakeNvml(Path(scratch) / "nvml")
        load(answers, fake)
        fake.write()
        with on_machine(Path(scratch), fake.env()), Mltop() as mltop:
            mltop.poll()
            found = values.Round(Asked.of(asked["before"], xml), mltop, 0.0)
            found.after = Asked.of(asked["after"], xml)
            for gpu in found.gpus:
                if not gpu.mig_enabled:  # instances are not saved
                    for row in ROWS:
                        yield values.checked(_slack(row, found, gpu.index), gpu.index, found)


def _slack(row: Row, found: values.Round, index: int) -> Row:
    told = row.read(found.after, index).value if row.kind == "moves" else None
    if isinstance(told, bool) or not isinstance(told, (int, float)):
        return row
    return replace(row, slack=row.slack + MOVED * abs(told))


@contextmanager
def on_machine(root: Path, env: dict[str, str]) -> Iterator[None]:
    """mltop in this process sees NVML as ``env`` says, and nothing in /proc and /sys."""
    before, sysroot = dict(os.environ), paths.SYSROOT
    os.environ.update(env)
    paths.SYSROOT = str(root)
    try:
        yield
    finally:
        paths.SYSROOT = sysroot
        os.environ.clear()
        os.environ.update(before)


def throttling_again(folder: Path) -> Iterator[Check]:
    for path in sorted(folder.glob("throttling-*.json")):
        yield from throttling.checks_of(throttling.Loaded.of(json.loads(path.read_text())))


def stacks_again(folder: Path) -> Iterator[Check]:
    """Thresholds of today against the signals of then."""
    yield from stacks.checks_of(stacks.Found.of(json.loads((folder / "stacks.json").read_text())))


def records_again(folder: Path) -> Iterator[Check]:
    """The shapes that readers rest on today against the records of then."""
    yield from records.checks_of(records.Had.of(json.loads((folder / "records.json").read_text())))


def activity_again(folder: Path) -> Iterator[Check]:
    for path in sorted(folder.glob("activity-*.json")):
        yield from activity_checks.checks_of(activity_checks.Activity.of(json.loads(path.read_text())))


def cost_again(folder: Path) -> Iterator[Check]:
    yield from cost_checks.checks_of(cost_checks.Cost.of(json.loads((folder / "cost.json").read_text())))


def probes_again(folder: Path) -> Iterator[Check]:
    found = msgspec.json.decode((folder / "probes.json").read_bytes(), type=probes.Measured)
    yield from (*probes.checks_of_probe(found), *probes.checks_of_scan(found))


def of_measured(slice_: ModuleType, folder: Path) -> Iterator[Check]:
    """A slice that saves all that it has measured, in a file of its name."""
    name = slice_.__name__.rpartition(".")[2]
    yield from slice_.checks_of(msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=slice_.Measured))


# By the files that they need.
REPLAYS: dict[str, Callable[[Path], Iterator[Check]]] = {
    "answers.json": values_again,
    "throttling-*.json": throttling_again,
    "stacks.json": stacks_again,
    "records.json": records_again,
    "activity-*.json": activity_again,
    "cost.json": cost_again,
    "probes.json": probes_again,
    **{f"{one.__name__.rpartition('.')[2]}.json": partial(of_measured, one) for one in (dtypes, copies, bits, screen)},
}


def replay(folder: Path) -> list[Check]:
    return [check for files, again in REPLAYS.items() if any(folder.glob(files)) for check in again(folder)]


def wrong(folder: Path) -> list[str]:
    """What differs and is not explained, and what is explained and does not differ."""
    explained: dict[str, Any] = {}
    if (folder / EXPLAINED).exists():
        explained = json.loads((folder / EXPLAINED).read_text())
    checks = replay(folder)
    differing = {check.name: check for check in checks if check.outcome == "differs"}
    found = [f"{name}: {line(check)}" for name, check in differing.items() if not explained.get(name)]
    found += [f"{name}: explained, but it does not differ" for name in explained if name not in differing]
    return found if checks else [*found, "nothing in it can be compared"]
