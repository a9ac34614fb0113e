"""The question before a probe starts: what, where, how long, and what the user can choose. Pure functions."""

from __future__ import annotations

from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.model.probe_kinds import PROBE_OF
from mltop.probes.model.units import counted
from mltop.tui.app.selection import ProbeScope, first_of
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.probes.kinds import KINDS, choices_of, takes_text

Line = list[Cell]
LABEL = 9


def why_not(wanted: ProbeWanted, scope: ProbeScope) -> str:
    """The reason why it cannot start; "" where it can."""
    if len(scope.names) < PROBE_OF[wanted.kind].least_nodes:
        return f"{wanted.kind} need two nodes or more"
    if len(scope.silent) == len(scope.names):
        return f"no node to probe: {first_of(scope.silent)} {'does' if len(scope.silent) == 1 else 'do'} not answer"
    return ""


def question_lines(
    wanted: ProbeWanted, scope: ProbeScope, at: int, width: int, notice: str = ""
) -> tuple[list[Line], dict[int, list[tuple[int, int]]]]:
    """The lines, and by line number which (start, end) cells each option has, for the mouse.

    ``at``: which choice the keys change; ``notice``: a sentence for the user that stands last.
    """
    lines: list[Line] = []
    spots: dict[int, list[tuple[int, int]]] = {}
    for index, choice in enumerate(choices_of(wanted)):
        # "> type     [bf16]  fp8   fp16": brackets are seen without colours.
        here, end = index == at, 2 + LABEL
        cells = [Cell("> " if here else "  ", "accent"), Cell(f"{choice.label:<{LABEL}}", "bold" if here else "dim")]
        spots[len(lines)] = []
        for number, option in enumerate(choice.options):
            cells.append(Cell(f"[{option}]", "title") if number == choice.chosen(wanted) else Cell(f" {option} "))
            spots[len(lines)].append((end, end := end + len(option) + 2))
        lines.append(cells)
    lines.append([])
    lines += wrap([Cell(KINDS[wanted.kind].does)], width)
    lines.append([])
    for label, cells in _facts(wanted, scope):
        indent = LABEL if label else 0
        lines += wrap([Cell(f"{label:<{indent}}", "dim"), *cells], width, indent)
    if notice:
        lines += [[], *wrap([Cell(notice, "warn")], width)]
    return lines, spots


def _facts(wanted: ProbeWanted, scope: ProbeScope) -> list[tuple[str, Line]]:
    """(label, text) of where it runs, without whom, how long, and what happens to GPUs in use."""
    facts: list[tuple[str, Line]] = [("on", [Cell(scope.words, "bold"), Cell(f", {_how_many(scope)}")])]
    if scope.silent and len(scope.silent) < len(scope.names):
        text = f"{counted(len(scope.silent), 'node')} that {'does' if len(scope.silent) == 1 else 'do'} not answer"
        facts.append(("without", [Cell(f"{text}: {first_of(scope.silent)}", "warn")]))
    facts.append(("takes", [Cell(takes_text(wanted, len(scope.names)))]))
    facts.append(("", _in_use(wanted, scope)))
    return facts


def _how_many(scope: ProbeScope) -> str:
    """ "8 GPUs", "8 GPUs, those of 2 nodes not known yet", "no GPUs: on the processors"."""
    if scope.seen_gpus == 0:
        return "how many GPUs is not known yet" if scope.unseen else "no GPUs: on the processors"
    more = f", those of {counted(scope.unseen, 'node')} not known yet" if scope.unseen else ""
    return f"{counted(scope.seen_gpus, 'GPU')}{more}"


def _in_use(wanted: ProbeWanted, scope: ProbeScope) -> Line:
    if wanted.force:
        return [Cell("FORCED: also what is in use is loaded; jobs there slow down or fail", "crit")]
    if not scope.seen_gpus and not scope.unseen:
        return [Cell("what else runs on the processors slows down meanwhile")]
    cells = [Cell("GPUs in use are left alone")]
    if scope.in_use:
        all_of_them = scope.in_use == scope.seen_gpus
        amount = f"all {scope.in_use}" if all_of_them and scope.in_use > 1 else str(scope.in_use)
        amount += "" if all_of_them else f" of {scope.seen_gpus}"
        text = f"; {amount} {'is' if scope.in_use == 1 else 'are'} in use now"
        cells.append(Cell(text + (": nothing would be measured" if all_of_them else ""), "warn"))
    return cells


def keys_of(scope: ProbeScope, wanted: ProbeWanted, typing: bool) -> list[tuple[str, str]]:
    """(key, what it does), the most important first."""
    if typing:
        return [("Enter", "force"), ("Esc", "cancel")]
    force = [("f", "no force" if wanted.force else "force")] if len(scope.names) == 1 else []
    return [("Enter", "start"), ("Esc", "cancel"), ("Left Right", "choose"), ("Up Down", "line"), *force]
