"""The reader process's own classes over the fake NVML, in a process that is asked one expression at a time."""

from __future__ import annotations

from pathlib import Path

import mltop.probes
from tests.fakes.nvml.child import Child
from tests.fakes.nvml.scenario import FakeNvml

HELPERS = """
import sys
sys.path.insert(0, {path!r})
from mltop.probes.collect.nvml.calls import Breadcrumb
from mltop.probes.collect.nvml.calls import Calls, NvmlError, load
calls = load(Breadcrumb.create())
from mltop.probes.collect.nvml.readers.gpm import ActivityReader
from mltop.probes.collect.nvml.device import Device
from mltop.probes.collect.nvml.readers.mig import Instances, MigReader
from mltop.probes.collect.nvml.readers.sieve import Sieve
def device(index): return Device(index, handle(index), calls)
def read(reader, device):
    try: return vars(Sieve().sift(reader.read(device)))
    except NvmlError as failure: return dict(raised=[failure.call, failure.code])
"""


def start(fake: FakeNvml, *statements: str) -> Child:
    """A child that has run ``statements``, e.g. "mig = MigReader(calls)", and knows what HELPERS defines."""
    child = Child(fake)
    helpers = HELPERS.format(path=str(Path(mltop.probes.__file__).parent.parent.parent))
    child("exec(" + repr(helpers + "\n".join(statements)) + ")")
    return child
