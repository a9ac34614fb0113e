"""The same measurement without mltop: a torchrun command, and the script that it runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files

from mltop.probes.investigate.probing.member import Member
from mltop.probes.investigate.probing.wanted import ProbeWanted

SCRIPT = "collective_bench.py"
PORT = 29400  # torchrun's own default


def torchrun_command(wanted: ProbeWanted, members: Mapping[str, Member], results: Sequence[object]) -> str:
    """To be run on every node. ``mltop probe all-reduce --script`` prints the file it names."""
    joined = [member for member in members.values() if member.ready]
    if not joined:
        return ""
    sizes = sorted({size for size in (getattr(result, "size_bytes", 0) for result in results) if size})
    parts = ["torchrun", f"--nnodes={len(joined)}", f"--nproc-per-node={joined[0].ranks}"]
    if len(joined) == 1:
        parts.append("--standalone")
    else:
        address = joined[0].ready.get("address") or joined[0].node
        parts += ["--rdzv-backend=c10d", f"--rdzv-endpoint={address}:{PORT}"]
    collective = "all-reduce" if wanted.kind == "pairs" else wanted.collective
    parts += [SCRIPT, "--collective", collective, "--backend", joined[0].ready.get("backend") or "nccl"]
    # Address and backend are what a node says.
    return shlex.join(parts + (["--sizes", ",".join(map(str, sizes))] if sizes else []))


def script() -> str:
    """A file of its own that needs torch and nothing else."""
    return files("mltop.probes.active.all_reduce").joinpath("plain_bench.py").read_text(encoding="utf-8")
