"""What a pane says that has nothing to show: what that means, and which key or command comes next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from mltop.probes.model import Sample
from mltop.probes.model.unread import unread_gpus, unread_ranks
from mltop.tui.render.advice import DEFAULTS, KEYCAPS
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.glyphs import GLYPHS

# At most three lines each. Keys by the names of their actions; {node}: the node's name.
EMPTY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ranks": (
            "no training ranks: no process has RANK or SLURM_PROCID in its environment",
            "> start the job with torchrun, srun or mpirun",
            "> of other users' jobs only root reads the environment: sudo mltop",
        ),
        "gpus": (
            "> mltop doctor says what is missing here and how to get it",
            "> mltop -w NODE watches a node that has GPUs",
            "> mltop demo shows all of this without a GPU",
        ),
        "ports": (
            "no network ports found",
            "> in a container: mount the host's /sys/class/infiniband and /sys/class/net",
        ),
        "pci": ("no PCI devices found",),
        "rails": ("no node has network ports", "> mltop doctor says why"),
        "events": (
            "no events: findings, Xids, ends of ranks and signals will be listed here",
            "> {incidents} lists what is wrong now; mltop replay FILE shows a recording",
        ),
        "incidents": (
            "no incidents: what stops or slows a job will be listed here",
            "> {events} lists what happened before; {matmul} and {all_reduce} measure the hardware",
        ),
        "stacks": (
            "no dump yet: press {dump} to dump the stacks of all ranks and judge them",
            "> it takes seconds, and the ranks go on",
        ),
        "stack": ("no dump of this rank yet: press {dump}",),
        "past_stacks": ("no stacks were dumped before this moment", "> {now} returns to now"),
        "lost": (
            "{node} does not answer: nothing of it is of now",
            "> {retry} tries again now",
            "> to see why, run: ssh {node} true",
        ),
        "refused": (
            "{node} answers, but mltop cannot run there",
            "> {retry} tries again now",
            "> to see why, run: mltop doctor -w {node}",
        ),
    }
)

NO_RANKS = "no training ranks found"
NO_SAMPLE = "{} unknown: no sample"


def ranks_unknown(samples: Sequence[Sample | None]) -> str:
    """Why it is not known that there are no ranks on these nodes, None for each that said nothing; "" where it is."""
    gaps = [unread_ranks(sample) for sample in samples if sample is not None]
    unread = [gap for gap in gaps if gap is not None]
    unknown = len(samples) - len(gaps) + len(unread)
    if not unknown:
        return ""
    if unknown < len(samples):
        return f"no training ranks seen; of {unknown} of {len(samples)} nodes nothing is known"
    return f"ranks unknown: {unread[0].why}" if unread else NO_SAMPLE.format("ranks")


def gpus_unseen(samples: Iterable[Sample | None]) -> str:
    """In a few words, of nodes that list no GPU: whether that means there are none."""
    is_unknown = any(sample is not None and unread_gpus(sample) is not None for sample in samples)
    return "GPUs unknown" if is_unknown else "no GPU seen"


def empty_text(name: str, node: str = "") -> str:
    """Its lines, with the keys as the user has set them."""
    words = {key: KEYCAPS[key] for key in DEFAULTS} | {"node": node}
    lines = [line.format_map(words) for line in EMPTY[name]]
    return "\n".join(f"{GLYPHS.arrow}{line[1:]}" if line.startswith(">") else line for line in lines)


def empty_lines(name: str, width: int, node: str = "") -> list[list[Cell]]:
    """The same among other lines of a pane."""
    lines = empty_text(name, node).splitlines()
    return [line for text in lines for line in wrap([Cell(f"  {text}", "key")], width, 4)]
