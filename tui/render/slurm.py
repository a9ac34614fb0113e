"""What to tell Slurm of bad nodes, as lines to copy: mltop never runs them. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mltop.probes.model import Finding
from mltop.probes.model.text import plain_text
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.findings import worst

Line = list[Cell]

MOST_REASON = 120  # characters: sinfo -R and mails show no more of it
SENDER = "mltop: "
NO_REASON = "taken out by hand"
# A node name of Slurm (slurm.conf(5)); anything else is none, and nothing a shell may see unquoted.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
# Slurm takes ranges at the end of a name only: "unit[0-31]rack" is invalid.
_RANGE_INSIDE = re.compile(r"\][^,]")
# What ends the quotes, or is obeyed inside of them ("!" by interactive shells).
_UNQUOTABLE = re.compile(r"[\"'`$\\!]")
# Rules about what programs do, or how they are run: no reason to take a node out.
_OF_PROGRAMS = (
    *("job.", "rank.", "host.", "cpu.load", "cpu.cgroup", "mem.oom", "mem.pressure", "mem.shm", "mem.swap"),
    *("disk.full", "gpu.xid.app", "gpu.orphan", "gpu.leftover", "gpu.idle_memory"),
)
_GLOBBING = ("zsh", "csh", "tcsh")  # shells to which a bracket that matches no file is an error


@dataclass(frozen=True)
class SlurmLines:
    """``drain``: "" where Slurm is not known to run these nodes, and where their hardware is not known to be bad.
    ``left_out``: names that Slurm cannot have.
    """

    exclude: str
    drain: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """What is copied first."""
        return self.drain or self.exclude


def slurm_lines(nodes: Iterable[str], reason: str, is_slurms: bool, shell: str = "") -> SlurmLines:
    """``nodes``: as mltop names them, a login before them or not; ``shell``: the user's, which may need quotes."""
    names = {node: node.rpartition("@")[2] for node in nodes}
    good = tuple(dict.fromkeys(name for name in names.values() if _NAME.fullmatch(name)))
    left_out = tuple(node for node, name in names.items() if not _NAME.fullmatch(name))
    if not good:
        return SlurmLines("", left_out=left_out)
    listed = _folded(good)
    quote = "'" if "[" in listed and shell.rpartition("/")[2] in _GLOBBING else ""
    drain = f'scontrol update nodename={quote}{listed}{quote} state=drain reason="{clean_reason(reason)}"'
    return SlurmLines(f"{quote}--exclude={listed}{quote}", drain if is_slurms and reason else "", left_out)


def clean_reason(reason: str) -> str:
    """One line in ASCII that may stand between double quotes in a shell."""
    text = reason.replace("…", "...").encode("ascii", "replace").decode().replace("?", " ")
    text = " ".join(_UNQUOTABLE.sub(" ", plain_text(text, 4 * MOST_REASON)).split())
    text = text.removeprefix(SENDER.strip()).strip() or NO_REASON
    room = MOST_REASON - len(SENDER)
    return SENDER + (text if len(text) <= room else text[: room - 3].rstrip() + "...")


def reason_of(findings: Sequence[Finding], nodes: Iterable[str]) -> str:
    """The gravest that is wrong with these nodes, "" where nothing is but what programs do."""
    wanted = set(nodes)
    theirs = (one for one in findings if one.node in wanted and not one.id.startswith(_OF_PROGRAMS))
    gravest = worst(one for one in theirs if one.severity != "info")
    return gravest.message if gravest is not None else ""


def run_by_slurm(nodes: Iterable[NodeView]) -> bool:
    """Whether a job of Slurm runs on any of them: by how its ranks were started, or by the cgroup they are in."""
    ranks = (rank for node in nodes if node.sample is not None for rank in node.sample.ranks)
    return any(rank.launcher == "srun" or "slurm" in (rank.cgroup or "") for rank in ranks)


def box_lines(lines: SlurmLines, copied: str, width: int) -> list[Line]:
    """What the box shows. ``copied``: the line that was copied last."""
    shown: list[Line] = [[Cell("to copy; mltop runs none of it", "dim")], []]
    for title, line in (("drain (as Slurm's operator)", lines.drain), ("exclude from the next job", lines.exclude)):
        if line:
            shown += [[Cell(title, "bold")], *wrap([Cell(line, "accent")], width), []]
    if lines.exclude and not lines.drain:
        shown += [*wrap([Cell("no drain line: that is for Slurm's nodes with a hardware problem", "dim")], width), []]
    if lines.left_out:
        shown += [*wrap([Cell(f"no names of Slurm's: {', '.join(lines.left_out)}", "warn")], width), []]
    return [*shown, *wrap([Cell(f"copied: {copied}", "ok")], width)] if copied else shown[:-1]


def _folded(names: tuple[str, ...]) -> str:
    """The names as a host list that Slurm reads: "node[07,12]"."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    nodes = NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = (-1,)
    folded = str(nodes)
    return ",".join(sorted(names)) if _RANGE_INSIDE.search(folded) else folded
