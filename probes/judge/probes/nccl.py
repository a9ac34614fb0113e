"""What NCCL, torch and gloo print, in plain words: what failed and what to do, and what NCCL took.

Strings are those of NCCL's sources (2.18 to 2.28), of torch.distributed and of gloo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from mltop.probes.judge.nodes import folded
from mltop.probes.judge.values import known
from mltop.probes.model.units import counted, size_words

_COMPLETIONS = {
    4: "the local NIC was not allowed to read the memory (LOC_PROT_ERR)",
    5: "the connection was torn down: an error before this one is the cause (WR_FLUSH_ERR)",
    9: "{peer} refused the request (REM_INV_REQ_ERR): its buffer is gone or too small",
    10: "{peer} did not allow the access to its memory (REM_ACCESS_ERR)",
    11: "{peer} could not finish the operation (REM_OP_ERR)",
    12: "packets to {peer} were not answered (RETRY_EXC)",
    13: "{peer} was not ready to receive (RNR_RETRY_EXC)",
}
_CABLE = "check cable, port and GID index between the two (ibstat, show_gids); PCIe ACS on bare metal"
_FIRST = "look for the first error of all ranks"
_THERE = "look at that node: its log, its processes, mltop stacks"
_COMPLETION = re.compile(
    r"NET/IB\S*\s*:?\s*Got completion from peer (?P<peer>\S+) with status=(?:[A-Z_]+\()?(?P<status>\d+)"
)


class _Message(NamedTuple):
    """``meaning`` and ``action`` may name groups of the pattern. The first pattern that is found counts."""

    pattern: str
    meaning: str
    action: str


# fmt: off
_MESSAGES = (
    # InfiniBand and RoCE
    _Message(r"NET/IB : (?P<port>\S+) (?:Got async|async fatal) event[^:]*: (?P<what>.+)",
             "port {port} failed: {what}",
             "the port flapped or the NIC was reset: check cable and dmesg; mltop check shows link-down counters"),
    _Message(r"Call to ibv_modify_qp failed with (?:error )?(?:\d+ )?(?P<why>[A-Z][\w ]+)",
             "two NICs could not be connected ({why}): they do not reach each other",
             "RoCE: NCCL_IB_GID_INDEX and VLAN; InfiniBand: both ports active in one subnet (ibstat)"),
    _Message(r"(?:Call to ibv_reg_mr\S* failed|ibv_reg_mr\S* failed).*?(?P<why>Cannot allocate memory|Bad address|$)",
             "memory could not be registered with the NIC ({why})",
             "ulimit -l unlimited in the container or job; nvidia-peermem loaded (lsmod | grep peermem)"),
    _Message(r"Call to ibv_create_\w+ failed",
             "the NIC could not make a queue: locked memory or its resources are used up",
             "ulimit -l unlimited in the container or job"),
    _Message(r"NET/IB : No device found",
             "NCCL found no InfiniBand or RoCE NIC that it may use",
             "ibstat; in a container pass /dev/infiniband; check NCCL_IB_HCA and NCCL_IB_DISABLE"),
    _Message(r"NET/Socket : Using.*|Using network Socket",
             "NCCL goes over TCP sockets, not over InfiniBand or RoCE",
             "expected only without such NICs; else ibstat, NCCL_IB_HCA, NCCL_IB_DISABLE, "
             "/dev/infiniband in the container"),
    # Bootstrap and TCP
    _Message(r"Bootstrap : no socket interface found",
             "NCCL_SOCKET_IFNAME matches no interface of this node",
             "ip -br addr; unset NCCL_SOCKET_IFNAME or name an interface that is there"),
    _Message(r"connect to (?P<peer>\S+) .*exceeded error retry count|Connect to (?P<old>\S+) failed",
             "nobody answers at {peer}: a firewall, or an interface that others do not reach",
             "nc -vz to that address; set NCCL_SOCKET_IFNAME to the interface that all nodes share"),
    _Message(r"Connection closed by remote peer ?(?P<peer>\S*)", "another rank{at} died or gave up first", _THERE),
    _Message(r"Accept failed|TryAccept: exceeded error retry count",
             "connections from other nodes break off while they are made",
             "look for the first error of all ranks: this one follows from it"),
    # One node
    _Message(r"(?:Error while creating shared memory segment|failed to extend|posix_fallocate failed).*",
             "/dev/shm is full or too small",
             "df -h /dev/shm; docker --shm-size=16g or --ipc=host; remove stale /dev/shm/nccl-* files"),
    _Message(r"Failed to bind NVLink SHARP",
             "NVLS could not be set up: Fabric Manager or an NVSwitch is not in order",
             "systemctl status nvidia-fabricmanager; until then NCCL_NVLS_ENABLE=0"),
    _Message(r"NVLS multicast support is not available",
             "no NVLS on these GPUs: expect the ring's figures",
             "on H100 and later: Fabric Manager, driver 530 or newer, and a container that may use multicast"),
    _Message(r"P2P is disabled between NVLINK connected GPUs (?P<one>\d+) and (?P<other>\d+)",
             "GPUs {one} and {other} have NVLink but may not use it: very slow",
             "nvidia-smi topo -p2p r; NCCL_P2P_DISABLE, MIG mode, and the container's settings"),
    _Message(r"Mismatched NCCL version detected|NCCL version mismatch with remote peer",
             "the ranks have different NCCL versions",
             "the same torch and NCCL on all nodes (python -c 'import torch; print(torch.cuda.nccl.version())')"),
    _Message(r"Duplicate GPU detected : rank (?P<one>\d+) and rank (?P<other>\d+)",
             "ranks {one} and {other} use the same GPU",
             "torch.cuda.set_device(local_rank) before the first collective"),
    _Message(r"CUDA driver version is insufficient", "the driver is older than this CUDA needs", "update the driver"),
    _Message(r"Cuda failure.*out of memory", "no GPU memory left for NCCL's buffers", "nvidia-smi shows who holds it"),
    _Message(r"Cuda failure\D*(?P<why>'[^']+'|\d+.*)", "CUDA failed: {why}", "dmesg | grep -i xid; mltop check"),
    # torch and gloo
    _Message(r"wait timeout after .*keys: \S*?//\w+//\d+/(?P<rank>\d+)",
             "rank {rank} never joined",
             "look at rank {rank}: did it start, does it reach the leader?"),
    _Message(r"wait timeout after \S+, keys: (?P<keys>\S+)",
             "a rank never joined (nobody set {keys})",
             "compare which ranks have started"),
    _Message(r"client socket has (?:timed out|failed)(?:.*connect(?:ing)? to \(?(?P<peer>[^)]*?)\)?\.?$)?",
             "the leader cannot be reached at {peer}",
             "nc -vz to that address and port from this node: firewall, wrong interface, or the leader has ended"),
    _Message(r"Timed out waiting (?P<ms>\d+)ms for (?P<what>recv|send) operation",
             "gloo: the peer did not {what_done} for {ms} ms: it is stuck, or behind",
             "mltop stacks shows where every rank is"),
    _Message(r"(?:\[(?P<old>[\w.:]+)\]:\d+: )?Connection (?:reset|closed) by peer(?:.*?\[(?P<peer>[^\]]+)\])?",
             "another rank{at} died",
             _THERE),
    _Message(r"(?:Gloo connectFullMesh failed|connectFullMesh).*?(?P<why>no error|timed out|\[.*\])?$",
             "gloo: the ranks cannot all connect to each other",
             "GLOO_SOCKET_IFNAME: an interface that all nodes share; a firewall between two nodes"),
    _Message(r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout:.*?OpType=(?P<what>\w+)",
             "rank {rank} waited too long in {what}: another rank did not come to it",
             "the last to blame is who prints this: mltop stacks shows who is elsewhere"),
    _Message(r"ncclRemoteError", "another rank died, or the network broke: the cause is in its output", _FIRST),
    _Message(r"ncclSystemError", "a system call or the network failed", "NCCL_DEBUG=INFO shows which"),
    _Message(r"Address already in use|EADDRINUSE",
             "the leader's port is taken",
             "another job, or the one before has not ended: choose another port"),
)
# fmt: on
_DONE = {"recv": "send", "send": "receive"}


def translate(line: str) -> tuple[str, str] | None:
    """(meaning, what to do) of what NCCL, torch or gloo printed, of several lines of the first that needs words.

    None for what needs none.
    """
    return next((words for words in map(_of_line, line.splitlines()) if words is not None), None)


def _of_line(line: str) -> tuple[str, str] | None:
    completion = _COMPLETION.search(line)
    if completion is not None:
        peer, status = _host(completion["peer"]), int(completion["status"])
        meaning = _COMPLETIONS.get(status, "the connection to {peer} failed (status {status})")
        return meaning.format(peer=peer, status=status), _CABLE if status in (12, 13) else _FIRST
    for message in _MESSAGES:
        match = re.search(message.pattern, line)
        if match is not None:
            groups = {name: (value or "").strip() for name, value in match.groupdict().items()}
            if "peer" in groups:
                groups["peer"] = _host(groups["peer"] or groups.get("old", "")) or "its address"
                groups["at"] = f" at {groups['peer']}" if groups["peer"] != "its address" else ""
            groups["what_done"] = _DONE.get(groups.get("what", ""), "answer")
            meaning = message.meaning.format(**groups).replace(" ()", "").replace("  ", " ")
            return meaning, message.action.format(**groups)
    return None


def _host(address: str) -> str:
    """``10.0.0.7<41763>`` without the brackets around its port: NCCL's way of writing addresses."""
    return re.sub(r"<(\d+)>", r" port \1", address).strip(" ,.")


# What NCCL took, from its NCCL_DEBUG=INFO output (NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING).

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
    first = [
        f"NCCL {match['version'].rstrip('.')}" + (f" (CUDA {match['cuda']})" if match["cuda"] else "")
        for match in _matches(_VERSION, every)[:1]
    ]
    first += [*_network(every), *_within(every)]
    for match in _matches(_CHANNELS, every)[:1]:
        nvls = f", NVLS {match['nvls']}" if (match["nvls"] or "0") != "0" else ""
        first.append(f"ring {counted(int(match['ring']), 'channel')}{nvls}")
    summary = [", ".join(first)] if first else []
    plugins = _matches(_PLUGIN, every)
    nets = dict.fromkeys(f"network plugin {match['net'].strip()}" for match in plugins if match["net"])
    tuners = dict.fromkeys(f"tuner plugin {match['tuner'].strip()}" for match in plugins if match["tuner"])
    # By the user or by the probe.
    variables = {match["name"]: match["value"] for match in _matches(_ENV, every)}
    listed = ", ".join(f"{name}={value}" for name, value in sorted(variables.items()))
    environment = [f"set in the environment: {listed}"] if listed else []
    return [*summary, *_algorithms(every), *nets, *tuners, *environment]


def _matches(pattern: re.Pattern[str], lines: Iterable[str]) -> list[re.Match[str]]:
    return known(map(pattern.search, lines))


def _network(lines: list[str]) -> list[str]:
    """NICs when InfiniBand or RoCE is used, interfaces when it is TCP. NICs that were found may be left unused."""
    name = next((match["name"].strip() for match in _matches(_NETWORK, lines)), "")
    nics = [nic for match in _matches(_NICS, lines)[:1] for nic in _NIC.finditer(match["list"])]
    if nics and not name.startswith("Socket"):
        links = {"InfiniBand" if nic["link"] == "IB" else "RoCE" for nic in nics}
        sharp = " with SHARP" if any(nic["sharp"] for nic in nics) else ""
        names = folded(nic["name"] for nic in nics)
        return [f"{counted(len(nics), 'NIC')} over {' and '.join(sorted(links))}{sharp} ({names})", *_direct(lines)]
    sockets = _matches(_SOCKETS, lines)[:1]
    if sockets or name.startswith("Socket"):
        names = folded(socket["name"] for match in sockets for socket in _SOCKET.finditer(match["list"]))
        has_mlx = any("mlx5_" in line for line in lines)
        fell_back = " although there are InfiniBand or RoCE NICs" if has_mlx else ""
        return [f"over TCP sockets{f' ({names})' if names else ''}{fell_back}"]
    return [f"network {name}", *_direct(lines)] if name else []


def _direct(lines: list[str]) -> list[str]:
    direct = {match["direct"] is not None for match in _matches(_NET_PATH, lines)}
    if len(direct) > 1:
        return ["GPU Direct RDMA on some NICs only"]
    return ["GPU Direct RDMA" if each else "no GPU Direct RDMA: data goes through host memory" for each in direct]


def _within(lines: list[str]) -> list[str]:
    """How GPUs of one node reach each other."""
    nvls = {match["no"] is None for match in _matches(_NVLS, lines)}
    ways = ["NVLS on some GPUs only"] if len(nvls) > 1 else ["NVLS on" if each else "no NVLS" for each in nvls]
    if any(match["path"] == "SHM" for match in _matches(_LOCAL_PATH, lines)):
        ways.append("GPUs of one node reach each other through host memory (SHM)")
    return ways


def _algorithms(lines: list[str]) -> list[str]:
    """``all-reduce of 256 MiB: NVLS, Simple protocol``: of each size the first."""
    algorithms: dict[tuple[str, int], str] = {}
    for line in lines:
        named, numbered = _NAMED.search(line), _NUMBERED.search(line)
        if named is not None and not named["algo"].isdigit():
            algo = _ALGO_WORDS.get(named["algo"], named["algo"])
            key = (_NAMES.get(named["what"], named["what"]), int(named["bytes"]))
            algorithms.setdefault(key, f"{algo}, {named['proto'].replace('SIMPLE', 'Simple')} protocol")
        elif numbered is not None:
            algo, proto = _name(_ALGOS, numbered["algo"]), _name(_PROTOS, numbered["proto"])
            collective = _NAMES.get(named["what"], named["what"]) if named is not None else "collective"
            algorithms.setdefault((collective, int(numbered["bytes"])), f"{algo}, {proto} protocol")
    return [f"{collective} of {size_words(size)}: {how}" for (collective, size), how in algorithms.items()]


def _name(names: tuple[str, ...], number: str) -> str:
    return names[int(number)] if int(number) < len(names) else number
