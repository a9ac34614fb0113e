"""Whether this Python has the packages that mltop needs. Asked where something has failed: reading what is installed
takes longer than mltop's start.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;\s*(.*))?")
_PART = re.compile(r"(~=|[<>=!]=?)\s*['\"]?([\d.]+)")
_HOLDS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, "!=": operator.ne, "==": operator.eq}
_VERSION = re.compile(r"""^__version__[^=\n]*=\s*["']([\w.+-]+)""", re.MULTILINE)


def conflict() -> str:
    """The first package that is missing or has another version than it must, and what to do; "" for none."""
    from importlib.metadata import PackageNotFoundError, distribution

    wanted = [("", "mltop")]
    seen = set()
    for who, requirement in wanted:
        name, needs, marker = _REQUIREMENT.fullmatch(requirement).groups("")  # type: ignore[union-attr]
        if name in seen or (marker and not _holds_here(marker)):
            continue
        seen.add(name)
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            if who:
                return _sentence(name, " is not installed", who, needs)
            break  # mltop runs from its source
        wanted += ((name, each) for each in installed.requires or ())
        version, folder = _found(installed, name)
        if who and not _fits(version, needs):
            return _sentence(f"{name} {version}", f" in {folder}", who, needs, folder)
    return ""


def hidden() -> str:
    """``conflict``, if PYTHONPATH leads to what draws the screen: another version may work, and draw nonsense."""
    found = [spec.origin for spec in map(find_spec, ("textual", "rich")) if spec is not None and spec.origin]
    return conflict() if any(_is_chosen(str(Path(origin).parents[1])) for origin in found) else ""


def _sentence(what: str, where: str, who: str, needs: str, folder: str = "") -> str:
    needs = what.partition(" ")[0] + ",".join(sorted(needs.replace(" ", "").split(","), reverse=True))
    if _is_chosen(folder):
        return f"{what}{where} (PYTHONPATH): {who} needs {needs} (env -u PYTHONPATH mltop)"
    return f"{what}{where}: {who} needs {needs} ({sys.executable} -m pip install '{needs}')"


def _is_chosen(folder: str) -> bool:
    """Whether PYTHONPATH names it."""
    chosen = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return bool(folder) and os.path.realpath(folder) in map(os.path.realpath, chosen)


def _found(installed: Distribution, name: str) -> tuple[str, str]:
    """The version of what is imported, and its folder: another folder may come before that of what is installed."""
    home = str(installed.locate_file(""))
    tops = [file.parts[0] for file in installed.files or () if file.name == "__init__.py" and len(file.parts) == 2]
    tops += [file.stem for file in installed.files or () if len(file.parts) == 1 and file.suffix == ".py"]
    for module in tops or [name.replace("-", "_")]:
        spec = find_spec(module)
        places = [*(spec.submodule_search_locations or [spec.origin or ""])] if spec is not None else []
        folder = str(Path(places[0]).parent) if places else home
        if folder != home and folder in sys.path[: sys.path.index(home) if home in sys.path else None]:
            text = ""
            with contextlib.suppress(OSError):
                text = Path(spec.origin or "").read_text(encoding="utf-8", errors="replace") if spec else ""
            match = _VERSION.search(text)
            return match[1] if match else "of an unknown version", folder
    return installed.version, home


def _fits(version: str, needs: str) -> bool:
    have = _numbers(version)
    return all(_HOLDS.get(how, operator.ge)(have, _numbers(than)) for how, than in _PART.findall(needs))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _holds_here(marker: str) -> bool:
    """Whether a marker asks for nothing but a version of Python that this one is."""
    about_python = re.fullmatch(r"\s*python_(?:full_)?version\s*([<>=!~]=?\s*['\"][\d.]+['\"])\s*", marker)
    return about_python is not None and _fits(".".join(map(str, sys.version_info[:3])), about_python[1])
