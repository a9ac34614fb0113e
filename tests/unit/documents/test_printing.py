"""Text leaves for a terminal through few modules, which clean it: nobody else prints, writes or builds rich text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT

# Who may, and what: each of them calls `model.text.clean` on all that it writes or draws.
PRINTERS = {
    "tui/app/output.py": "streams",
    "tui/report/page.py": "rich",
    "tui/widgets/cell_view.py": "rich",
}
OPERATOR_SIDE = ("tui", "probes/reach", "probes/investigate", "probes/judge", "probes/model")
STREAMS = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}
ASKS = {"isatty", "fileno", "encoding", "flush"}  # of a stream: what may be asked anywhere
PRINTING_CALLS = {"print", "print_exc", "print_exception", "print_stack", "print_tb", "echo", "secho", "warn"}
# Methods that show a text, and classes of rich and Textual that hold one.
SHOWING_CALLS = {"notify", "from_markup", "from_ansi"}
HOLDERS = {
    *("Text", "Segment", "Strip", "Content", "Panel", "Table", "Syntax", "Markdown", "Pretty", "Columns", "Rule"),
    *("Static", "Label", "Log", "RichLog", "Toast", "DataTable", "OptionList", "Button", "Digits", "Header", "Footer"),
}


def offences(source: str) -> Iterator[tuple[str, int, str]]:
    """("streams" or "rich", line, what) of all that only a printer may do."""
    tree = ast.parse(source)
    of_rich = {name for node in ast.walk(tree) for name in _imported_from_rich(node)}
    asked = {id(stream) for node in ast.walk(tree) for stream in _asked_of(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and f"{_name(node.value)}.{node.attr}" in STREAMS and id(node) not in asked:
            yield "streams", node.lineno, f"sys.{node.attr}"
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "sys"
            and STREAMS & {f"sys.{one.name}" for one in node.names}
        ):
            yield "streams", node.lineno, "from sys import"
        if not isinstance(node, ast.Call):
            continue
        called, owner = _name(node.func), _name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if called in PRINTING_CALLS and called not in of_rich:
            yield "rich" if called == "print" and owner else "streams", node.lineno, called
        elif called in SHOWING_CALLS or called in of_rich & HOLDERS or (called in HOLDERS and owner in of_rich):
            yield "rich", node.lineno, called
        elif owner == "os" and called == "write" and node.args and _constant(node.args[0]) in (1, 2):
            yield "streams", node.lineno, "os.write"


def _asked_of(node: ast.AST) -> list[ast.expr]:
    """``sys.stderr`` in sys.stderr.isatty(), getattr(sys.stderr, "encoding", "") and glyphs.is_utf8(sys.stderr)."""
    if isinstance(node, ast.Attribute) and node.attr in ASKS:
        return [node.value]
    if isinstance(node, ast.Call) and _name(node.func) in ("getattr", "is_utf8") and node.args:
        return node.args[:1] if _name(node.func) == "is_utf8" or _constant(node.args[1]) in ASKS else []
    return []


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _imported_from_rich(node: ast.AST) -> list[str]:
    """Names that come from rich or Textual; its `print` counts as one that is called."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("rich", "textual"):
        return [alias.asname or alias.name for alias in node.names if alias.name != "print"]
    if isinstance(node, ast.Import):
        names = [alias for alias in node.names if alias.name.partition(".")[0] in ("rich", "textual")]
        return [alias.asname or alias.name.rpartition(".")[2] for alias in names]
    return []


def sources() -> list[Path]:
    single = list((ROOT / "probes").glob("*.py"))
    return sorted([path for folder in OPERATOR_SIDE for path in (ROOT / folder).rglob("*.py")] + single)


def test_only_printers_print() -> None:
    named = {str(path.relative_to(ROOT)): list(offences(path.read_text())) for path in sources()}
    assert len(named) > 150
    found = [
        f"{name}:{line}: {what}"
        for name, of_file in named.items()
        for kind, line, what in of_file
        if PRINTERS.get(name) != kind
    ]
    assert found == [], "print by mltop.tui.app.output, by report.page, or as cells"


@pytest.mark.parametrize("printer", [name for name in PRINTERS if name.startswith("tui/")])
def test_every_printer_cleans(printer: str) -> None:
    text = (ROOT / printer).read_text()
    assert list(offences(text)), "it prints nothing: it is no printer"
    assert "clean(" in text or "printable(" in text


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("print(name)", "streams"),
        ("import sys\nsys.stderr.write(name)", "streams"),
        ("from sys import stderr\nstderr.write(name)", "streams"),
        ("import sys\nstream = sys.stderr\nstream.write(name)", "streams"),
        ("import sys\ngetattr(sys.stderr, 'write')(name)", "streams"),
        ("import sys\nsys.__stdout__.buffer.write(name)", "streams"),
        ("import sys, json\njson.dump(name, file=sys.stdout)", "streams"),
        ("import os\nos.write(2, name)", "streams"),
        ("import click\nclick.echo(name)", "streams"),
        ("import traceback\ntraceback.print_exception(error)", "streams"),
        ("import warnings\nwarnings.warn(name)", "streams"),
        ("console.print(name)", "rich"),
        ("from rich.text import Text\nText(name)", "rich"),
        ("from rich.text import Text\nText.from_markup(name)", "rich"),
        ("from rich.segment import Segment\nSegment(name)", "rich"),
        ("from textual.widgets import Static\nyield_ = Static(name)", "rich"),
        ("import rich.text\nrich.text.Text(name)", "rich"),
        ("from rich import text as t\nt.Text(name)", "rich"),
        ("from rich import print\nprint(name)", "streams"),
        ("self.notify(name)", "rich"),
        ("self.app.notify(name)", "rich"),
    ],
)
def test_an_offence_is_seen(source: str, kind: str) -> None:
    assert [found for found, _, _ in offences(source)] == [kind]


def test_what_only_asks_is_none() -> None:
    assert list(offences("import sys\nsys.stdout.isatty(); sys.stderr.fileno(); file.write(data)")) == []
