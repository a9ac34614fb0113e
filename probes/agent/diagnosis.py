"""The operation "diagnose": `dcgmi diag -r 1`, where nobody uses the GPUs, within a deadline."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from typing import Any

from mltop.probes.agent.programs import Unavailable
from mltop.probes.agent.sampler import Samples
from mltop.probes.collect.dcgm.readers import read_some
from mltop.probes.model import RankSample, Sample
from mltop.probes.model.acts import DiagResult, DiagStatus
from mltop.probes.model.gpu import IN_USE_BUSY, IN_USE_BYTES
from mltop.probes.model.text import plain_text
from mltop.probes.model.units import counted
from mltop.probes.system import as_root
from mltop.probes.system.spawn import end_child, start_child

DEADLINE_S = 180.0  # level 1 takes seconds to half a minute
SAMPLES_WITHIN_S = 20.0
MOST_BYTES = 4 << 20
MOST_RESULTS = 1024
_READ_S = 0.2
_END_S = 2.0
_STATUS: dict[str, DiagStatus] = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "not run": "skip"}


def diagnose(ranks: list[RankSample], samples: Samples, cancelled: threading.Event) -> dict[str, Any]:
    """Raises Unavailable where it cannot be run, or somebody works there."""
    tool = as_root.find_program("dcgmi")
    if tool is None:
        raise Unavailable("there is no dcgmi on this node")
    newest = samples(0.0, SAMPLES_WITHIN_S, cancelled, lambda _: True)
    if why := in_use(ranks, newest[-1] if newest else None):
        raise Unavailable(f"{why}: a diagnosis would disturb the work")
    began = time.monotonic()
    output = _output([tool, "diag", "-r", "1", "-j"], cancelled)
    return {"results": [asdict(result) for result in parse_diag(output)], "took_s": time.monotonic() - began}


def in_use(ranks: list[RankSample], sample: Sample | None) -> str:
    """Who uses this node's GPUs, "" for nobody."""
    alive = [rank for rank in ranks if rank.state != "Z"]
    if alive:
        return f"{counted(len(alive), 'rank')} of job {plain_text(alive[0].job, 60) or '?'} on this node"
    if sample is None or not sample.gpus:
        return "who uses the GPUs is not known"
    pids = {process.pid for gpu in sample.gpus for process in gpu.processes or () if process.kind != "graphics"}
    if pids:
        return f"pid {min(pids)}" + (f" and {len(pids) - 1} more" if len(pids) > 1 else "") + " on the GPUs"
    busy = [gpu.index for gpu in sample.gpus if (gpu.busy or 0.0) > IN_USE_BUSY]
    full = [gpu.index for gpu in sample.gpus if (gpu.memory_used_bytes or 0) > IN_USE_BYTES]
    return f"GPU {(busy or full)[0]} is in use" if busy or full else ""


def _output(command: list[str], cancelled: threading.Event) -> str:
    try:
        process = start_child(command)
    except OSError as error:
        raise Unavailable(f"dcgmi cannot be started: {error}") from None
    received = bytearray()
    until = time.monotonic() + DEADLINE_S
    try:
        while time.monotonic() < until and not cancelled.is_set():
            data = read_some(process, _READ_S)
            if data == b"":
                return received.decode("utf-8", "replace")
            received += data or b""
            if len(received) > MOST_BYTES:
                raise Unavailable("dcgmi says more than any diagnosis")
    finally:
        end_child(process, term_s=_END_S, kill_s=_END_S)
    raise Unavailable("cancelled" if cancelled.is_set() else f"dcgmi diag did not end within {DEADLINE_S:g} s")


def parse_diag(output: str) -> list[DiagResult]:
    """What ``dcgmi diag -j`` prints, of DCGM 2 to 4 (dcgmi/Diag.cpp). Raises Unavailable for what is none."""
    begin = output.find("{")
    try:
        report = json.loads(output[begin:]) if begin >= 0 else None
    except (ValueError, RecursionError):
        report = None
    body = next((each for each in report.values() if isinstance(each, dict)), {}) if isinstance(report, dict) else {}
    categories = body.get("test_categories")
    if not isinstance(categories, list):
        said = body.get("runtime_error") or body.get("Error") or next(iter(output.strip().splitlines()), "nothing")
        raise Unavailable(f"dcgmi says: {plain_text(str(said))}")
    results = [result for category in categories for result in _of_category(category)]
    return results[:MOST_RESULTS]


def _of_category(category: object) -> list[DiagResult]:
    tests = category.get("tests") if isinstance(category, dict) else None
    results: list[DiagResult] = []
    for test in tests if isinstance(tests, list) else ():
        if isinstance(test, dict):
            alike: dict[tuple[DiagStatus, str], DiagResult] = {}  # the same of several GPUs is one
            for entry in test.get("results") or ():
                if isinstance(entry, dict):
                    status, text = _STATUS.get(str(entry.get("status")).strip().lower(), "unknown"), _text(entry)
                    name = plain_text(str(test.get("name", "")), 60)
                    result = alike.setdefault((status, text), DiagResult(name, status, [], text))
                    result.gpus += _gpus(entry)
            results += alike.values()
    return results


def _text(entry: dict[str, Any]) -> str:
    """Warnings are a text, or a list of texts or of {"warning": text}."""
    parts = []
    for value in (entry.get("warnings"), entry.get("info")):
        for part in value if isinstance(value, list) else [value]:
            said = part.get("warning") or part.get("info") if isinstance(part, dict) else part
            parts += [str(said)] if said else []
    return plain_text("; ".join(parts))


def _gpus(entry: dict[str, Any]) -> list[int]:
    """ "gpu_id": "0", "gpu_ids": "0,1", or "entity_id": 0 of "entity_group" "GPU"."""
    ids = entry.get("gpu_ids", entry.get("gpu_id"))
    if ids is None and str(entry.get("entity_group", "")).upper() == "GPU":
        ids = entry.get("entity_id")
    words = str("" if ids is None else ids).split(",")
    return [int(word) for word in words if word.strip().isdecimal() and len(word) < 6]
