"""The sentences of incidents: a headline that needs no other line, what to do, and what would make it surer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from mltop.probes.judge.values import known
from mltop.probes.model import Culprit, Finding
from mltop.probes.model.ranks import Ranges, ranks_text
from mltop.probes.model.units import clock_time, counted
from mltop.probes.model.vocabulary import Act, CulpritKind

if TYPE_CHECKING:
    from mltop.probes.judge.incidents.loss import Loss
    from mltop.probes.judge.incidents.scene import JobScene

# What to do about who holds a job up, where no finding of its node says better. {ssh}: "ssh NODE " where the command
# runs on one of several nodes; {pid}: of what stands, the rank's own or its worker's; {pids}: of all that are alike.
_DO = {
    "stands": "run: {ssh}strace -p {pid}; kill it and the launcher ends or restarts the job",
    "computes": "look again in a minute, it may work alone for a while: {ssh}py-spy dump -p {pid}",
    "polls": "see what it asks for and who should provide it",
    "elsewhere": "compare the two places in the code: the ranks took different branches",
    "behind": "compare the two places in the code: a rank skipped or repeated a turn",
    "stopped": "let it run on: {ssh}kill -CONT {pids}",
    "traced": "detach the debugger; which one it is: {ssh}grep TracerPid /proc/{pid}/status",
    "kernel": "look at the filesystem or driver below it: {ssh}dmesg, {ssh}cat /proc/{pid}/stack",
    "dead": "see in its log or error file why it ended",
    "left": "look why it came to its end before the others: less data, a return or an exit of its own",
    "slow": "see what is wrong with its GPU and node",
}
_ACTS: Mapping[CulpritKind, Act] = {"stands": "stacks", "computes": "stacks", "slow": "node"}
MOST_PIDS = 8
MOST_NAME = 64  # characters
# What who holds a job up does, in short, and what follows where it is known.
_DOES: Mapping[str, tuple[str, str]] = {
    "stands": ("is stuck", " in {where}"),
    "computes": ("computes alone", " in {where}"),
    "polls": ("polls", " in {where}"),
    "elsewhere": ("waits elsewhere", ", in {where}"),
    "behind": ("is in another turn of the loop", ", in {where}"),
    "stopped": ("is stopped", ""),
    "traced": ("is held by a debugger", ""),
    "kernel": ("does not come back from the kernel", " ({where})"),
    "dead": ("died", " ({reason})"),
    "left": ("left before the others", " ({reason})"),
    "slow": ("is slow", ", the others wait for it"),
}
_PLACELESS = ("stopped", "traced", "slow", "dead", "left")
_PLURALS = {"computes": "compute", "polls": "poll", "waits": "wait", "is": "are", "does": "do"}
_PAST = {
    "computes": "computed",
    "polls": "polled",
    "waits": "waited",
    "is": "was",
    "does": "did",
    "compute": "computed",
    "poll": "polled",
    "wait": "waited",
    "are": "were",
    "do": "did",
}
_NOWHERE = ("", "unknown", "no process")


def headline_of_job(job: JobScene, loss: Loss, *, with_job: bool, with_nodes: bool) -> str:
    """``with_job``: there are several; ``with_nodes``: several nodes are watched."""
    in_circle = loss.circle and loss.ended is None
    who = "" if in_circle else culprits_words(loss.culprits, with_nodes, past=loss.ended is not None)
    lost = f"{who}{_who_waits(loss)}" if who else _nobody(job, loss)
    return (_prefix(job, lost, with_nodes=with_nodes) if with_job else "") + lost


def headline_of_cause(
    cause: Finding, job: JobScene, loss: Loss, more_nodes: int = 0, text: str = "", *, with_job: bool, with_nodes: bool
) -> str:
    """The physical cause first, then what the job lost: "node-17: GPU 4 fell off the bus; rank 4 died, 63 wait".

    ``more_nodes``: that have it too. ``text``: what is said of it and of those like it.
    """
    where = cause.node + (f" and {counted(more_nodes, 'more node')}" if more_nodes else "")
    where = f"{where}: " if with_nodes and cause.node and not cause.server else ""
    who = _short(loss.culprits, past=loss.ended is not None)
    lost = f"{who}{_who_waits(loss)}" if who else _nobody(job, loss, why=True)
    whose = _prefix(job, lost, "job ", with_nodes=with_nodes) if with_job else ""
    return f"{where}{text or cause.message}; {whose}{lost}"


def _prefix(job: JobScene, text: str, title: str = "", *, with_nodes: bool) -> str:
    """Whose loss it is, where that is not said yet. A name is as long as its user likes, and one that every node may
    have goes with the node.
    """
    name = job.key.name if len(job.key.name) <= MOST_NAME else f"{job.key.name[: MOST_NAME - 1]}…"
    place = f" on {job.place}" if job.place and with_nodes else ""
    return "" if not name or text.startswith(f"job {name}") else f"{title}{name}{place}: "


def action_of_rail(cause: Finding) -> str:
    """Where the ports of several nodes have it at one time."""
    return f"check the switch that {cause.subject} of these nodes leads to; then {cause.action}"


def headline_of_node(cause: Finding, nodes: Sequence[str], text: str, *, with_nodes: bool) -> str:
    """Of what no job is known to suffer from. ``text``: what is said of the cause and of those like it."""
    if len(nodes) > 1:
        return f"{counted(len(nodes), 'node')}: {text}"
    return f"{cause.node}: {text}" if with_nodes and cause.node else text


def culprits_words(culprits: Sequence[Culprit], with_nodes: bool, *, past: bool = False) -> str:
    """ "rank 229 (sim030 GPU 5) is stuck in ShardDataset.__getitem__ (data.py:53)", or ``past`` was; how many more."""
    if not culprits:
        return ""
    first = culprits[0]
    alike = [culprit for culprit in culprits if _doing(culprit) == _doing(first)]
    numbers = [culprit.rank for culprit in alike if culprit.rank is not None]
    if len(alike) > 1 and len(numbers) == len(alike):
        who = ranks_text(numbers) + _on(alike, with_nodes)
    else:
        who, alike = who_is(first, with_nodes), [first]
    place = first.where if first.where not in _NOWHERE else ""
    template = "".join(_DOES.get(first.how, ())) if place or first.how in _PLACELESS else ""
    if not template:
        shown = f" at {place}" if "(" in place and not first.in_reason else ""  # not the kernel's function
        text = f"{who}{shown}: {first.reason}"
    else:
        verb = _of_several(template) if len(alike) > 1 else template
        doing = (_in_past(verb) if past else verb).format(where=place, reason=first.reason)
        text = f"{who} {doing}"
    more = len(culprits) - len(alike)
    return text + (f" (and {more} more)" if more else "")


def _doing(culprit: Culprit) -> tuple[str, ...]:
    """Equal for those that one sentence can name."""
    placed = culprit.how in _DOES and culprit.how not in ("dead", "left")
    return culprit.how, culprit.where, "" if placed else culprit.reason


def _of_several(doing: str) -> str:
    """ "rank 3 is stuck", "ranks 3-4 are stuck"."""
    verb, _, rest = doing.partition(" ")
    return f"{_PLURALS.get(verb, verb)} {rest}".rstrip()


def _in_past(doing: str) -> str:
    """ "is stuck", "was stuck"."""
    verb, _, rest = doing.partition(" ")
    return f"{_PAST.get(verb, verb)} {rest}".rstrip()


def who_is(culprit: Culprit, with_nodes: bool) -> str:
    """ "rank 229 (sim030 GPU 5)", "rank 2 (GPU 2)", "node-17"."""
    node = culprit.node if with_nodes else ""
    gpu = f"GPU {culprit.gpu}" if culprit.gpu is not None else ""
    place = " ".join(filter(None, (node, gpu)))
    if culprit.rank is not None:
        return f"rank {culprit.rank}" + (f" ({place})" if place else "")
    if culprit.pid is not None:
        return f"pid {culprit.pid}" + (f" ({place})" if place else "")
    return culprit.node or "the node"


def _on(culprits: Sequence[Culprit], with_nodes: bool) -> str:
    nodes = dict.fromkeys(culprit.node for culprit in culprits)
    if not with_nodes or not nodes:
        return ""
    return f" ({next(iter(nodes))})" if len(nodes) == 1 else f" ({counted(len(nodes), 'node')})"


def brief_words(culprits: Sequence[Culprit], with_nodes: bool, *, placed: bool) -> str:
    """ "rank 229 (sim030 GPU 5) is stuck", ``placed`` or not; "" where no rank is named."""
    short = _short(culprits, past=False)
    if not placed or not short or len(culprits) > 1:
        return short
    return f"{who_is(culprits[0], with_nodes)} {does_what(culprits[0])}"


def does_what(culprit: Culprit) -> str:
    """ "is stuck", "polls"."""
    return _DOES.get(culprit.how, _DOES["stands"])[0]


def wait_words(ranks: int, where: str = "", *, noun: str = "rank") -> str:
    """ "3 ranks wait in all_reduce"."""
    verb = "waits" if ranks == 1 else "wait"
    return f"{counted(ranks, noun)} {verb}" + (f" in {where}" if where else "")


def _short(culprits: Sequence[Culprit], *, past: bool) -> str:
    """ "rank 4 died", "ranks 4-7 are stuck"."""
    if not culprits:
        return ""
    first = culprits[0]
    numbers = Ranges.of({each.rank for each in culprits if each.rank is not None and each.how == first.how})
    if not numbers:
        return ""
    doing = does_what(first)
    doing = _of_several(doing) if numbers.count > 1 else doing
    return f"{ranks_text(numbers)} {_in_past(doing) if past else doing}"


def _nobody(job: JobScene, loss: Loss, *, why: bool = False) -> str:
    """What the job lost where nobody is named for it. ``why``: it is known all the same."""
    size = job.world_size or len(job.ranks)
    at = f" at {clock_time(loss.since)}" if loss.since is not None else ""
    if loss.ended is not None:
        whom = _amount(loss.waiting.count or size, size)
        did = f"waited in {loss.place}" if loss.place else "stuck"
        return f"{whom} {did}{_since(loss)}{'' if why else ', blocking rank unknown'}{_until(loss)}"
    if loss.kind == "stopped":
        return f"the job was ended from outside{at}"
    if loss.kind == "crash":
        ended = len(loss.deaths.all) if loss.deaths is not None else 0
        how = f", {_amount(ended, size)} ended" if ended else ""
        return f"the job has died{at}{how}" + ("" if why else ", which of them first is not known" if ended > 1 else "")
    if loss.kind == "hang":
        return _stands_still(job, loss, size, why=why)
    if loss.findings:
        return loss.findings[0].message
    return loss.evidence[0].text if loss.evidence else "the job is slow"


def _stands_still(job: JobScene, loss: Loss, size: int, *, why: bool) -> str:
    if loss.circle:
        others = loss.waiting.without(loss.circle).count
        rest = f", {wait_words(others, noun='other rank')} for them" if others else ""
        return f"{ranks_text(loss.circle)} wait for one another{rest}{_since(loss)}"
    still = loss.waiting.count or len(job.ranks)
    doing = f"wait in {loss.place}" if loss.place else "stuck"
    return f"{_amount(still, size)} {doing}{_since(loss)}" + ("" if why else ", blocking rank unknown")


def _amount(ranks: int, size: int) -> str:
    """ "6 of 8 ranks", "all 8 ranks"."""
    if size <= ranks:
        return f"all {counted(ranks, 'rank')}" if ranks > 1 else counted(ranks, "rank")
    return f"{ranks} of {counted(size, 'rank')}"


def _since(loss: Loss) -> str:
    return f" since {clock_time(loss.since)}" if loss.since is not None else ""


def _until(loss: Loss) -> str:
    """ ", until the job died at 08:10:06"."""
    at = f" at {clock_time(loss.ended)}" if loss.ended is not None else ""
    return f", until the job {'was ended from outside' if loss.kind == 'stopped' else 'died'}{at}"


def _who_waits(loss: Loss) -> str:
    """ ", 63 ranks wait in all_reduce since 08:00:06", of those who are named."""
    if loss.ended is not None:
        waited = f", {counted(loss.waiting.count, 'rank')} waited" if loss.waiting else ", the job was stuck"
        where = f" in {loss.waits_in}" if loss.waits_in and loss.waiting else ""
        return f"{waited}{where}{_since(loss)}{_until(loss)}"
    if loss.kind == "hang":
        waiting = wait_words(loss.waiting.count, loss.waits_in) if loss.waiting else "the job is stuck"
        return f", {waiting}{_since(loss)}"
    if loss.kind == "crash":
        named = {(culprit.node, culprit.pid) for culprit in loss.culprits}
        all_dead = loss.deaths.all if loss.deaths is not None else []
        others = sum((death.node, death.report.pid) not in named for death in all_dead)
        at = f" at {clock_time(loss.since)}" if loss.since is not None else ""
        them = "it" if len(loss.culprits) == 1 else "them"
        return (f", {counted(others, 'other rank')} went down with {them}" if others else ", the job has ended") + at
    return ""


def action_of(loss: Loss, *, with_nodes: bool) -> tuple[Act, str]:
    """What to do about the one who holds the job up, what mltop does for it first; where nobody is named, how to find
    out.
    """
    if loss.ended is not None:
        return "", _after(loss)
    if loss.kind == "stopped":
        return "", ""
    find_out: Act = "stacks" if loss.kind == "hang" else "findings"
    if not loss.culprits:
        return ("", _DO["elsewhere"]) if loss.circle else (find_out, "")
    first = loss.culprits[0]
    text = _DO.get(first.how, "")
    pid = first.pid if first.child_pid is None else first.child_pid
    if not text or (pid is None and "{pid" in text):
        return find_out, ""
    alike = [each for each in loss.culprits if (each.how, each.node) == (first.how, first.node)][:MOST_PIDS]
    pids = known(each.pid if each.child_pid is None else each.child_pid for each in alike)
    ssh = f"ssh {quote(first.node)} " if with_nodes and first.node else ""
    return _ACTS.get(first.how, ""), text.format(ssh=ssh, pid=pid, pids=" ".join(map(str, pids)))


def _after(loss: Loss) -> str:
    """What is left to do about a job that was stuck until it ended: none of its processes can be asked any more."""
    if not loss.culprits:
        return "see in its log what it did last"
    how = loss.culprits[0].how
    return (
        _DO[how]
        if how in ("elsewhere", "behind", "dead", "left", "slow")
        else "see in the code what it waits for there, and in its log what it said last"
    )
