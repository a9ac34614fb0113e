"""What NCCL took, from its NCCL_DEBUG=INFO output (NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING), in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mltop.probes.judge.active import numbers
from mltop.probes.judge.active.nodes import folded

_VERSION = re.compile(r"NCCL version (?P<version>\d[\d.]*)(?:\S*\+cuda(?P<cuda>[\d.]+))?")
_NICS = re.compile(r"NET/IB : Using (?P<list>.*?)(?:;|$)")
_NIC = re.compile(r"\[\d+\](?P<name>[\w.-]+?):\d+(?::\d*)*/(?P<link>IB|RoCE)(?P<sharp>/SHARP)?")
_SOCKETS = re.compile(r"NET/Socket : Using (?P<list>.*)")
_SOCKET = re.compile(r"\[\d+\](?P<name>[\w.-]+):")
_NETWORK = re.compile(r"Using network (?P<name>.+)")
_CHANNELS = re.compile(r"(?P<ring>\d+) coll channels, (?:\d+ collnet channels, )?(?:(?P<nvls>\d+) nvls channels, )?")
_NVLS = re.compile(r"NVLS multicast support is (?P<no>not )?available")
_NET_PATH = re.compile(r"\bvia NET/(?P<net>[^/\s]+)/\d+(?:\(\d+\))?(?P<direct>/GDRDMA)?")
_LOCAL_PATH = re.compile(r"\bvia (?P<path>P2P|SHM)/")
_ENV = re.compile(r"\b(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>\S+?)\.?$")
_NAMED = re.compile(r"(?P<what>\w+): (?P<bytes>\d+) Bytes -> Algo (?P<algo>\w+) proto (?P<proto>\w+)")
_NUMBERED = re.compile(r"(?P<bytes>\d+) Bytes -> Algo (?P<algo>\d+) proto (?P<proto>\d+)")
_PLUGIN = re.compile(
    r"(?:Loaded net plugin (?P<net>[^(]+?)(?: \(v\d+\))?|TUNER/Plugin: Using (?P<tuner>[^(]+?)(?: \(v\d+\))?)$"
)
# NCCL_ALGO_* and NCCL_PROTO_* of nccl_common.h
_ALGOS = ("tree", "ring", "CollNet direct", "CollNet chain", "NVLS", "NVLS tree", "PAT")
_PROTOS = ("LL", "LL128", "Simple")
_NAMES = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "SendRecv": "all-to-all",
}
_ALGO_WORDS = {"RING": "ring", "TREE": "tree", "NVLS_TREE": "NVLS tree", "COLLNET_DIRECT": "CollNet direct"}


def settings(lines: Iterable[str]) -> list[str]:
    """The first: version, network, NVLS, channels; then the algorithm of each size, and what the user has set.

    [] when nothing of it is in the lines (gloo).
    """
    every = [line.rstrip() for text in lines for line in text.splitlines()]
    first = [*_version(every), *_network(every), *_within(every), *_channels(every)]
    found = [", ".join(first)] if first else []
    return [*found, *_algorithms(every), *_plugins(every), *_environment(every)]


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> re.Match[str] | None:
    return next((match for match in map(pattern.search, lines) if match is not None), None)


def _version(lines: list[str]) -> list[str]:
    match = _first(_VERSION, lines)
    if match is None:
        return []
    return [f"NCCL {match['version'].rstrip('.')}" + (f" (CUDA {match['cuda']})" if match["cuda"] else "")]


def _network(lines: list[str]) -> list[str]:
    """NICs when InfiniBand or RoCE is used, interfaces when it is TCP. NICs that were found may be left unused."""
    network = _first(_NETWORK, lines)
    name = network["name"].strip() if network is not None else ""
    nics = _first(_NICS, lines)
    listed = list(_NIC.finditer(nics["list"])) if nics is not None else []
    if listed and not name.startswith("Socket"):
        links = {"InfiniBand" if match["link"] == "IB" else "RoCE" for match in listed}
        sharp = " with SHARP" if any(match["sharp"] for match in listed) else ""
        names = folded(match["name"] for match in listed)
        return [
            f"{numbers.many(len(listed), 'NIC')} over {' and '.join(sorted(links))}{sharp} ({names})",
            *_direct(lines),
        ]
    sockets = _first(_SOCKETS, lines)
    if sockets is not None or name.startswith("Socket"):
        names = folded(match["name"] for match in _SOCKET.finditer(sockets["list"])) if sockets is not None else ""
        fell_back = " although there are InfiniBand or RoCE NICs" if _has_mlx(lines) else ""
        return [f"over TCP sockets{f' ({names})' if names else ''}{fell_back}"]
    return [f"network {name}", *_direct(lines)] if name else []


def _has_mlx(lines: list[str]) -> bool:
    return any("mlx5_" in line for line in lines)


def _direct(lines: list[str]) -> list[str]:
    paths = [match for match in map(_NET_PATH.search, lines) if match is not None]
    if not paths:
        return []
    direct = sum(match["direct"] is not None for match in paths)
    if direct == len(paths):
        return ["GPU Direct RDMA"]
    return ["no GPU Direct RDMA: data goes through host memory" if not direct else "GPU Direct RDMA on some NICs only"]


def _within(lines: list[str]) -> list[str]:
    """How GPUs of one node reach each other."""
    found = []
    nvls = [match["no"] is None for match in map(_NVLS.search, lines) if match is not None]
    if nvls:
        found.append("NVLS on" if all(nvls) else "no NVLS" if not any(nvls) else "NVLS on some GPUs only")
    if any(match["path"] == "SHM" for match in map(_LOCAL_PATH.search, lines) if match is not None):
        found.append("GPUs of one node reach each other through host memory (SHM)")
    return found


def _channels(lines: list[str]) -> list[str]:
    match = _first(_CHANNELS, lines)
    if match is None:
        return []
    nvls = f", NVLS {match['nvls']}" if match["nvls"] and match["nvls"] != "0" else ""
    return [f"ring {numbers.many(int(match['ring']), 'channel')}{nvls}"]


def _algorithms(lines: list[str]) -> list[str]:
    """``all-reduce of 256 MiB: NVLS, Simple protocol``: of each size the first."""
    found: dict[tuple[str, int], str] = {}
    for line in lines:
        named, numbered = _NAMED.search(line), _NUMBERED.search(line)
        if named is not None and not named["algo"].isdigit():
            algo = _ALGO_WORDS.get(named["algo"], named["algo"])
            key = (_NAMES.get(named["what"], named["what"]), int(named["bytes"]))
            found.setdefault(key, f"{algo}, {named['proto'].replace('SIMPLE', 'Simple')} protocol")
        elif numbered is not None:
            algo, proto = _name(_ALGOS, numbered["algo"]), _name(_PROTOS, numbered["proto"])
            what = _NAMES.get(named["what"], named["what"]) if named is not None else "collective"
            found.setdefault((what, int(numbered["bytes"])), f"{algo}, {proto} protocol")
    return [f"{what} of {numbers.size(size)}: {how}" for (what, size), how in found.items()]


def _name(names: tuple[str, ...], number: str) -> str:
    return names[int(number)] if int(number) < len(names) else number


def _plugins(lines: list[str]) -> list[str]:
    matches = [match for match in map(_PLUGIN.search, lines) if match is not None]
    nets = dict.fromkeys(match["net"].strip() for match in matches if match["net"])
    tuners = dict.fromkeys(match["tuner"].strip() for match in matches if match["tuner"])
    return [f"network plugin {name}" for name in nets] + [f"tuner plugin {name}" for name in tuners]


def _environment(lines: list[str]) -> list[str]:
    """What was set in the environment, by the user or by the probe."""
    found = {match["name"]: match["value"] for match in map(_ENV.search, lines) if match is not None}
    return (
        [f"set in the environment: {', '.join(f'{name}={value}' for name, value in sorted(found.items()))}"]
        if found
        else []
    )
