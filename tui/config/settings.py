"""Every setting once: its key in the file, what it takes, what holds without it, and what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from mltop.probes.reach import INTERVAL_S
from mltop.tui.config.file import KeyPath

RAMP = "cold-hot"
RAMPS = (RAMP, "grey")  # as in render.palette, which commands that draw nothing do not load

AutoDump = Literal["ask", "always", "never"]
Origin = Literal["default", "file", "environment", "command line", "remembered"]
Value = TypeVar("Value")

LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.1, 3600.0
MOST_TEXT = 4096
HOLD = "hold_s"  # thresholds."gpu.temp.margin.hold_s"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Wrong(Exception):
    """Why a value is not taken, to be said behind its key."""


@dataclass(frozen=True)
class Source:
    """Where a value comes from. ``where``: of a file its path and line, of the environment the variable."""

    origin: Origin = "default"
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.origin


@dataclass(frozen=True)
class Named:
    """What `mltop @name` stands for: the TARGETS options, () and "" where not given."""

    nodes: tuple[str, ...] = ()
    hostfile: str = ""
    job: str = ""
    via: str = ""
    python: str = ""
    user: str = ""


@dataclass(frozen=True)
class Config:
    """All settings that hold. ``columns`` and ``sort`` by table, ``keys`` by action, ``thresholds`` by rule ("ID") and
    hold time ("ID.hold_s"), ``targets`` by name. ``sources`` by key ("columns.gpus"): what is not there is a default.
    ``mistakes``: one line each. ``file_values``: what the file says of what the screen remembers, by key.
    """

    theme: str = ""
    ramp: str = RAMP
    interval_s: float = INTERVAL_S
    ascii: bool = False
    mouse: bool = True
    terminal_title: bool = True
    read_only: bool = False
    auto_dump: AutoDump = "ask"
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sort: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    targets: Mapping[str, Named] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    mistakes: tuple[str, ...] = ()
    file_values: Mapping[str, object] = field(default_factory=dict)

    def source(self, key: str) -> Source:
        return self.sources.get(key, Source())


DEFAULTS = Config()


# What is taken of a value of the file. Each raises Wrong.


def text(value: object) -> str:
    if not isinstance(value, str):
        raise Wrong(f"must be text in quotes, not {kind_of(value)}")
    if len(value) > MOST_TEXT or not value.isprintable():
        raise Wrong("is too long or has characters that cannot be printed")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false, not {kind_of(value)}")
    return value


def amount(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"must be a number, not {kind_of(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise Wrong("must be a number from 0 on")
    return number


def interval(value: object) -> float:
    seconds = amount(value)
    if not LEAST_INTERVAL_S <= seconds <= MOST_INTERVAL_S:
        raise Wrong(f"must be between {LEAST_INTERVAL_S:g} and {MOST_INTERVAL_S:g} seconds")
    return seconds


def ramp(value: object) -> str:
    name = text(value)
    if name not in RAMPS:
        raise Wrong(f"must be one of {', '.join(RAMPS)}")
    return name


def auto_dump(value: object) -> AutoDump:
    choices: tuple[AutoDump, ...] = get_args(AutoDump)
    for choice in choices:
        if value == choice:
            return choice
    raise Wrong(f"must be one of {', '.join(choices)}")


def names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise Wrong("must be a list of names in quotes")
    return tuple(dict.fromkeys(map(text, value)))


def keys(value: object) -> str:
    """Keys of one action, as Textual takes them: "t,f7"."""
    return ",".join(names(value) if isinstance(value, list) else (text(value),))


def named(value: object) -> Named:
    """Nodes alone, or a table of options."""
    if isinstance(value, str):
        value = {"nodes": value}
    if not isinstance(value, dict):
        raise Wrong("must be nodes in quotes, or a table of nodes, hostfile, job, via, python and user")
    known = {option.name for option in fields(Named)}
    for key in value:
        if key not in known:
            raise Wrong(f"has no option {key!r} ({', '.join(sorted(known))})")
    given = {key: text(part) for key, part in value.items() if key != "nodes"}
    nodes = value.get("nodes", [])
    listed = names(nodes) if isinstance(nodes, list) and nodes else (text(nodes),) if nodes else ()
    if any(not part.strip() for part in (*listed, *given.values())) or not (listed or given):
        raise Wrong("has an empty value")
    return Named(nodes=listed, **given)


def kind_of(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")


@dataclass(frozen=True)
class Setting:
    """``key``: in the file; ``name``: the field of Config; ``take``: checks and converts a value of the file;
    ``variable``: of the environment; ``option``: of the command line, as its values are called; ``flips``: an option
    that means the opposite.
    """

    key: str
    name: str
    take: Callable[[object], Any]
    meaning: str
    variable: str = ""
    option: str = ""
    flips: bool = False


SETTINGS = (
    Setting("theme", "theme", text, "colours; empty: what suits the terminal"),
    Setting("ramp", "ramp", ramp, f"colours of values in maps and meters: {', '.join(RAMPS)}"),
    Setting("interval", "interval_s", interval, "seconds between samples", option="interval_s"),
    Setting("ascii", "ascii", flag, "no character above 127", "MLTOP_ASCII", "ascii_only"),
    Setting("mouse", "mouse", flag, "clicks are mltop's; false leaves the mouse to the terminal", "", "no_mouse", True),
    Setting("terminal_title", "terminal_title", flag, "the terminal's title says what line 1 says"),
    Setting("read_only", "read_only", flag, "touch no process, load no machine", "MLTOP_READ_ONLY", "read_only"),
    Setting("auto_dump", "auto_dump", auto_dump, "when a job stands still, its stacks are dumped: ask, always, never"),
)


@dataclass(frozen=True)
class Section:
    """A table of the file, ``name`` there and in Config: any number of keys, each with ``take``. ``deep``: dots in its
    keys are part of them, quoted or not ("gpu.temp.margin").
    """

    name: str
    take: Callable[[object], Any]
    meaning: str
    deep: bool = False


SECTIONS = (
    Section("targets", named, "what `mltop @name` watches"),
    Section("thresholds", amount, "limits and hold times of health rules, by their ids", deep=True),
    Section("columns", names, "which columns a table has, in their order"),
    Section("sort", text, 'the column a table is sorted by; "-temp": the largest first'),
    Section("keys", keys, "the keys of an action"),
)


DEEPEST = 16  # tables in tables: nothing of ours is so deep


def flattened(values: Mapping[str, Any], path: KeyPath = ()) -> dict[str, tuple[object, KeyPath]]:
    """Values by their keys joined with dots, and the path of each: ``gpu.temp.margin = 8`` is three tables."""
    found: dict[str, tuple[object, KeyPath]] = {}
    for key, value in values.items():
        if isinstance(value, dict) and len(path) < DEEPEST:
            below = flattened(value, (*path, key))
            found.update({f"{key}.{name}": entry for name, entry in below.items()})
        else:
            found[key] = value, (*path, key)
    return found
