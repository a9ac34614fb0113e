"""The table of all rules, from the rules themselves: `python -m mltop.probes.judge.health.table` prints RULES.md."""

from __future__ import annotations

import sys

from mltop.probes.judge.health.registry import ALL_RULES

HEAD = """# Health rules

What `mltop check`, `mltop snapshot` and the screen say of a node, and when. Made from the rules themselves
(`python -m mltop.probes.judge.health.table`); a test compares it. The severity is the usual one: some rules say more or
less as the case is (threshold). A rule clears after being false for three times its hold, what the kernel log said
after an hour. Where what a rule needs cannot be read, it is neither fine nor firing but unknown, with the command that
would tell. Thresholds marked * are our own defaults, not taken from a vendor.
"""


def document() -> str:
    """Markdown, one line per rule, in the order of the ids."""
    lines = ["| id | severity | means | fires when | hold | do | source |", "|---|---|---|---|---|---|---|"]
    for rule in sorted(ALL_RULES, key=lambda rule: rule.id):
        hold = f"{rule.hold_s:g} s" if rule.hold_s else "–"
        cells = (f"`{rule.id}`", rule.severity, rule.meaning, rule.fires_when, hold, rule.action, rule.source)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    table = "\n".join(lines)
    return f"{HEAD}\n{len(ALL_RULES)} rules.\n\n{table}\n"


if __name__ == "__main__":
    sys.stdout.write(document())
