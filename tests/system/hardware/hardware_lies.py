"""Lies put into answers that were had: as many faults as there are checks, from one run of the fakes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from typing import Any

from mltop.probes.model import GpuSample
from tests.hardware.asked import Asked, link_lines
from tests.hardware.checks import Check
from tests.hardware.sources import SmiXml
from tests.system.hardware.faults.fault import Lie


def put(asked: Asked, lie: Lie) -> None:
    """Files of /proc are read when they are compared: see hardware_runs.tell."""
    if lie.source == "query":
        asked.rows["0"][lie.name] = lie.text
    elif lie.source == "gpus":
        asked.rows["1"] = {"index": "1"}
    elif lie.source == "xml":
        asked.xml = SmiXml(changed(asked.xml.text, lie.name, lie.text))
    elif lie.source == "nvlink":
        asked.links[{"status": "status", "errors": "errorcounters"}[lie.name]] = link_lines(f"GPU 0: H100\n{lie.text}")
    elif lie.source == "apps":
        asked.apps = [lie.text.split(", ")]
    elif lie.source == "torch":
        if isinstance(asked.torch, list):  # it is asked once, at the end
            asked.torch[0][lie.name] = lie.text
    elif lie.source == "violation":
        assert isinstance(asked.violations, list)
        asked.violations[0][int(lie.name)] = int(lie.text)
    elif lie.source == "sysfs":
        asked.sysfs["0"][lie.name] = lie.text
    else:
        assert lie.source == "proc", lie


def put_in_sample(gpu: GpuSample, lie: Lie) -> None:
    name, _, key = lie.name.partition(".")
    value = float(lie.text) if "." in lie.text else int(lie.text)
    if key:
        getattr(gpu, name)[key] = value
    else:
        setattr(gpu, name, value)


def put_in_record(record: dict[str, Any], lie: Lie) -> None:
    *way, last = lie.name.split("/")
    at = record
    for name in way:
        at = at[name]
    at[last] = json.loads(lie.text)


def changed(text: str, path: str, said: str) -> str:
    """Of nvidia-smi -q -x one element; elements that are not there come into being."""
    root = ET.fromstring(text.replace('<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', ""))
    top, _, below = path.partition("/")
    at = root if top == "system" else root.find("gpu")
    for name in (below if top == "system" else path).split("/"):
        assert at is not None
        child = at.find(name)
        at = ET.SubElement(at, name) if child is None else child
    assert at is not None
    at.clear()
    if said.startswith("<"):
        at.append(ET.fromstring(said))
    else:
        at.text = said
    return ET.tostring(root, encoding="unicode")


def differing(checks: Iterable[Check]) -> set[str]:
    return {check.name for check in checks if check.outcome == "differs"}
