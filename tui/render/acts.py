"""Signals to ranks in words: what each does, what would become of a core, the question, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mltop.probes.investigate.acting import Facts, RankProcess, Results
from mltop.probes.model.acts import SENT, DiagResult, SignalFacts, SignalName, SignalResult
from mltop.probes.model.ranks import fold
from mltop.probes.model.sample import UNLIMITED
from mltop.probes.model.text import plain_text
from mltop.probes.model.units import clock_time, counted, seconds, size_words
from mltop.tui.app.selection import first_of
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.findings import folded_names
from mltop.tui.render.ranks import short_command

if TYPE_CHECKING:
    from mltop.probes.investigate.ras import RasPlan, RasTold

Line = list[Cell]

# In the order of the menu, as htop's begins with TERM.
MEANINGS: Mapping[SignalName, str] = {
    "TERM": "asks it to end; its launcher then ends or restarts the job",
    "KILL": "ends it at once: nothing is saved",
    "ABRT": "ends it with a core file, for gdb or cuda-gdb",
    "CONT": "lets it go on where it was stopped",
    "USR1": "whatever the program does with it",
    "USR2": "whatever the program does with it",
}
MENU = tuple(MEANINGS)
_ENDS_UNHANDLED = ("USR1", "USR2")  # of the others everybody knows
MOST_LISTED = 6
MOST_OF_NAME, MOST_OF_COMMAND = 40, 100  # characters in a question


def who(process: RankProcess) -> str:
    """ "rank 2, pid 7655 on vm"."""
    number = "a rank without a number" if process.rank is None else f"rank {process.rank}"
    return f"{number}, pid {process.pid} on {process.node}"


def owner_words(process: RankProcess) -> str:
    """ "user ada, job 48555, train.py --config x": what the user has chosen comes last."""
    parts = (
        f"user {plain_text(process.user, MOST_OF_NAME) or 'unknown'}",
        f"job {plain_text(process.job, MOST_OF_NAME)}" if process.job else "",
        plain_text(short_command(process.command), MOST_OF_COMMAND),
    )
    return ", ".join(filter(None, parts))


def menu_lines(processes: Sequence[RankProcess], facts: Facts | None, at: int, width: int) -> list[Line]:
    """The signals to choose from, and to whom one would go. ``facts`` None: they are being asked for."""
    lines = [
        [
            Cell("> " if name == MENU[at] else "  ", "accent"),
            Cell(f"{name:<5}", "bold" * (name == MENU[at])),
            Cell(meaning),
        ]
        for name, meaning in MEANINGS.items()
    ]
    return [*lines, [], *_to_lines(processes, width), [], *_effects(MENU[at], processes, facts, width)]


def question_lines(processes: Sequence[RankProcess], facts: Facts | None, name: SignalName, width: int) -> list[Line]:
    """What is asked before anything is sent: what would happen first, as many or long names may fill the screen."""
    whom = who(processes[0]) if len(processes) == 1 else counted(len(processes), "rank")
    lines = wrap([Cell(f"Send SIG{name} to {whom}?", "title")], width)
    return [*lines, *_effects(name, processes, facts, width), [], *_to_lines(processes, width)]


def _to_lines(processes: Sequence[RankProcess], width: int) -> list[Line]:
    """To whom: host, pid, rank, job and user of each, or of the first and how many more of which nodes."""
    lines = []
    for process in processes[:MOST_LISTED]:
        lines += wrap([Cell(who(process), "bold"), Cell(f": {owner_words(process)}")], width, indent=2)
    if len(processes) > MOST_LISTED:
        rest = processes[MOST_LISTED:]
        nodes = folded_names(tuple(dict.fromkeys(process.node for process in rest)))
        numbers = fold([process.rank for process in rest if process.rank is not None])
        users = first_of(sorted({plain_text(process.user, MOST_OF_NAME) for process in rest}))
        lines += wrap([Cell(f"and {len(rest)} more: ranks {numbers} on {nodes}, user {users}")], width, indent=2)
    return lines


def _effects(name: SignalName, processes: Sequence[RankProcess], facts: Facts | None, width: int) -> list[Line]:
    """What it would come to, as far as the nodes say: the same of several ranks once."""
    if facts is None:
        return [[Cell("asking what they do with it", "dim")]]
    by_effect: dict[str, list[RankProcess]] = {}
    for process in processes:
        by_effect.setdefault(effect(name, facts.get(process.key)), []).append(process)
    lines = []
    for text, those in by_effect.items():
        number = "" if len(those) == len(processes) else f"{len(those)} of {len(processes)}: "
        lines += wrap([Cell(number + text, "warn")], width, indent=2) if text else []
    return lines


def effect(name: SignalName, facts: SignalFacts | None) -> str:
    """What this process would do with it, "" where there is nothing to say."""
    if facts is None or facts.why:
        return "what it would do with it could not be learned"
    if name in facts.ignored and name != "KILL":
        return "ignores it: nothing will happen"
    parts = []
    if name in facts.blocked and name not in ("KILL", "CONT"):
        parts.append("blocks it: it may take it later, or never")
    if name in _ENDS_UNHANDLED and name not in facts.caught:
        parts.append("has no handler for it: this ends it")
    if name == "ABRT":
        parts.append(core_words(facts))
    return "; ".join(parts)


def core_words(facts: SignalFacts) -> str:
    """What becomes of its core: core_pattern, the limit, and whether the kernel may write one. Source: core(5)."""
    pattern, limit = facts.core_pattern, facts.core_limit_bytes
    if pattern is None:
        return "where its core would go is unknown: core_pattern cannot be read"
    program = pattern[1:].split(" ")[0].rpartition("/")[2] if pattern.startswith("|") else ""
    if why := _why_no_core(facts, pattern, program):
        return f"no core: {why}"
    size = "of unknown size" if facts.core_bytes is None else f"of ~{size_words(facts.core_bytes)}"
    if program:
        return f"a core {size} goes to {program}"
    where = pattern if pattern.startswith("/") else f"{pattern} in its working directory"
    cut = limit is not None and limit != UNLIMITED and (facts.core_bytes is None or limit < facts.core_bytes)
    return f"a core {size} goes to {where}" + (f", cut off at {size_words(limit or 0)} (ulimit -c)" if cut else "")


def _why_no_core(facts: SignalFacts, pattern: str, program: str) -> str:
    """The limit counts for files; systemd-coredump, which is told it, keeps to it, too."""
    by_root = pattern.startswith(("|", "/"))  # what only root may read goes nowhere else
    if facts.dumpable == "no" or (facts.dumpable == "root" and not by_root):
        return "the process is not dumpable"
    if not pattern:
        return "core_pattern is empty"
    if facts.core_limit_bytes == 0 and program in ("", "systemd-coredump"):
        return "its limit is 0 (ulimit -c)"
    return ""


def asking_lines(question: str, *texts: Cell, width: int) -> list[Line]:
    """A question, below it what it comes to."""
    lines = wrap([Cell(question, "title")], width)
    return [*lines, *(line for text in texts for line in ([], *wrap([text], width)))]


def diagnosis_lines(node: str, width: int) -> list[Line]:
    """What is asked before `dcgmi diag`."""
    text = (
        "It tests the driver, the libraries and every GPU, for up to half a minute, and puts load on the GPUs."
        " The node refuses where a job runs or somebody uses a GPU."
    )
    return asking_lines(f"Run dcgmi diag -r 1 on {node}?", Cell(text), width=width)


def shell_lines(node: str, command: Sequence[str], width: int) -> list[Line]:
    """What is asked before the screen is left to a shell."""
    says = f"a shell on {node}, with your rights there; this screen comes back when it ends"
    return [*wrap([Cell(says)], width), [], *wrap([Cell(" ".join(command), "title")], width)]


def diagnosis_words(results: Sequence[DiagResult], error: str) -> tuple[str, str]:
    """All of it in one sentence, and its style."""
    if error or not results:
        return f"no diagnosis: {error or 'it has no results'}", "warn"
    counts = Counter(result.status for result in results)
    number = ", ".join(f"{counts[status]} {status}" for status in ("fail", "warn", "pass") if counts[status])
    bad = next((result for status in ("fail", "warn") for result in results if result.status == status), None)
    style = "ok" if bad is None else "crit" if bad.status == "fail" else "warn"
    return f"dcgmi diag: {number or 'nothing was tested'}" + (
        f"; {tested_words(bad)}" if bad is not None else ""
    ), style


def tested_words(result: DiagResult) -> str:
    """ "software fails on GPU 1: row remap failure"."""
    verb = {"pass": "passes", "warn": "warns", "fail": "fails", "skip": "was not run", "unknown": "says nothing"}
    gpus = f" on {'GPU' if len(result.gpus) == 1 else 'GPUs'} {fold(result.gpus)}" if result.gpus else ""
    return f"{result.test} {verb[result.status]}{gpus}" + (f": {result.text}" if result.text else "")


@dataclass(frozen=True)
class RasAsked:
    """What NCCL's RAS was asked about a job. ``at``: unix s, by the newest view; ``told`` None: the answer is waited
    for.
    """

    at: float
    told: RasTold | None = None

    @property
    def waits(self) -> bool:
        return self.told is None


def ras_lines(plan: RasPlan, width: int) -> list[Line]:
    """What is asked before NCCL is: what a question does, and what it has done to jobs."""
    job = f"job {plain_text(plan.job.name, MOST_OF_NAME)}" if plan.job.name else "this job"
    asked = (
        f"One question to one node, {plan.node}: its RAS gathers the counts of collectives of all"
        f" {counted(plan.ranks, 'rank')} on {counted(plan.nodes, 'node')}, in up to 10 s. Nothing is set in the job."
        " The next question waits 30 s."
    )
    return asking_lines(f"Ask NCCL's RAS about {job}?", Cell(asked), Cell(_ras_risk(plan), "warn"), width=width)


def _ras_risk(plan: RasPlan) -> str:
    """By what is known of NCCL's versions (nccl#1669, #1718, #1762, #2346)."""
    version = plain_text(plan.nccl_version, MOST_OF_NAME)
    if plan.is_old:
        what = f"Its NCCL is {version}, older than 2.29.2" if version else "Its NCCL is not known"
        return (
            f"{what}: before 2.29.2 a question has crashed the rank that answers, where ranks were missing (nccl#1762)"
            " or communicators were being made (nccl#1669, #1718). A crash ends the job."
        )
    return (
        f"Its NCCL is {version}. In 2.29.7 to 2.30.7 at least, an error is open by which a question crashes"
        " the rank that answers while a communicator is half made (nccl#2346). No stack shows one being made now."
        " A crash ends the job."
    )


def told_words(told: RasTold) -> str:
    """What came of a question, in a sentence."""
    if told.why:
        return told.why
    answers = "its answer" if told.answers == 1 else "its answer and the one before"
    return f"{answers} is with the evidence"


def asked_cells(asked: RasAsked, now: float) -> list[Cell]:
    """When it was asked, and what came of it: beside stacks and evidence. ``now``: unix s, of the view."""
    if asked.told is None:
        return [Cell("NCCL's RAS is being asked", "dim")]
    told = asked.told
    when = f"{seconds(max(0.0, now - asked.at))} ago ({clock_time(asked.at)})"
    where = f" on {told.node}" if told.node else ""
    version = f", NCCL {told.nccl_version}" if told.nccl_version and told.asked else ""
    again = f"; {KEYCAPS['ras']} asks again and compares" if told.answers == 1 else ""
    head = f"NCCL's RAS{where}, {when}{version}: "
    return [Cell(head, "dim"), Cell(f"{told_words(told)}{again}", "warn" if told.why else "")]


def event_words(name: SignalName, result: SignalResult) -> str:
    """ "SIGTERM: it ended (pid 7655)": beside the node and the rank."""
    return f"SIG{name}: {_outcome(result)} (pid {result.pid})"


def _outcome(result: SignalResult) -> str:
    if result.outcome == "sent" and result.state == "D":
        return "sent, but it is in state D and takes it when its system call returns"
    if result.outcome == "sent" and result.state in ("T", "t"):
        return "sent, but it is stopped and takes it when it goes on (CONT)"
    return {
        "sent": "sent, it goes on",
        "ended": "it ended",
        "dumping": "it is writing its core",
        "unknown": f"{result.why or 'no answer'}: look whether it still runs",
        "gone": "not sent, it had ended",
        "another": "not sent, its pid is another process by now",
        "no_rank": "not sent, it is no training rank",
        "kernel": "not sent, it is a kernel thread",
        "ours": "not sent, it is init or mltop itself",
        "denied": f"not sent, no permission: it is {result.why or 'another user'}'s (sudo mltop)",
        "failed": f"not sent: {result.why or 'the reason is not known'}",
    }[result.outcome]


def results_words(name: SignalName, processes: Sequence[RankProcess], results: Results) -> tuple[str, str]:
    """All of it in one sentence, and its style."""
    came = [results[process.key] for process in processes]
    style = "accent" if all(result.outcome in SENT for result in came) else "warn"
    if len(processes) == 1:
        return f"SIG{name} to {who(processes[0])}: {_outcome(came[0])}", style
    counts = Counter(map(_outcome, came))
    return f"SIG{name} to {len(came)} ranks: " + "; ".join(f"{count}: {text}" for text, count in counts.items()), style
