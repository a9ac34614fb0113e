"""What users and engineers read as data: fences, `code`, tables and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SECURITY = ROOT / "tests" / "SECURITY.md"  # which tests hold what `mltop help security` states
ON_A_GPU = ROOT / "tests" / "hardware" / "README.md"
FOR_ENGINEERS = (CONTRIBUTING, SECURITY, ON_A_GPU)
HELP = ROOT / "tui" / "help"
FOR_USERS = (README, *sorted(HELP.glob("*.md")))

_FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)#]+)")
_CELL = re.compile(r"(?<!\\)\|")  # not within a command: \|


def fenced_lines(document: Path) -> list[str]:
    return [line for block in _FENCE.findall(document.read_text(encoding="utf-8")) for line in block.splitlines()]


def codes(document: Path) -> list[str]:
    """Everything between single backticks, as it is typed."""
    return [" ".join(code.split()) for code in _CODE.findall(_FENCE.sub("", document.read_text(encoding="utf-8")))]


def links(document: Path) -> list[str]:
    return _LINK.findall(document.read_text(encoding="utf-8"))


def tables(document: Path) -> Iterator[list[list[str]]]:
    """Each table's rows of cells, the header first."""
    rows: list[list[str]] = []
    for line in [*document.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip().replace("\\|", "|") for cell in _CELL.split(line)[1:-1]]
            if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                rows.append(cells)
        elif rows:
            yield rows
            rows = []


def table(document: Path, first_column: str) -> list[list[str]]:
    """The rows of the one table whose first column is headed so, without the header."""
    (found,) = (rows for rows in tables(document) if rows[0][0].strip("`") == first_column)
    return found[1:]


def text_of(document: Path) -> str:
    """On one line: sentences may be broken anywhere."""
    return " ".join(document.read_text(encoding="utf-8").split())
