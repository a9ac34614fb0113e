"""A lie of one second source, which must make a check of `bash tests/gpu` say "differs"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lie:
    """``source``: who lies. What ``name`` is depends on it:

    query: a field of nvidia-smi --query-gpu. xml: a path in nvidia-smi -q -x. nvlink: status or errors (all lines of a
    GPU). apps: all of --query-compute-apps. gpus: "more", how many more nvidia-smi lists. proc: a line of
    /proc/driver/nvidia/gpus/…/information, or "version". sysfs: a file of the PCI device. torch: a property.
    violation: a policy's number. mltop: what mltop itself says wrongly, a path of the sample under load.
    record, found, value: a path in what a slice saves or has found, with slashes; ``text`` is JSON. line: such a path,
    of a text, in which the pattern ``text`` finds another word. Of probes (hardware_probed.py; JSON): result, a field
    of mltop's result by data type or kind; phase, of its sustained load; plain, of what plain torch said; watch, a
    field of nvidia-smi while it ran; refused, of the refusal; events, when a stage began.
    """

    source: str
    name: str
    text: str


@dataclass(frozen=True)
class Fault:
    """``also``: checks that the same lie must make differ, since they use the same answer."""

    lies: tuple[Lie, ...]
    also: frozenset[str] = frozenset()


def fault(source: str, name: str, text: str, *also: str) -> Fault:
    return Fault((Lie(source, name, text),), frozenset(also))
