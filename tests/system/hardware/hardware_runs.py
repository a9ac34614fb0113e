"""`bash tests/gpu` on a machine of fakes, and what it wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.documents import ROOT
from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.nvml.counts import read_counts
from tests.fakes.sysfs import GPU_BUSES
from tests.system.hardware.faults.fault import Lie

# Of NVML what has an effect, and what of that has none beyond the caller's own memory.
CHANGES = re.compile(
    r"nvml\w*?(?:Set(?!Wait)|Reset|Clear|Enable|Disable|Create|Destroy|Modify|Remove|Inject|Freeze|Drain)\w*"
)
HARMLESS = {"nvmlEventSetCreate", "nvmlEventSetFree"}
READING = re.compile(
    r"-q|-x|nvlink|--status|--errorcounters|--query-(gpu|compute-apps)=[\w.,]+|--format=csv,noheader,nounits"
    r"|dmon|--(id|count|delay)=\d+|--select=p|--gpm-metrics=[\d,]+"
)
POLICY_FIELDS = {"0": 74, "2": 76, "3": 77, "4": 78, "5": 79}  # the field that counts the same
TIMEOUT_S = 300.0


@dataclass
class Done:
    code: int
    said: str
    directory: Path
    results: dict[str, Any]
    report: str

    def names(self, outcome: str) -> set[str]:
        return {check["name"] for check in self.results["checks"] if check["outcome"] == outcome}

    def check(self, name: str) -> dict[str, Any]:
        (found,) = [check for check in self.results["checks"] if check["name"] == name]
        return found


def run(
    machine: GpuMachine,
    *words: str,
    env: dict[str, str] | None = None,
    processes: bool = False,
    checkout: Path = ROOT,
) -> Done:
    """In a new folder below the machine's. Whatever is run changes nothing on it.

    ``processes``: real ones, and none but its own, instead of the fake's.
    """
    directory = machine.directory / f"results-{len(list(machine.directory.glob('results-*')))}"
    done = subprocess.run(
        [*(_alone() if processes else []), "bash", str(checkout / "tests/gpu"), "-o", str(directory), *words],
        env={**machine.env(), **({"MLTOP_SYSROOT": ""} if processes else {}), **(env or {})},
        cwd=machine.directory,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    nothing_was_changed(machine)
    assert (directory / "results.json").exists(), done.stdout + done.stderr
    return Done(
        done.returncode,
        done.stdout + done.stderr,
        directory,
        json.loads((directory / "results.json").read_text()),
        (directory / "report.txt").read_text(),
    )


def nothing_was_changed(machine: GpuMachine) -> None:
    """By calls of NVML and words for nvidia-smi so far."""
    counted = read_counts(machine.nvml.counts_path) if machine.nvml.counts_path.exists() else {}
    called = {name for name, counts in counted.items() if counts and CHANGES.fullmatch(name)}
    assert called <= HARMLESS, called - HARMLESS
    words = {word for asked in machine.smi.asked() for word in asked}
    others = {word for word in words if not READING.fullmatch(word)}
    assert not others, others


def _alone() -> list[str]:
    """In a process namespace, in which nobody else's training runs."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    return unshare if os.geteuid() == 0 else [*unshare, "--user", "--map-root-user"]


def tell(machine: GpuMachine, lie: Lie) -> None:
    """The second source says so from now on."""
    if lie.source == "proc":
        if lie.name == "version":
            machine.write_proc("driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64  {lie.text}  Release\n")
        else:
            machine.information(0, **{lie.name: lie.text})
    elif lie.source == "sysfs":
        machine.sys.set_pci(f"0000:{GPU_BUSES[0]}:00.0", **{lie.name: lie.text})
    elif lie.source == "torch":
        machine.torch_lies[lie.name] = int(lie.text) if lie.text.isdigit() else lie.text
        machine.torch_lies_path.write_text(json.dumps(machine.torch_lies))
    elif lie.source == "violation":  # both read one key of the scenario: the field says something else instead
        machine.nvml.set(f"gpu.0.field.{POLICY_FIELDS[lie.name]}", lie.text)
        machine.nvml.write()
    else:
        machine.smi.lie(lie.source, lie.name, lie.text)
