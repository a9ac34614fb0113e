"""CONTRIBUTING against the tree: what it names is there, what is there is on its map, its lists are the tools' own."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from mltop.probes.agent import protocol
from mltop.probes.model import gpu, incident, sample, verdict
from mltop.probes.reach import bundle
from tests import house
from tests.documents import CONTRIBUTING, FOR_ENGINEERS, HELP, ROOT, SECURITY, codes, links, table, text_of
from tests.system.cases.launch import CASES

TEXT = text_of(CONTRIBUTING)
CODES = [code for document in FOR_ENGINEERS for code in codes(document)]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
RUN = (ROOT / "tests/run").read_text(encoding="utf-8")
ON_A_NODE = re.compile(r"what runs on a node \(([^)]*)\)", re.IGNORECASE)
MADE_BY_A_RUN = {".venv-test"}

PATHS = sorted(
    {
        code
        for code in CODES
        if "/" in code
        and re.fullmatch(r"[\w.-]+/[\w./-]*", code)
        and code.partition("/")[0] in ("probes", "tui", "tests", ".dev")
    }
)
FILES = sorted({code for code in CODES if re.fullmatch(r"\w+\.(py|md|toml)", code)})


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_there(path: str) -> None:
    found = ROOT / path
    assert found.is_dir() if path.endswith("/") else found.exists()


def test_every_link_leads_somewhere() -> None:
    for document in FOR_ENGINEERS:
        assert [link for link in links(document) if "://" not in link and not (document.parent / link).exists()] == []


def test_it_stays_short() -> None:
    assert len(CONTRIBUTING.read_bytes()) <= 15_000


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_somewhere(name: str) -> None:
    assert (ROOT / name).exists() or any(any((ROOT / wing).rglob(name)) for wing in ("probes", "tui", "tests"))


@pytest.mark.parametrize("cell", [cells[1] for cells in table(CONTRIBUTING, "to find")])
def test_what_a_row_of_the_map_names_lies_in_its_folder(cell: str) -> None:
    """ "`probes/agent/` (`loop.py`, …)"."""
    folder = ROOT
    for code in re.findall(r"`([^`]+)`", cell):
        path = ROOT / code
        if "/" in code.rstrip("/"):
            assert path.exists(), code
            folder = path if path.is_dir() else path.parent
        else:
            assert (folder / code).exists(), f"{code} is not in {folder}"


def test_every_folder_is_on_the_map() -> None:
    named = {
        code.rstrip("/") for cells in table(CONTRIBUTING, "to find") for code in re.findall(r"`([^`]+)`", cells[1])
    }
    there = {
        f"{wing}/{path.name}"
        for wing in ("probes", "tui")
        for path in (ROOT / wing).iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert sorted(there - named) == []
    inside = {path.name for path in (ROOT / "probes/collect").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert sorted(inside - named) == []


@pytest.mark.parametrize("code", [code for code in CODES if code.startswith("python -m ")])
def test_every_module_that_is_run_is_one(code: str) -> None:
    name = code.split()[2]
    found = find_spec(name)
    assert found is not None
    if found.submodule_search_locations:
        found = find_spec(f"{name}.__main__")
    assert found is not None and found.origin is not None
    assert name != found.name or "__main__" in Path(found.origin).read_text(encoding="utf-8")


RECORDS = {
    **{
        name: record
        for name, record in (found for part in (gpu, incident, sample, verdict) for found in vars(part).items())
        if is_dataclass(record)
    },
    "Message": protocol.Message,
}


def named_fields() -> list[tuple[str, str]]:
    """`RankSample.local_world_size`, `.master_address`: the second is the first one's."""
    found, record = [], ""
    for code in CODES:
        dotted = re.fullmatch(r"([A-Z]\w*)?\.([a-z]\w*)", code)
        if dotted and dotted[2] not in ("md", "pyc"):
            record = dotted[1] or record
            found.append((record, dotted[2]))
    return found


def test_every_field_is_one() -> None:
    assert named_fields()
    for record, name in named_fields():
        assert name in {field.name for field in fields(RECORDS[record])}, f"{record}.{name}"


def test_what_runs_on_a_node_is_one_list() -> None:
    """In the rules, for the linter that keeps it to Python 3.9, the tool that checks that, and as it is sent."""
    found = ON_A_NODE.search(TEXT)
    assert found is not None
    rules = set(re.findall(r"`([\w/]+)`", found[1]))
    linted = set(re.findall(r'^"probes/([\w/]+)(?:\.py|/\*\*)" = "py39"', PROJECT, re.MULTILINE))
    (paths,) = re.findall(r"--violations \\\n(.*)", RUN)
    checked = {re.sub(r"\.py$", "", path.partition("/")[2]) for path in paths.split()}
    sent = {path.removesuffix(".py") for path in bundle.OURS} - {"judge/__init__"}  # holds nothing but its docstring
    assert rules == linted == checked
    assert rules == sent | {"demo"}


def test_every_statement_on_security_has_its_tests() -> None:
    stated = re.findall(r"^- (S\d+)\. ", (HELP / "security.md").read_text(encoding="utf-8"), re.MULTILINE)
    held = {cells[0].split()[0]: re.findall(r"`([^`]+)`", cells[1]) for cells in table(SECURITY, "statement")}
    assert stated == [f"S{number}" for number in range(1, len(stated) + 1)] == list(held)
    for tests in held.values():
        assert tests
        for one in tests:
            path, _, name = one.partition("::")
            code = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"def {name}\(" if name else r"def test_", code), one


def test_the_marks_of_tests_are_those_of_the_project() -> None:
    (sentence,) = re.findall(r"What a test may do to others says its mark \(`pyproject.toml`\): (.*?)\. ", TEXT)
    markers = re.findall(r'^    "(\w+): ', PROJECT, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted({*markers} - {"part"})  # which says nothing of others
    assert all(f"--lane {mark} " in RUN for mark in markers if mark != "part")


def test_the_number_of_hanging_jobs() -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    (word,) = re.findall(r"jobs that hang in (\w+) ways", TEXT)
    ways = sum(case.hangs for case in CASES.values())
    assert word == (words[ways - 1] if ways <= len(words) else str(ways))


def imported(folder: str) -> set[str]:
    """Parts of probes/ that the modules of one of them import, other than themselves."""
    found: set[str] = set()
    for module in house.modules():
        for node in module.statements if module.path.is_relative_to(ROOT / "probes" / folder) else ():
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            found |= {name.split(".")[2] for name in names if name.startswith("mltop.probes.")}
    return found - {folder}


@pytest.mark.parametrize("folder", ["judge", "collect", "active"])
def test_who_imports_only_what(folder: str) -> None:
    (allowed,) = re.findall(rf"`{folder}`[^;]*? imports? only ([^;]*);", TEXT)
    assert imported(folder) == set(re.findall(r"`(\w+)`", allowed)) & imported(folder)
    assert "model" in imported(folder)
