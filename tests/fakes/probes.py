"""What tests of the probes share: nodes of made-up GPUs, a Python with a made-up torch, a probe run to its end."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mltop.probes.active.supervisor.request import request_from
from mltop.probes.active.supervisor.supervise import Facts, Supervisor
from mltop.probes.model import GpuSample, Sample
from mltop.probes.model.probe import ProbeEvent
from mltop.probes.model.probe_kinds import CHILDREN
from tests.fakes.scripts import shell_script

CHILD = str(Path(__file__).with_name("probe_child.py"))
MODULES = dict.fromkeys(CHILDREN, CHILD)
GIB = 1 << 30


def gpu(index: int = 0, **fields: Any) -> GpuSample:
    """An idle one."""
    known = {"name": "NVIDIA H100 80GB HBM3", "busy": 0.0, "memory_used_bytes": 0, "processes": []}
    return GpuSample(index, **{"uuid": f"GPU-{index}", "memory_total_bytes": 80 * GIB, **known, **fields})


def idle(*gpus: GpuSample, node: str = "n1") -> Facts:
    """Of a node without GPUs when none are given."""
    sample = Sample(node, 1.0, gpus=list(gpus))
    sample.host.cpu_fraction = 0.0
    return Facts(node, [sample] * 3)


def torch_folder(folder: Path, version: str = "2.9.0+cu128", cuda: str | None = "12.8") -> Path:
    """Something for PYTHONPATH that looks like torch until it is imported."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    text = f"from typing import Optional\n__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\nhip = None\n"
    (package / "version.py").write_text(text)
    return folder


def torch_python(folder: Path, version: str = "2.9.0+cu128", cuda: str | None = "12.8") -> str:
    """Path of a Python that finds that torch."""
    found = torch_folder(folder / "lib", version, cuda)
    line = 'PYTHONPATH={found} exec {python} "$@"'
    return str(shell_script(folder / "bin/python", line, found=found, python=sys.executable))


def torchless_python(folder: Path) -> str:
    """Path of a Python that has no torch: isolated from every site-packages."""
    return str(shell_script(folder / "python", 'exec {python} -I -S "$@"', python=sys.executable))


class Runs:
    """Probes of one supervisor, each by ``options["do"]`` of the fake child."""

    def __init__(self, python: str) -> None:
        self.supervisor = Supervisor(MODULES)
        self._python = python

    def run(
        self,
        facts: Facts,
        do: str,
        on_event: Callable[[ProbeEvent], None] = lambda _: None,
        cancelled: threading.Event | None = None,
        **args: Any,
    ) -> list[ProbeEvent]:
        """``args``: of the request; what is no argument of one goes to the options."""
        request: dict[str, Any] = {"key": "k1", "kind": "matmul", "python": self._python}
        known = {
            name: args.pop(name) for name in ("key", "kind", "gpus", "force", "deadlines_s", "total_s") if name in args
        }
        events: list[ProbeEvent] = []

        def emit(event: ProbeEvent) -> None:
            events.append(event)
            on_event(event)

        asked = request_from({**request, **known, "options": {"do": do, **args}})
        self.supervisor.run(asked, lambda: facts, emit, cancelled or threading.Event())
        return events


def of(events: list[ProbeEvent], *kinds: str) -> list[ProbeEvent]:
    return [event for event in events if event.event in kinds]


def pids_in(events: list[ProbeEvent]) -> list[int]:
    """Processes that a fake child told of."""
    return [pid for event in events for pid in event.data.get("pids", ())]


def modules_variable() -> str:
    return json.dumps(MODULES)
