"""NCCL's and gloo's variables: what the user has set stays as it is, what is missing we add."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mltop.probes.active.all_reduce.listening import LOOPBACK

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


def inherited(env: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """What was set before us, by the user or the site."""
    return {**conf, **{name: value for name, value in sorted(env.items()) if name.startswith(FAMILIES)}}


def added(interface: str, backend: str, ours: Mapping[str, str]) -> dict[str, str]:
    """What we set beside ``ours``, the inherited. ``interface`` "": not known, left to the library; loopback, for ranks
    of one node alone, stands whatever was set: nothing of it is for others to connect to.
    """
    wanted, kept = {}, ours
    if interface:
        name = "GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME"
        # "=": exactly this name; without it "eth1" would also mean eth10.
        wanted[name] = interface if backend == "gloo" else f"={interface}"
        kept = {known: value for known, value in ours.items() if known != name or interface != LOOPBACK}
    if backend == "nccl":
        wanted["NCCL_RAS_ENABLE"] = "0"  # listens in every process, for a tool that nobody runs here
    if backend == "nccl" and "NCCL_DEBUG" not in ours:
        wanted.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS=SUBSYSTEMS)
    return {name: value for name, value in wanted.items() if name not in kept}


def conf_settings(env: Mapping[str, str] = os.environ, files: Sequence[str] = CONF_FILES) -> dict[str, str]:
    """``NAME=value`` lines of NCCL's configuration files; those of later files win. Unreadable files are none."""
    found: dict[str, str] = {}
    for path in [env["NCCL_CONF_FILE"]] if env.get("NCCL_CONF_FILE") else files:
        try:
            lines = Path(path).expanduser().read_text(errors="replace").splitlines()
        except (OSError, RuntimeError):  # RuntimeError: no home directory
            continue
        for line in lines:
            name, equals, value = line.partition("#")[0].partition("=")
            if equals and name.strip().startswith(FAMILIES):
                found[name.strip()] = value.strip()
    return found


def delays(text: str) -> dict[int, float]:
    """MLTOP_PROBE_DELAY, "RANK:SECONDS[,RANK:SECONDS]": rank -> s of sleep before each timed collective.

    Raises ValueError for anything else.
    """
    parts = [part.partition(":") for part in text.split(",") if part.strip()]
    return {int(rank): float(seconds) for rank, _, seconds in parts}
