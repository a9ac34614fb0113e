"""The table of all rules in the docs is made from the rules."""

from __future__ import annotations

from pathlib import Path

from mltop.probes.judge.health import registry
from mltop.probes.judge.health.registry import JOB_RULES
from tests import rules

DOCUMENT = Path(registry.__file__).with_name("RULES.md")


def test_the_document_is_that_of_these_rules() -> None:
    made = rules.document()
    assert DOCUMENT.read_text(encoding="utf-8") == made, "python -m tests.rules > RULES.md"


def test_every_rule_is_in_it_once_with_all_its_cells() -> None:
    rows = [line for line in rules.document().splitlines() if line.startswith("| `")]
    assert len(rows) == len(registry.RULES) + len(JOB_RULES) >= 95
    names = [row.split("`")[1] for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        cells = [cell.strip() for cell in row.replace("\\|", "").strip("|").split("|")]
        assert len(cells) == 8 and all(cells), row


def test_what_a_rule_explains_exists() -> None:
    ids = {rule.id for rule in registry.RULES}
    for rule in registry.RULES:
        for pattern in (*rule.explains, *rule.explains_node):
            assert pattern in ids or any(one.startswith(pattern) and pattern.endswith(".") for one in ids), (
                rule.id,
                pattern,
            )
