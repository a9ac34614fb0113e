"""The table of all rules, from the rules themselves: `python -m tests.rules` prints RULES.md."""

from __future__ import annotations

import sys

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.health.rule import Rule
from mltop.probes.model.vocabulary import COMMANDS

HEAD = """# Health rules

What `mltop check`, `mltop snapshot` and the screen say of a node, and when. Made from the rules themselves
(`python -m tests.rules`); a test compares it. The severity is the usual one: some rules say more or
less as the case is (threshold). A rule clears after being false for three times its hold, what the kernel log said
after an hour. Where what a rule needs cannot be read, it is neither fine nor firing but unknown, with the command that
would tell. Thresholds marked * are our own defaults, not taken from a vendor.

The last column says what else a rule is the cause of: findings about the same thing ("same"), on the same node
("node"), about the ranks on its GPU or node ("ranks"; `rank.ended`, `rank.stalled` and `rank.slowed` are what becomes
of them), about ports of that name on other nodes ("peers"); and of what of these it comes itself ("follows").
"""


def document() -> str:
    """Markdown, one line per rule, in the order of the ids."""
    titles = ("id", "severity", "means", "fires when", "hold", "do", "source", "explains")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for rule in sorted(ALL_RULES, key=lambda rule: rule.id):
        hold = f"{rule.hold_s:g} s" if rule.hold_s else "–"
        do = "; ".join(filter(None, (COMMANDS.get(rule.act, ""), rule.action)))
        words = (rule.severity, rule.meaning, rule.fires_when, hold, do, rule.source)
        cells = (f"`{rule.id}`", *words, relations(rule))
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    table = "\n".join(lines)
    return f"{HEAD}\n{len(ALL_RULES)} rules.\n\n{table}\n"


def relations(rule: Rule) -> str:
    """E.g. ``node: disk.ro; ranks: rank.ended, job.hang``."""
    named = {
        "same": rule.explains,
        "node": rule.explains_node,
        "ranks": rule.explains_ranks,
        "peers": rule.explains_peers,
        "follows": rule.follows_ranks,
    }
    return "; ".join(f"{relation}: {', '.join(ids)}" for relation, ids in named.items() if ids) or "–"


if __name__ == "__main__":
    sys.stdout.write(document())
