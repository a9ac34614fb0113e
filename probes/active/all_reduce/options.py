"""What a launcher is to do: its order's options and its rounds, checked; and the environment of its ranks.

Of NCCL's and gloo's variables what the user has set stays as it is, what is missing we add.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mltop.probes.active.all_reduce.listening import LOOPBACK
from mltop.probes.active.child import Order
from mltop.probes.model.probe import ProbeDevice
from mltop.probes.model.probe_kinds import COLLECTIVES, stage_deadline_s

READY_S = 20.0  # of a rank, from its fork on
# A size may take three times its budget, and what it takes to make its buffers.
MEASURE_BUDGETS, MEASURE_S = 3.0, 5.0
PATHS = {"gloo": "gloo over TCP: not the training path", "nccl": "NCCL"}


@dataclass
class Options:
    """``alone``: no other node takes part; ``leader_address``: of the node that came first, "" for itself."""

    node: str
    backend: str
    ranks: int
    devices: list[ProbeDevice]
    alone: bool = True
    leader_address: str = ""
    deadlines_s: dict[str, float] = field(default_factory=dict)

    def device(self, local: int) -> ProbeDevice:
        gpus = [device for device in self.devices if device.kind == "gpu"]
        return gpus[local] if self.backend == "nccl" else ProbeDevice("cpu", kind="cpu")

    def limit_s(self, stage: str) -> float:
        return stage_deadline_s("all_reduce", stage, self.deadlines_s)


def options_of(order: Order) -> Options:
    """Raises ValueError with a sentence for what cannot be done."""
    wanted = order.options
    backend = str(wanted.get("backend", "gloo"))
    if backend not in PATHS:
        raise ValueError(f"{backend} is no backend (one of: {', '.join(PATHS)})")
    if any(device.kind == "mig" for device in order.devices):
        raise ValueError("MIG instances cannot take part in collectives: NCCL does not support them")
    gpus = [device for device in order.devices if device.kind == "gpu"]
    ranks = int(wanted.get("ranks") or (len(gpus) if backend == "nccl" else 1))
    if backend == "nccl" and not gpus:
        raise ValueError("nccl needs GPUs, and none takes part here (--backend gloo measures with the processors)")
    if backend == "nccl" and not 1 <= ranks <= len(gpus):
        raise ValueError(f"{ranks} ranks need as many GPUs; {len(gpus)} are given")
    deadlines_s = dict(order.deadlines_s)
    if wanted.get("join_s"):
        deadlines_s["join"] = float(wanted["join_s"])
    return Options(
        node=order.node,
        backend=backend,
        ranks=ranks,
        devices=order.devices,
        alone=bool(wanted.get("alone", True)),
        leader_address=str(wanted.get("leader_address") or ""),
        deadlines_s=deadlines_s,
    )


@dataclass
class Round:
    """Who measures what with whom, as the caller tells it: {"tell": "round", ...}. ``ranks``: of each node."""

    round: int
    groups: list[list[str]]
    ranks: dict[str, int]
    collectives: list[str]
    sizes_bytes: list[int]
    budget_s: float
    work: bool


def round_of(line: Mapping[str, Any]) -> Round:
    """Raises ValueError with a sentence."""
    try:
        wanted = Round(
            round=int(line["round"]),
            groups=[[str(name) for name in group] for group in line["groups"]],
            ranks={str(name): int(count) for name, count in (line.get("ranks") or {}).items()},
            collectives=[str(name) for name in line.get("collectives") or COLLECTIVES[:1]],
            sizes_bytes=[int(size) for size in line["sizes_bytes"]],
            budget_s=float(line.get("budget_s", 1.0)),
            work=bool(line.get("work", False)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no round: {error!r}") from None
    unknown = [name for name in wanted.collectives if name not in COLLECTIVES]
    if unknown:
        raise ValueError(f"{unknown[0]} is no collective (one of: {', '.join(COLLECTIVES)})")
    return wanted


FAMILIES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_", "SHARP_")
# NCCL reads these itself; a variable of the environment would win over them (NCCL user guide, environment variables).
CONF_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
# INIT and NET: transports and devices; NVLS; TUNING: algorithm and protocol of each collective; ENV: what was read.
SUBSYSTEMS = "INIT,ENV,NET,NVLS,TUNING"
# Of every process with torch, where they are not set.
DEFAULTS = {
    # One thread per rank, and none before the ranks are forked: OpenBLAS makes its threads when it is imported.
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    # torch's store looks its peer's name up, for a log line: 10 s in every rank where no name server answers.
    "RES_OPTIONS": "timeout:1 attempts:1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def inherited_settings(env: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """What was set before us, by the user or the site."""
    return {**conf, **{name: value for name, value in sorted(env.items()) if name.startswith(FAMILIES)}}


def added_settings(interface: str, backend: str, ours: Mapping[str, str]) -> dict[str, str]:
    """What we set beside ``ours``, the inherited. ``interface`` "": not known, left to the library; loopback, for ranks
    of one node alone, stands whatever was set: nothing of it is for others to connect to.
    """
    wanted, already_set = {}, set(ours)
    if interface:
        name = "GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME"
        # "=": exactly this name; without it "eth1" would also mean eth10.
        wanted[name] = interface if backend == "gloo" else f"={interface}"
        if interface == LOOPBACK:
            already_set.discard(name)
    if backend == "nccl":
        wanted["NCCL_RAS_ENABLE"] = "0"  # listens in every process, for a tool that nobody runs here
    if backend == "nccl" and "NCCL_DEBUG" not in ours:
        wanted.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS=SUBSYSTEMS)
    return {name: value for name, value in wanted.items() if name not in already_set}


def conf_settings(env: Mapping[str, str] = os.environ, files: Sequence[str] = CONF_FILES) -> dict[str, str]:
    """``NAME=value`` lines of NCCL's configuration files; those of later files win. Unreadable files are none."""
    settings: dict[str, str] = {}
    for path in [env["NCCL_CONF_FILE"]] if env.get("NCCL_CONF_FILE") else files:
        try:
            lines = Path(path).expanduser().read_text(errors="replace").splitlines()
        except (OSError, RuntimeError):  # RuntimeError: no home directory
            continue
        for line in lines:
            name, equals, value = line.partition("#")[0].partition("=")
            if equals and name.strip().startswith(FAMILIES):
                settings[name.strip()] = value.strip()
    return settings


def injected_delays(text: str) -> dict[int, float]:
    """MLTOP_PROBE_DELAY, "RANK:SECONDS[,RANK:SECONDS]": rank -> s of sleep before each timed collective.

    Raises ValueError for anything else.
    """
    parts = [part.partition(":") for part in text.split(",") if part.strip()]
    return {int(rank): float(seconds) for rank, _, seconds in parts}
