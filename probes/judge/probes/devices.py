"""Node names as a user writes them, ``h[01-16,20]``, without a library: a judge has none.

What measured devices are called in a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mltop.probes.judge.probes import numbers
from mltop.probes.model.probe import DeviceResult
from mltop.probes.model.ranks import fold

_NUMBERED = re.compile(r"([^,\[\]]*?)(\d+)([^\d,\[\]]*)")  # the last number of a name; "gpu2-h07.lan" has the 07
MOST_CHARS = 120


def folded(names: Iterable[str], most_chars: int = MOST_CHARS) -> str:
    """The distinct names, those that differ in their last number alone as one; what is too long ends in "and 480 more".

    A number keeps its zeros, as in ClusterShell's notation: h1 and h01 are two nodes.
    """
    distinct = sorted(set(names), key=natural)
    parts = _parts(distinct)
    text = ",".join(part for part, _ in parts)
    if len(text) <= most_chars:
        return text
    kept: list[str] = []
    count = 0
    for part, members in parts:
        if kept and len(",".join([*kept, part])) > most_chars:
            break
        kept.append(part)
        count += members
    return ",".join(kept) + (f" and {len(distinct) - count} more" if count < len(distinct) else "")


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sorting key by which h2 comes before h10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name) if part]


def _parts(names: list[str]) -> list[tuple[str, int]]:
    """Folded texts and how many names each holds, in the order of their first names."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            groups[name, "", -1] = [name]
            continue
        before, number, after = match.groups()
        width = len(number) if number.startswith("0") or _padded(names, before, after, len(number)) else 0
        groups.setdefault((before, after, width), []).append(number)
    return [(_text(*key, numbers), len(numbers)) for key, numbers in groups.items()]


def _padded(names: list[str], before: str, after: str, width: int) -> bool:
    """Whether a number without leading zeros belongs to padded ones: 10 after 09."""
    return any(
        match is not None
        and (match[1], match[3]) == (before, after)
        and len(match[2]) == width
        and match[2].startswith("0")
        for match in map(_NUMBERED.fullmatch, names)
    )


def _text(before: str, after: str, width: int, numbers: list[str]) -> str:
    if width < 0:
        return numbers[0]
    if len(numbers) == 1:
        return f"{before}{numbers[0]}{after}"
    values = sorted(map(int, numbers))
    ranges: list[list[int]] = []
    for value in values:
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    ends = [f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}" for first, last in ranges]
    return f"{before}[{','.join(ends)}]{after}"


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
