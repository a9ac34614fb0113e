"""How the product is built, measured: ``python -m tests.house`` draws it as a table, folder by folder.

Purpose (the first line of the package's docstring), modules, lines, the longest module and function, and which other
folders its modules import from.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from tests.documents import ROOT

WINGS = ("probes", "tui")
MOST_FILES = 572
MOST_LINES = 500  # of a module
MOST_FUNCTION_LINES = 50
MOST_FOLDER_FILES = 19


@dataclass(frozen=True)
class Module:
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_bytes())

    @cached_property
    def lines(self) -> int:
        return self.path.read_bytes().count(b"\n")

    @property
    def name(self) -> str:
        """As it is imported: "mltop.probes.agent.loop"."""
        parts = ("mltop", *self.path.relative_to(ROOT).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def folder(self) -> str:
        return self.path.parent.relative_to(ROOT).as_posix()

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """All of them, however deep; expressions, which hold none, are most of a tree."""
        found: list[ast.stmt] = []
        open_nodes: list[ast.AST] = [self.tree]
        while open_nodes:
            node = open_nodes.pop()
            for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                inside = getattr(node, name, ())
                open_nodes += inside
                found += (one for one in inside if isinstance(one, ast.stmt))
        return found

    def functions(self) -> Iterator[tuple[str, int]]:
        """Names and lengths in lines, from ``def`` to the last line."""
        for node in self.statements:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1

    def imports(self, names: frozenset[str], *, whenever: bool = True) -> set[str]:
        """The modules of ours that it imports; ``whenever``: also those that are imported when they are needed."""
        found: set[str] = set()
        for node in self.statements if whenever else self.tree.body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                package = ".".join(self.name.split(".")[: -node.level]) if node.level else ""
                module = ".".join(filter(None, (package, node.module)))
                found |= {whole if (whole := f"{module}.{alias.name}") in names else module for alias in node.names}
        return found & names - {self.name}


@cache
def modules() -> list[Module]:
    """Read once."""
    return [Module(path) for wing in WINGS for path in sorted((ROOT / wing).rglob("*.py"))]


def graph(whenever: bool = False) -> dict[str, set[str]]:
    """Which module imports which, by name."""
    house = modules()
    names = frozenset(module.name for module in house)
    return {module.name: module.imports(names, whenever=whenever) for module in house}


def purpose(folder: str) -> str:
    docstring = ast.get_docstring(Module(ROOT / folder / "__init__.py").tree) or ""
    return docstring.partition("\n")[0]


def rows() -> Iterator[tuple[str, str, int, int, str]]:
    """Folder, purpose, files, lines, the folders that it imports from."""
    house = modules()
    by_name = {module.name: module for module in house}
    names = frozenset(by_name)
    for folder in sorted({module.folder for module in house}):
        inside = [module for module in house if module.folder == folder]
        imported = {by_name[name].folder for module in inside for name in module.imports(names)} - {folder}
        yield folder, purpose(folder), len(inside), sum(module.lines for module in inside), ", ".join(sorted(imported))


def main() -> None:
    house = modules()
    print("| folder | purpose | files | lines | imports from |\n|---|---|---|---|---|")
    for folder, what_for, files, lines, imported in rows():
        print(f"| `{folder}` | {what_for} | {files} | {lines:,} | {imported} |")
    longest = max(house, key=lambda module: module.lines)
    functions = [(length, name, module.name) for module in house for name, length in module.functions()]
    length, function, where = max(functions)
    print(f"\n{len(house)} files, {sum(module.lines for module in house):,} lines")
    print(f"longest module: {longest.name}, {longest.lines} lines")
    print(f"longest function: {function} in {where}, {length} lines")


if __name__ == "__main__":
    main()
