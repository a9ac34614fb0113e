"""The house keeps its measures: no circles, nothing too long, a purpose for every folder."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tests import house


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, in order; [] when none do."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"a"}}) != []


def test_no_module_imports_itself_by_others() -> None:
    """Not even those that are imported only when they are needed."""
    imports = house.graph(whenever=True)
    assert sum(map(len, imports.values())) > len(imports)
    assert circle(imports) == []


def test_nothing_is_too_long() -> None:
    modules = house.modules()
    assert len(modules) <= house.MOST_FILES
    assert {module.name: module.lines for module in modules if module.lines > house.MOST_LINES} == {}
    functions = [(module.name, name, lines) for module in modules for name, lines in module.functions()]
    assert [function for function in functions if function[-1] > house.MOST_FUNCTION_LINES] == []


def test_every_folder_has_a_purpose_and_few_modules() -> None:
    for folder, purpose, files, _, _ in house.rows():
        assert purpose, folder
        assert files <= house.MOST_FOLDER_FILES, folder
