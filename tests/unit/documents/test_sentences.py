"""Facts travel as data: nothing takes a sentence, a rendered cell or a formatted number apart to learn a fact."""

from __future__ import annotations

import ast
import sys
from typing import NamedTuple

import pytest

from tests import house
from tests.documents import ROOT

# What words for people are called, as attributes …
SENTENCES = {"why", "fix", "reason", "message", "action", "headline", "where", "text", "sentence", "error", "title"}
SENTENCES |= {"label", "advice", "caption"}
# … and as parameters and locals, where some of these names stand for other things as well.
PLAIN_NAMES = frozenset({"why", "sentence", "headline", "fix", "advice", "where", "label", "caption"})
TAKING_APART = {"startswith", "endswith", "split", "rsplit", "partition", "rpartition", "splitlines", "replace"}
TAKING_APART |= {"removeprefix", "removesuffix", "find", "rfind", "index", "rindex", "count", "isdigit", "isnumeric"}
SEARCHING = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn"}
# What stands for an unknown value in a cell, and for a lost GPU: values know that themselves.
DRAWN = {"UNKNOWN", "GLYPHS.lost"}
# Textual's name for what a key does is no word for people.
ACTIONS_OF_KEYS = {"binding.action", "hint.action", "other.action"}
# What others wrote may be read: nobody gives it as data. File → whose words they are.
WRITTEN_BY_OTHERS: dict[str, str] = {
    "probes/collect/kernel_log/decode.py": "the kernel and its drivers",
    "probes/collect/kernel_log/source.py": "the kernel and its drivers",
    "probes/collect/kernel_log/scan.py": "the kernel and its drivers",
    "probes/collect/logs/tracebacks.py": "torch and Python, in a job's logs",
    "probes/judge/deaths.py": "torch and Python, which say in words that a peer is gone",
    "probes/judge/health/gpu/xids.py": "the kernel and its drivers",
    "probes/judge/health/host/memory.py": "the kernel and its drivers",
    "probes/judge/health/link/infiniband.py": "the kernel and its drivers",
    "probes/judge/health/link/pcie.py": "the kernel and its drivers",
    "probes/model/units.py": "its own numbers, of which two have one unit",
    "probes/investigate/advice.py": "nodes and recordings, which say what would fix it: nobody's word is pasted unseen",
    "probes/judge/nodes.py": "ssh, torch and drivers, which put names, addresses and sizes into what they say",
    "probes/reach/launchers/srun.py": "srun, whose lines begin with the task",
    "tui/filters/filter.py": "the user",
    "tui/screens/help/lines.py": "bindings, whose words an ASCII terminal cannot draw",
}


class Reading(NamedTuple):
    line: int
    function: str
    what: str


def readings(source: str) -> list[Reading]:
    """Every place where a sentence is taken apart, searched, or compared with words known beforehand."""
    taken: list[Reading] = []

    def visit(node: ast.AST, function: str, names: frozenset[str]) -> None:
        for child in ast.iter_child_nodes(node):
            inner, known = function, names
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inner = getattr(child, "name", function)
                known = names | _locals_with_sentences(child)
            if isinstance(child, ast.expr) and _reads(child, known):
                taken.append(Reading(child.lineno, function, ast.unparse(child)))
            visit(child, inner, known)

    visit(ast.parse(source), "", PLAIN_NAMES)
    return taken


def _locals_with_sentences(function: ast.AST) -> frozenset[str]:
    pairs = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            pairs += [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.NamedExpr):
            pairs.append((node.target, node.value))
    return frozenset(
        target.id
        for target, value in pairs
        if isinstance(target, ast.Name) and isinstance(value, ast.Attribute) and value.attr in SENTENCES
    )


def _reads(node: ast.expr, names: frozenset[str]) -> bool:
    def sentence(part: ast.expr) -> bool:
        if isinstance(part, ast.Attribute):
            return part.attr in SENTENCES and ast.unparse(part) not in ACTIONS_OF_KEYS
        return isinstance(part, ast.Name) and part.id in names

    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(map(_drawn, sides)) or any(
            sentence(after)
            if isinstance(operator, ast.In | ast.NotIn)
            else isinstance(operator, ast.Eq | ast.NotEq)
            and ((sentence(before) and _fixed(after)) or (sentence(after) and _fixed(before)))
            for before, operator, after in zip(sides, node.ops, sides[1:], strict=False)
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in TAKING_APART and sentence(node.func.value):
            return True
        return node.func.attr in SEARCHING and any(map(sentence, node.args))
    return False


def _drawn(part: ast.expr) -> bool:
    return isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) in DRAWN


def _fixed(part: ast.expr) -> bool:
    """Words known beforehand. None at all ("") asks only whether there are any."""
    if isinstance(part, ast.Constant):
        return isinstance(part.value, str) and bool(part.value)
    return _last_name(part).isupper()


def _last_name(part: ast.expr) -> str:
    return part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""


def everywhere() -> list[str]:
    return [
        f"{path}:{reading.line} {reading.function}: {reading.what}"
        for path in sorted(module.path.relative_to(ROOT).as_posix() for module in house.modules())
        if path not in WRITTEN_BY_OTHERS
        for reading in readings((ROOT / path).read_text())
    ]


@pytest.mark.parametrize(
    "line",
    [
        "gap.why.startswith('no driver')",
        "'SIGKILL' in state.why",
        "finding.message.partition(': ')",
        "_PID.findall(failure.why)",
        "culprit.where not in culprit.reason",
        "meter.why == NEW",
        "cell.text == UNKNOWN",
        "GLYPHS.lost in text",
        "def f(why): return why.removeprefix('GPU ')",
        "def f(gap):\n    words = gap.why\n    return words.split()",
    ],
)
def test_a_reading_is_found(line: str) -> None:
    assert readings(line) != []


@pytest.mark.parametrize("line", ["gap.why == ''", "gap.why or '-'", "f'{gap.why}: {gap.fix}'", "gap.code == 'x'"])
def test_what_only_shows_words_is_none(line: str) -> None:
    assert readings(line) == []


def test_nothing_reads_a_sentence() -> None:
    assert everywhere() == []


def test_what_may_be_read_is_read() -> None:
    """Files whose permission is no longer used lose it."""
    assert [path for path in WRITTEN_BY_OTHERS if not readings((ROOT / path).read_text())] == []


if __name__ == "__main__":
    print(*everywhere(), sep="\n", file=sys.stdout)
