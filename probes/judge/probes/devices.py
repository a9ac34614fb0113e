"""What measured devices are called in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.probes import numbers
from mltop.probes.model.probe import DeviceResult
from mltop.probes.model.ranks import fold


def device_name(result: DeviceResult) -> str:
    """``GPU 5 on n03``, ``MIG slice 5f3a… of GPU 5 on n03``, ``CPUs of n03``."""
    if result.kind == "cpu":
        return f"CPUs of {result.node}" if result.node else "CPUs"
    on = f" on {result.node}" if result.node else ""
    gpu = f"GPU {result.gpu}" if result.gpu is not None else f"GPU {result.uuid}"
    if result.kind == "mig":
        return f"MIG slice {result.uuid.removeprefix('MIG-')[:8]} of {gpu}{on}"
    return gpu + on


def devices_name(results: Sequence[DeviceResult]) -> str:
    """``GPUs 0-3 on n03``, ``GPUs 1,5 on n03 and GPU 2 on n07``, ``CPUs of h[01-04]``."""
    if len(results) == 1:
        return device_name(results[0])
    if all(result.kind == "cpu" for result in results):
        return f"CPUs of {folded(result.node for result in results)}"
    nodes: dict[str, list[DeviceResult]] = {}
    for result in results:
        nodes.setdefault(result.node, []).append(result)
    names: list[str] = []
    alike: dict[str, list[str]] = {}  # of nodes with the same GPUs
    for node, members in nodes.items():
        whole = len(members) > 1 and all(one.kind == "gpu" and one.gpu is not None for one in members)
        if whole:
            alike.setdefault(fold(one.gpu for one in members if one.gpu is not None), []).append(node)
        else:
            names += [device_name(one) for one in members]
    names += [
        f"GPUs {gpus}" + (f" on {'each of ' if len(on) > 1 else ''}{folded(on)}" if any(on) else "")
        for gpus, on in alike.items()
    ]
    return numbers.listed(names)


def plural(results: Sequence[DeviceResult]) -> str:
    """``GPUs``, ``MIG slices``, ``nodes``: what so many devices of one kind are counted as."""
    kinds = {result.kind for result in results}
    word = "MIG slice" if kinds == {"mig"} else "CPU node" if kinds == {"cpu"} else "GPU"
    return numbers.many(len(results), word)
